"""The inputs and the output of nodes: a plan, the share of a denoising that reuses, and the steps as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse import Profile, Strategy
from omnireuse.arguments.targets import strategy_for
from omnireuse.base.validation import is_number
from omnireuse.errors import ConfigError
from omnireuse.profiles.target import Target
from omnireuse.tuning.loops import RequestPlan
from omnireuse_engines.comfyui.noise import NEAR

__all__ = ["MOST", "Span", "plan_for", "plan_of_profile", "step_picture"]

MOST = 20.0
"""The largest `speedup`."""

_UNCHECKED = "it was made with diffusers, and a model of ComfyUI cannot be compared with the profile's"

_COMPUTED = (0.05, 0.49, 0.42)
_FORECAST = (0.78, 0.80, 0.83)
_BACKGROUND = (1.0, 1.0, 1.0)
_WIDTH, _HEIGHT = 720, 48


def plan_for(*, speedup: float = 0.0, tolerance: float = 0.0) -> RequestPlan:
    """The plan for one target, or the default.

    Args:
        speedup: all steps divided by computed steps, in [1, `MOST`]; 0 if it is not the target.
        tolerance: relative error of the final latents, above 0 and below 1; 0 if it is not the target.
    """
    for name, value, is_right, must in (
        ("speedup", speedup, is_number(speedup) and (not speedup or 1 <= speedup <= MOST), f"from 1 to {MOST:g}"),
        ("tolerance", tolerance, is_number(tolerance) and 0 <= tolerance < 1, "above 0 and below 1"),
    ):
        if not is_right:
            raise ConfigError(
                f"Omnireuse({name}={value!r}): {name} must be a number {must}, or 0 to leave it out, got {value!r}"
            )
    if speedup and tolerance:
        raise ConfigError(
            f"Omnireuse(speedup={speedup:g}, tolerance={tolerance:g}): speedup must be 0 if tolerance is given, got "
            f"{speedup:g}; set one of them to 0"
        )
    target = Target.of("Omnireuse", speedup=speedup or None, tolerance=tolerance or None)
    if not target:
        return RequestPlan(strategy=Strategy.default(), name="default")
    chosen = strategy_for(None, target, region="step")
    # ComfyUI's model computes all pictures of a batch or none.
    return RequestPlan(strategy=replace(chosen.strategy, per_sample=False), name=chosen.name)


def plan_of_profile(path: str | os.PathLike[str], *, speedup: float = 0.0) -> RequestPlan:
    """A plan of a profile, which `omnireuse.calibrate` has made with diffusers.

    A model of ComfyUI cannot be compared with the profile's, so nothing is promised.

    Args:
        speedup: so many times fewer steps, ≥ 1; 0 for 2.
    """
    chosen = Profile.from_pretrained(path).choose(Target.of("Omnireuse", speedup=speedup or None))
    promise = chosen.promise
    if promise is not None and promise.but is None:
        promise = replace(promise, but=_UNCHECKED)
    return RequestPlan(strategy=chosen.strategy, name=chosen.name, promise=promise)


@dataclass(frozen=True, kw_only=True)
class Span:
    """The share of a denoising in which steps may be reused, as ComfyUI's ``start_percent`` and ``end_percent``.

    Args:
        start: reuse begins after this share, in [0, 1).
        end: reuse ends after this share, above `start` and at most 1.
    """

    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.start) and is_number(self.end) and 0 <= self.start < self.end <= 1):
            raise ConfigError(
                f"Omnireuse(start_percent={self.start!r}, end_percent={self.end!r}): start_percent must be at least 0 "
                "and below end_percent, which is at most 1; 0 and 1 allow reuse everywhere"
            )

    @property
    def is_everything(self) -> bool:
        """Whether every step may be reused."""
        return (self.start, self.end) == (0.0, 1.0)

    def to_compute(self, sigmas: Sequence[float], model_sampling: Any) -> frozenset[int]:
        """The steps outside, which compute."""
        if self.is_everything:
            return frozenset()
        first, last = (float(model_sampling.percent_to_sigma(each)) for each in (self.start, self.end))
        first, last = first * (1 + NEAR), last * (1 + NEAR)
        return frozenset(step for step, sigma in enumerate(sigmas) if not last < sigma <= first)


def step_picture(shares: Sequence[float | None]) -> torch.Tensor:
    """A strip with a box for each step: dark if it was computed, grey if it was forecast, in between if only
    some of its calls were computed.

    Args:
        shares: share of each step's calls that computed, in [0, 1] (`Summary.last_run`); None for a step without any.

    Returns:
        Shape (1, height, width, 3), float32 in [0, 1].
    """
    picture = torch.tensor(_BACKGROUND).repeat(1, _HEIGHT, _WIDTH, 1)
    for step, share in enumerate(shares):
        left, right = (round(place * _WIDTH / len(shares)) for place in (step, step + 1))
        if share is not None:
            colour = torch.lerp(torch.tensor(_FORECAST), torch.tensor(_COMPUTED), share)
            picture[:, :, left : max(right - 2, left + 1)] = colour
    return picture
