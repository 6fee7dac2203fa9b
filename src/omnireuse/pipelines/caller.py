"""A pipeline, prompts and noise: how its call is made, and what pictures come of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from omnireuse.errors import ConfigError
from omnireuse.pipelines.pictures import Picture, pictures_of
from omnireuse.pipelines.signature import Signature

__all__ = ["Caller", "without_bar"]

logger = logging.getLogger("omnireuse")


class Caller:
    """Calls a pipeline with prompts, each with a noise of its own, and only with arguments that its call takes.

    Args:
        pipeline: any pipeline whose call takes a prompt and a step count.
        prompts: all that it will be called with.
        seed: of the first prompt's noise; the others count on from it.
        call: further arguments of every call.
        batch_size: the most prompts of a call.
        pictures: from what the call returns to one array a prompt, (height, width, channels) in 0…1, a clip with its
            frames first; None where the result is read as pipelines usually return it.
        known: further names that a mistyped argument may have meant.

    Raises:
        ConfigError: a call that takes no prompt or step count, or no generator with more than one prompt a call.
        UnknownNameError: an argument that the call does not take.
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
        # Now, since reuse and other libraries stand before the call later.
        self.signature = Signature.of(pipeline)
        self.signature.check(call, known=known)
        self._takes_generator = self.signature.takes("generator")
        if not self._takes_generator:
            if batch_size > 1:
                raise ConfigError(
                    f"{self.signature.owner}: its call takes no generator, so prompts of one call cannot have a noise "
                    f"of their own; batch_size must be 1, got {batch_size}"
                )
            logger.info("%s takes no generator; torch's own seed is set for each call", self.signature.owner)
        self._pipeline, self._prompts, self._seed = pipeline, prompts, seed
        self._call, self._pictures = dict(call), pictures

    def pictures(self, numbers: Sequence[int], *, strict: bool, **extra: Any) -> list[Picture]:
        """One picture for each of these prompts, all in one call.

        Args:
            numbers: places of the prompts.
            strict: whether values outside of 0…1 are refused, or else clipped.
            extra: arguments of this call alone.

        Raises:
            ConfigError: a result that cannot safely be read as pictures.
        """
        asked: dict[str, Any] = {**self._call, **extra}
        prompts: Any = [self._prompts[number] for number in numbers]
        generators: Any = [torch.Generator().manual_seed(self._seed + number) for number in numbers]
        if len(numbers) == 1:
            prompts, generators = prompts[0], generators[0]
        else:
            # Pipelines want a list beside a list.
            listed = [name for name in asked if name.startswith("negative_prompt") and isinstance(asked[name], str)]
            asked |= {name: [asked[name]] * len(numbers) for name in listed}
        if self.signature.takes("output_type"):
            asked["output_type"] = "np"
        if self._takes_generator:
            result = self._pipeline(prompt=prompts, generator=generators, **asked)
        else:
            with torch.random.fork_rng():
                torch.manual_seed(self._seed + numbers[0])
                result = self._pipeline(prompt=prompts, **asked)
        made = result if self._pictures is None else self._pictures(result)
        return pictures_of(
            made, len(numbers), where=self.signature.owner, strict=strict, given=self._pictures is not None
        )


@contextmanager
def without_bar(pipeline: Any) -> Iterator[None]:
    """Without the progress bar that diffusers shows of every run; its settings are as before afterwards."""
    name = "_progress_bar_config"
    before = [(each, vars(each).get(name)) for each in _with_bars(pipeline)]
    try:
        for each, settings in before:
            each.set_progress_bar_config(**{**(settings or {}), "disable": True})
        yield
    finally:
        for each, settings in before:
            vars(each).pop(name, None)
            if settings is not None:
                vars(each)[name] = settings


def _with_bars(holder: Any) -> Iterator[Any]:
    """The pipeline, and those blocks of a modular one that show bars, however deep."""
    if hasattr(holder, "set_progress_bar_config"):
        yield holder
    blocks = getattr(holder, "_blocks", holder)
    for block in dict(getattr(blocks, "sub_blocks", None) or {}).values():
        yield from _with_bars(block)
