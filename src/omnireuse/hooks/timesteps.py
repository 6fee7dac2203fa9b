"""The timestep of a denoiser call, and the steps that follow from it if no scheduler tells them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch

from omnireuse.base.validation import is_number
from omnireuse.hooks.denoisers import parameters_of, unwrapped

__all__ = ["NAMES", "StepsByTimestep", "given_timestep", "timestep_of", "warn_without_timestep"]

logger = logging.getLogger("omnireuse")

NAMES = ("timestep", "timesteps", "t", "sigma", "noise_level")
"""Names of the argument, the first found counts."""


def given_timestep(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The argument that a denoiser is given as its timestep, by position or by name; None if there is none."""
    # The class's own signature counts: hooks replace that of an instance.
    values = {**dict(zip(parameters_of(type(unwrapped(module)).forward), args, strict=False)), **kwargs}
    for name in NAMES:
        given = values.get(name)
        if (isinstance(given, torch.Tensor) and given.numel()) or is_number(given):
            return given
    return None


def timestep_of(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """The timestep that a denoiser is called with, as a number; None if there is none.

    Of several (one for each sample or token) it is the largest: tokens that are given and not denoised have 0.

    Cost: one read of the device.
    """
    given = given_timestep(module, args, kwargs)
    return float(given.max()) if isinstance(given, torch.Tensor) else None if given is None else float(given)


@lru_cache(maxsize=256)
def warn_without_timestep(model: str) -> None:
    """Warn once for each class that nothing is reused, because its steps are not known."""
    logger.warning(
        "%s is called without a timestep (looked for %s), and no scheduler tells the steps: nothing is reused; "
        "enable reuse on a pipeline with its scheduler, or name the argument in the signature of forward",
        model,
        ", ".join(NAMES),
    )


class StepsByTimestep:
    """Steps and runs, told apart by the timesteps of the calls in one thread.

    Within a run timesteps change in one direction, and a run begins when they jump back. They fall as a rule. The
    first change after an announcement shows the direction. Without one, two changes in a row against the assumed
    direction reverse it.
    """

    def __init__(self) -> None:
        self.last: float | None = None
        """Timestep of the last call; None before the first of a run."""
        self._rises = False
        self._is_announced = False
        self._against = 0

    def announce(self) -> None:
        """Announce that the next call begins a run."""
        self.last, self._is_announced = None, True

    def see(self, now: float) -> Literal["same step", "next step", "next run"]:
        """The place of a call with this timestep."""
        before, self.last = self.last, now
        if before is None:
            return "next run"
        if now == before:
            return "same step"
        if self._is_announced:
            self._rises, self._is_announced = now > before, False
        if (now > before) == self._rises:
            self._against = 0
            return "next step"
        self._against += 1
        if self._against == 2:
            self._rises, self._against = not self._rises, 0
        return "next run"
