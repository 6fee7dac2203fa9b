"""Calls of a pipeline: the arguments that it takes, and one picture for each prompt and noise."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse import messages
from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse.pipelines.pictures import Picture, pictures_of

__all__ = ["RESERVED", "Caller", "Signature", "check_prompts", "is_modular", "refuse_reserved"]

logger = logging.getLogger("omnireuse")

RESERVED = {
    "prompt": "the prompts are given as a list of their own",
    "generator": "every prompt has a noise of its own, which seed= decides",
    "output_type": "pictures are compared as arrays",
    "return_dict": "the result is read in whatever form it comes; pictures= reads one of your own",
}
"""Arguments of a call that the library sets itself, and why."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The arguments of a pipeline's call.

    Attributes:
        owner: class of the pipeline.
        defaults: by name; `inspect.Parameter.empty` if there is none.
        takes_any: whether it has a ``**kwargs``, so that the names it knows cannot be told.
    """

    owner: str
    defaults: Mapping[str, Any]
    takes_any: bool

    @classmethod
    def of(cls, pipeline: Any) -> Signature:
        """The signature of this pipeline; a modular one lists the inputs of its blocks."""
        owner = type(pipeline).__name__
        if is_modular(pipeline):
            inputs = {each.name or each.kwargs_type: each.default for each in pipeline.blocks.inputs}
            return cls(owner=owner, defaults=inputs, takes_any=False)
        if not callable(pipeline):
            raise ConfigError(f"{owner}: must be a pipeline that can be called with a prompt")
        parameters = inspect.signature(pipeline).parameters.values()
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return cls(
            owner=owner,
            defaults={each.name: each.default for each in parameters if each.kind in named},
            takes_any=any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters),
        )

    def takes(self, name: str) -> bool:
        """Whether a call may have an argument of this name."""
        return self.takes_any or name in self.defaults

    def check(self, names: Iterable[str], *, known: Iterable[str] = ()) -> None:
        """Refuse a pipeline that cannot run with prompts, and arguments that it does not take.

        Args:
            known: further names that a mistyped one may have meant.
        """
        for name in ("prompt", "num_inference_steps"):
            if not self.takes(name):
                taken = ", ".join(self.defaults) or "nothing"
                raise ConfigError(messages.CALL_TAKES_NOT, owner=self.owner, name=name, taken=taken)
        for name in names:
            if not self.takes(name):
                choices = {*self.defaults, *known} - RESERVED.keys()
                raise UnknownNameError(f"argument of {self.owner}", name, choices)


def _check_encoders(pipeline: Any) -> None:
    """Refuse a pipeline of diffusers whose text encoders were left out: its prompts cannot be encoded."""
    # A pipeline of somebody's own may be without parts, which `components` answers with an error.
    is_theirs = type(pipeline).__module__.startswith("diffusers.")
    parts = getattr(pipeline, "components", None) if is_theirs else None
    if not isinstance(parts, Mapping):
        return
    for kind in ("text_encoder", "tokenizer"):
        names = [name for name in parts if name.startswith(kind)]
        if names and all(parts[name] is None for name in names):
            raise ConfigError(messages.NO_TEXT_ENCODER, pipeline=type(pipeline).__name__, name=names[0])


class Caller:
    """Calls a pipeline with prompts, each with its own noise, and only with arguments that its call takes.

    Args:
        seed: of the first prompt's noise; the others count on from it.
        batch_size: the most prompts in a call.
        pictures: from what the call returns to one array a prompt, (height, width, channels) in 0…1, a clip with its
            frames first; None if the result is read as pipelines usually return it.
        known: further names that a mistyped argument may have meant.
    """

    def __init__(
        self,
        pipeline: Any,
        prompts: Sequence[str],
        *,
        seed: int,
        call: Mapping[str, Any],
        batch_size: int = 1,
        pictures: Callable[[Any], Any] | None = None,
        known: Sequence[str] = (),
    ) -> None:
        # Read now, because reuse and other libraries replace the call later.
        self.signature = Signature.of(pipeline)
        self.signature.check(call, known=known)
        _check_encoders(pipeline)
        self._takes_generator = self.signature.takes("generator")
        if not self._takes_generator:
            if batch_size > 1:
                raise ConfigError(messages.CALL_WITHOUT_GENERATOR, owner=self.signature.owner, got=batch_size)
            logger.info("%s takes no generator; torch's own seed is set for each call", self.signature.owner)
        self._pipeline, self._prompts, self._seed = pipeline, prompts, seed
        self._call, self._pictures = dict(call), pictures

    def pictures(self, numbers: Sequence[int], *, strict: bool, **extra: Any) -> list[Picture]:
        """One picture for each of these prompts, all in one call.

        Args:
            strict: whether values outside of 0…1 are refused or clipped.
        """
        if self.signature.takes("output_type"):
            extra["output_type"] = "np"
        result = self.result(numbers, **extra)
        made = result if self._pictures is None else self._pictures(result)
        return pictures_of(
            made, len(numbers), where=self.signature.owner, strict=strict, given=self._pictures is not None
        )

    def result(self, numbers: Sequence[int], **extra: Any) -> Any:
        """What one call with these prompts returns."""
        call: dict[str, Any] = {**self._call, **extra}
        prompts: Any = [self._prompts[number] for number in numbers]
        generators: Any = [torch.Generator().manual_seed(self._seed + number) for number in numbers]
        if len(numbers) == 1:
            prompts, generators = prompts[0], generators[0]
        else:
            # Beside a list of prompts, pipelines take a list of negative prompts.
            texts = [name for name in call if name.startswith("negative_prompt") and isinstance(call[name], str)]
            call |= {name: [call[name]] * len(numbers) for name in texts}
        if self._takes_generator:
            return self._pipeline(prompt=prompts, generator=generators, **call)
        if len(numbers) > 1:
            raise ConfigError(f"{self.signature.owner}: its call takes no generator; its prompts must come one by one")
        with torch.random.fork_rng():
            torch.manual_seed(self._seed + numbers[0])
            return self._pipeline(prompt=prompts, **call)


def is_modular(pipeline: Any) -> bool:
    """Whether it is a `ModularPipeline` of diffusers, which older versions do not have."""
    return any(each.__name__ == "ModularPipeline" for each in type(pipeline).__mro__)


def refuse_reserved(where: str, call: Iterable[str], **also: str) -> None:
    """Refuse arguments that the library sets itself."""
    reserved = {**RESERVED, **also}
    for name in call:
        if name in reserved:
            raise ConfigError(f"{where}({name}=…): {name} is set by {where} itself: {reserved[name]}; leave it out")


def check_prompts(place: str, prompts: object, *, least: int = 1, why: str = "") -> None:
    """Refuse what is no list of so many texts at least.

    Args:
        place: where they were given, for the error.
        why: follows the number, in words.
    """
    given = "one text" if isinstance(prompts, str) else f"a {type(prompts).__name__}"
    if isinstance(prompts, Sequence) and not isinstance(prompts, str):
        others = [type(each).__name__ for each in prompts if not isinstance(each, str)]
        if not others and len(prompts) >= least:
            return
        given = f"a {others[0]} among them" if others else f"{len(prompts)}"
    number = ("one text", "two texts")[least - 1]
    raise ConfigError(f"{place}(prompts=…): prompts must be a list of at least {number}{why}, got {given}")
