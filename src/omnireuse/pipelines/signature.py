"""Which arguments the call of a pipeline takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omnireuse.errors import ConfigError, UnknownNameError

__all__ = ["RESERVED", "Signature", "is_modular", "refuse_reserved"]

RESERVED = {
    "prompt": "the prompts are given as a list of their own",
    "generator": "every prompt has a noise of its own, which seed= decides",
    "output_type": "pictures are compared as arrays",
    "return_dict": "the result is read in whatever form it comes; pictures= reads one of your own",
}
"""Arguments of a call that are set here, and why."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The arguments of a pipeline's call.

    Attributes:
        owner: class of the pipeline.
        defaults: by name; `inspect.Parameter.empty` where there is none.
        takes_any: whether it has a ``**kwargs``, so that nobody can tell which names it knows.
    """

    owner: str
    defaults: Mapping[str, Any]
    takes_any: bool

    @classmethod
    def of(cls, pipeline: Any) -> Signature:
        """That of this pipeline; a modular one says itself what its blocks take."""
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
        """Refuse a pipeline that cannot be run with prompts, and arguments that it does not take.

        Args:
            names: of arguments.
            known: further names that a mistyped one may have meant.

        Raises:
            ConfigError: a call without prompt or step count.
            UnknownNameError: an argument that the call does not take.
        """
        for name in ("prompt", "num_inference_steps"):
            if not self.takes(name):
                raise ConfigError(
                    f"{self.owner}: its call must take {name}, but it takes {', '.join(self.defaults) or 'nothing'}; "
                    "give a function that makes a pipeline whose call takes it"
                )
        for name in names:
            if not self.takes(name):
                raise UnknownNameError(f"argument of {self.owner}", name, {*self.defaults, *known} - RESERVED.keys())


def is_modular(pipeline: Any) -> bool:
    """Whether it is a `ModularPipeline` of diffusers, which older versions do not have."""
    return any(each.__name__ == "ModularPipeline" for each in type(pipeline).__mro__)


def refuse_reserved(where: str, call: Iterable[str], **also: str) -> None:
    """Refuse arguments that are set here.

    Args:
        where: the function that was called.
        call: names of the arguments that were given for the pipeline's call.
        also: further names that are set there, and why.

    Raises:
        ConfigError: one of those.
    """
    reserved = {**RESERVED, **also}
    for name in call:
        if name in reserved:
            raise ConfigError(f"{where}({name}=…): {name} is set by {where} itself: {reserved[name]}; leave it out")
