"""What `calibrate` was asked, checked before anything runs."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from omnireuse.diffusion.calibration.profile import FEWEST_HELD_OUT
from omnireuse.errors import ConfigError
from omnireuse.pipelines.call import refuse_reserved

__all__ = ["BUDGETS", "STEPS", "check_call", "check_prompts", "checked_budgets", "checked_steps", "number_searched"]

logger = logging.getLogger("omnireuse")

STEPS = 28
"""Denoising steps of a run where nobody says otherwise."""
BUDGETS = (1.5, 2.0, 2.5, 3.0, 4.0)
"""Steps over computed steps that a search serves where nobody says which."""


def checked_steps(steps: int | None, num_inference_steps: int | None, call: Mapping[str, Any]) -> int:
    """Denoising steps of a run.

    Raises:
        ConfigError: two different numbers, or an argument of the call that is set by the search itself.
    """
    refuse_reserved("calibrate", call)
    if steps is not None and num_inference_steps is not None and steps != num_inference_steps:
        raise ConfigError(
            f"calibrate(steps={steps!r}, num_inference_steps={num_inference_steps!r}): both say how many denoising "
            "steps a run has; give one of them"
        )
    given = steps if steps is not None else num_inference_steps
    found = STEPS if given is None else given
    _at_least("steps" if steps is not None else "num_inference_steps", found, 4)
    return found


def check_call(function: Callable[..., Any], call: Iterable[str]) -> None:
    """Refuse arguments of the pipeline's call that the function would take for its own.

    Raises:
        ConfigError: an option of the function, or an argument that it sets itself.
    """
    refuse_reserved("calibrate", call)
    own = [name for name in call if name in inspect.signature(function).parameters and name != "num_inference_steps"]
    if own:
        raise ConfigError(
            f"calibrate(--call): {own[0]} is an option of the search, not an argument of the pipeline; see omnireuse "
            "calibrate --help"
        )


def check_prompts(prompts: Sequence[str]) -> None:
    """Refuse what is not a list of texts.

    Raises:
        ConfigError: another kind of thing, or fewer than two.
    """
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        given = "one text" if isinstance(prompts, str) else f"a {type(prompts).__name__}"
        raise ConfigError(f"calibrate(prompts=…): prompts must be a list of at least two texts, got {given}")
    others = [type(each).__name__ for each in prompts if not isinstance(each, str)]
    if len(prompts) < 2 or others:
        given = f"a {others[0]} among them" if others else f"{len(prompts)}"
        raise ConfigError(
            f"calibrate(prompts=…): prompts must be a list of at least two texts, one of which is held out, got {given}"
        )


def number_searched(prompts: int, held_out: float) -> int:
    """How many of so many prompts are searched with; a warning where the others are too few for a promise.

    Raises:
        ConfigError: a share outside of (0, 1).
    """
    if not isinstance(held_out, (int, float)) or not 0 < held_out < 1:
        raise ConfigError(f"calibrate(held_out={held_out!r}): held_out must be a share above 0 and below 1")
    unseen = _unseen(prompts, held_out)
    if unseen < FEWEST_HELD_OUT:
        logger.warning(
            "calibrate: with %d of %d prompts held out, the profile promises no quality, which takes %d: give at least "
            "%d prompts with held_out=%g",
            unseen,
            prompts,
            FEWEST_HELD_OUT,
            next(number for number in count(2) if _unseen(number, held_out) >= FEWEST_HELD_OUT),
            held_out,
        )
    if prompts - unseen == 1:
        logger.warning("calibrate: one prompt to search with cannot tell a gain from noise; give more prompts")
    return prompts - unseen


def _unseen(prompts: int, held_out: float) -> int:
    return min(max(1, round(held_out * prompts)), prompts - 1)


def checked_budgets(
    computed_steps: Iterable[int] | None, steps: int, margin: float, seconds: float | None, **counts: int
) -> list[int]:
    """The budgets in rising order, those of `BUDGETS` where None is given.

    Args:
        counts: whole numbers of at least 1, by name; "workers" and "seed" may be 0.

    Raises:
        ConfigError: a value out of range.
    """
    for name, value in counts.items():
        _at_least(name, value, 0 if name in ("workers", "seed") else 1)
    if seconds is not None and (not isinstance(seconds, (int, float)) or not seconds >= 0):
        raise ConfigError(f"calibrate(seconds={seconds!r}): seconds must be a number of at least 0")
    if not isinstance(margin, (int, float)) or not 0 <= margin < math.inf:
        raise ConfigError(f"calibrate(margin={margin!r}): margin must be a finite number of at least 0")
    if computed_steps is None:
        return sorted({max(int(steps / budget), 2) for budget in BUDGETS})
    if isinstance(computed_steps, int):
        raise ConfigError(
            f"calibrate(computed_steps={computed_steps!r}): computed_steps must be a list of budgets to search for, "
            f"got one number; give computed_steps=[{computed_steps!r}]"
        )
    if isinstance(computed_steps, str) or not isinstance(computed_steps, Iterable):
        raise ConfigError(
            f"calibrate(computed_steps=…): must be a list of whole numbers, got a {type(computed_steps).__name__}"
        )
    wanted = set(computed_steps)
    for number in wanted:
        if not isinstance(number, int) or not 2 <= number <= steps:
            raise ConfigError(
                f"calibrate(computed_steps={number!r}): each must be a whole number from 2 to steps={steps}"
            )
    if not wanted:
        raise ConfigError("calibrate(computed_steps=[]): must hold at least one budget, or be left out")
    return sorted(wanted)


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"calibrate({name}={value!r}): {name} must be a whole number of at least {least}")
