"""The arguments of `calibrate`, checked before anything runs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from omnireuse.errors import ConfigError
from omnireuse.pipelines.call import refuse_reserved
from omnireuse.profiles.profile import FEWEST_HELD_OUT

__all__ = [
    "FIT_PROMPTS",
    "STEPS",
    "Options",
    "checked_budgets",
    "checked_prompts",
    "checked_steps",
    "held_out_last",
    "number_searched",
]

logger = logging.getLogger("omnireuse")

T = TypeVar("T")

STEPS = 28
"""Default number of denoising steps of a run."""
BUDGETS = (1.5, 2.0, 2.5, 3.0, 4.0)
"""Default budgets: steps over computed steps."""
FIT_PROMPTS = 5
"""Default number of prompts that schedules are tried on, and their weights fitted: a few numbers for each step need no
more."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is searched, on which prompts. The first `for_search` prompts are for the search, the others held out.

    Raises:
        ConfigError: a value out of range.
    """

    prompts: Sequence[str]
    for_search: int
    steps: int
    budgets: Sequence[int]
    batch_size: int
    fit_prompts: int
    seed: int
    call: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in ("batch_size", "fit_prompts"):
            _check_whole(name, getattr(self, name), 1)
        _check_whole("seed", self.seed, 0)

    @property
    def text(self) -> str:
        """Steps and prompts in words."""
        return f"{self.steps} steps, {self.for_search} prompts searched with, {self.held_out} held out"

    @property
    def held_out(self) -> int:
        """Number of held-out prompts."""
        return len(self.prompts) - self.for_search

    @property
    def command(self) -> str:
        """The call of `calibrate` that asks for this search, as Python."""
        chosen = {
            "steps": self.steps,
            "computed_steps": list(self.budgets),
            "held_out": round(self.held_out / len(self.prompts), 3),
            "batch_size": self.batch_size,
            "fit_prompts": self.fit_prompts,
            "seed": self.seed,
            **self.call,
        }
        return f"omnireuse.calibrate(pipe, prompts, {', '.join(f'{name}={value!r}' for name, value in chosen.items())})"

    @property
    def full_call(self) -> dict[str, Any]:
        """Arguments of a full run beside the prompts."""
        return {"num_inference_steps": self.steps, **self.call}

    @property
    def most_runs(self) -> float:
        """Most full runs of one prompt that the search takes; three trials of the smallest budget settle growth."""
        trial = min(-(-self.fit_prompts // self.batch_size) * self.batch_size, self.for_search)
        return (
            len(self.prompts)
            + ((sum(self.budgets) + 2 * self.budgets[0]) * trial + sum(self.budgets) * self.held_out) / self.steps
        )

    @property
    def prompts_digest(self) -> str:
        """Digest of all prompts."""
        return hashlib.sha256("\0".join(self.prompts).encode()).hexdigest()[:16]


def checked_steps(steps: int | None, num_inference_steps: int | None, call: Mapping[str, Any]) -> int:
    """Denoising steps of a run.

    Raises:
        ConfigError: two different numbers, or an argument of the call that `calibrate` sets itself.
    """
    refuse_reserved("calibrate", call)
    if steps is not None and num_inference_steps is not None and steps != num_inference_steps:
        raise ConfigError(
            f"calibrate(steps={steps!r}, num_inference_steps={num_inference_steps!r}): both say how many denoising "
            "steps a run has; give one of them"
        )
    name, given = ("num_inference_steps", num_inference_steps) if steps is None else ("steps", steps)
    found = STEPS if given is None else given
    _check_whole(name, found, 4)
    return found


def checked_prompts(prompts: Sequence[str]) -> list[str]:
    """The prompts.

    Raises:
        ConfigError: no list of texts, or fewer than two.
    """
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        given = "one text" if isinstance(prompts, str) else f"a {type(prompts).__name__}"
    elif others := [type(each).__name__ for each in prompts if not isinstance(each, str)]:
        given = f"a {others[0]} among them"
    elif len(prompts) < 2:
        given = f"{len(prompts)}"
    else:
        return list(prompts)
    raise ConfigError(
        f"calibrate(prompts=…): prompts must be a list of at least two texts, one of which is held out, got {given}"
    )


def held_out_last(prompts: Sequence[T], for_search: int) -> list[T]:
    """The prompts in an order in which the held-out ones come last: one out of each stretch of the list, as lists are
    often sorted by kind, and a promise must hold for all kinds."""
    unseen = len(prompts) - for_search
    chosen = {(2 * place + 1) * len(prompts) // (2 * unseen) for place in range(unseen)}
    return [
        *(each for place, each in enumerate(prompts) if place not in chosen),
        *(each for place, each in enumerate(prompts) if place in chosen),
    ]


def number_searched(prompts: int, held_out: float) -> int:
    """How many of the prompts are for the search. Warns where the others are too few for a promise.

    Raises:
        ConfigError: a share outside of (0, 1).
    """
    if not isinstance(held_out, (int, float)) or not 0 < held_out < 1:
        raise ConfigError(f"calibrate(held_out={held_out!r}): held_out must be a share above 0 and below 1")
    unseen = _number_held_out(prompts, held_out)
    if unseen < FEWEST_HELD_OUT:
        logger.warning(
            "calibrate: with %d of %d prompts held out, the profile promises no quality, which takes %d held-out "
            "prompts: give at least %d prompts with held_out=%g",
            unseen,
            prompts,
            FEWEST_HELD_OUT,
            next(number for number in count(2) if _number_held_out(number, held_out) >= FEWEST_HELD_OUT),
            held_out,
        )
    if prompts - unseen == 1:
        logger.warning("calibrate: one prompt to search with cannot tell a gain from noise; give more prompts")
    return prompts - unseen


def _number_held_out(prompts: int, held_out: float) -> int:
    return min(max(1, round(held_out * prompts)), prompts - 1)


def checked_budgets(computed_steps: Iterable[int] | None, steps: int) -> list[int]:
    """The budgets in rising order; those of `BUDGETS` for None.

    Raises:
        ConfigError: no list of whole numbers from 2 to `steps`.
    """
    if computed_steps is None:
        return sorted({max(int(steps / budget), 2) for budget in BUDGETS})
    given = computed_steps
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    budgets = list(given) if is_list else []
    if not budgets or not all(isinstance(number, int) and 2 <= number <= steps for number in budgets):
        raise ConfigError(
            f"calibrate(computed_steps={given!r:.60}): computed_steps must be a list of one or more budgets, each a "
            f"whole number from 2 to steps={steps}; give {f'[{given}]' if isinstance(given, int) else 'a list'}"
        )
    return sorted(set(budgets))


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"calibrate({name}={value!r}): {name} must be a whole number of at least {least}")
