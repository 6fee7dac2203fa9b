"""Which computed calls are full, and what `enable(references=…)` makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from omnireuse.base.validation import field_error, is_whole, kind_of
from omnireuse.errors import ConfigError, WrongTypeError
from omnireuse.hooks.denoisers import denoisers_of, forward_group, is_compiled_whole, unwrapped
from omnireuse.references.declared import OWN_CACHES, PIPELINES, declaration_of

__all__ = ["References", "plan_of"]


@dataclass(frozen=True, kw_only=True)
class References:
    """Which computed calls are full: all tokens compute, and keys and values of the references are kept. The others are
    lean: the target's and the text's tokens compute, and attend to what was kept. Lean calls are an approximation.

    Attributes:
        full_every: every so many computed calls of a branch one is full, ≥ 1; 1 for all of them. None makes no call
            full but the first and those of `full_steps`.
        full_steps: numbers of further steps whose calls are full, from 0.
        on_host: keep keys and values in the memory of the host.

    Raises:
        ConfigError: a value is out of range.
    """

    full_every: int | None = 4
    full_steps: Iterable[int] = field(default=())
    on_host: bool = False

    def __post_init__(self) -> None:
        if self.full_every is not None and not is_whole(self.full_every, 1):
            raise field_error(self, "full_every", "be a whole number ≥ 1 or None", self.full_every)
        steps = tuple(self.full_steps)
        if not all(is_whole(step, 0) for step in steps):
            raise field_error(self, "full_steps", "be numbers of steps, from 0", steps)
        object.__setattr__(self, "full_steps", frozenset(steps))

    def is_full(self, step: int, lean_calls: int) -> bool:
        """Whether a call is full.

        Args:
            step: that it belongs to, from 0.
            lean_calls: of the same branch since its last full call.
        """
        is_due = self.full_every is not None and lean_calls + 1 >= self.full_every
        return is_due or step in set(self.full_steps)


def plan_of(references: object, pipeline: Any, region: str | None, aims: Iterable[str] = ()) -> References | None:
    """The plan that is asked for; None if all calls are to be full.

    Args:
        references: None, True, False, "host", or a plan.
        region: what reuse skips; None where a named cache chooses it.
        aims: targets that are given, too.

    Raises:
        WrongTypeError: `references` is something else.
        ConfigError: the pipeline's denoiser gets no reference tokens, is not declared, or keeps them itself; or what is
            given beside it does not go with lean calls.
    """
    if references is None or references is False:
        return None
    where = f"enable(references={references!r:.60})"
    if references is not True and references != "host" and not isinstance(references, References):
        raise WrongTypeError(f"{where}: references must be None, True, False or 'host', got {kind_of(references)}")
    name, names = type(pipeline).__name__, {cls.__name__ for cls in type(pipeline).__mro__}
    denoisers, but, what = denoisers_of(pipeline), "", "references"
    if names & {*OWN_CACHES}:
        but = f"{name} keeps keys and values of its references itself"
    elif not names & {*PIPELINES} or not any(declaration_of(unwrapped(each)) for each in denoisers):
        but = f"the denoiser of {name} gets no reference tokens that are declared (known: {', '.join(PIPELINES)})"
    elif any(map(is_compiled_whole, denoisers)):
        but = f"the denoiser of {name} is compiled, and keys are kept by calls that are not"
    elif forward_group(denoisers) is not None:
        but = "several ranks share the denoiser's forward"
    elif region not in ("step", "call"):
        reuse = "a named cache" if region is None else f"region {region!r}"
        but, what = f"lean calls go with regions 'step' and 'call', got {reuse}", "one of the two"
    elif (aim := next(iter(aims), None)) is not None:
        but, what = f"nobody has measured {aim} with lean calls", "one of the two"
    if but:
        raise ConfigError(f"{where}: {but}; leave {what} out")
    return references if isinstance(references, References) else References(on_host=references == "host")
