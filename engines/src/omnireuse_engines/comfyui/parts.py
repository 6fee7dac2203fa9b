"""Runs that are a part of a denoising: two samplers in a row, of which the first leaves noise for the second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse import Generation
from omnireuse_engines.comfyui.calls import SamplerCall, content_of, sampler_name
from omnireuse_engines.comfyui.noise import NEAR

__all__ = ["Part", "SplitRuns", "leaves_noise", "part_of", "percent_of"]

_EDGE = 0.01
"""Share of the denoising that may be missing at either end of a whole run: some schedules end above no noise."""
_HALVINGS = 24


@dataclass(frozen=True, kw_only=True)
class Part:
    """The place of a run's steps in its denoising.

    Attributes:
        sigmas: of all steps, and the one at which the last ends. Those that other samplers make are known if they
            were made before, and else spread evenly over what is left of the denoising.
        first: number of steps before the run's own.
        own: number of the run's own steps.
        begins_late: whether the latents were denoised in part before.
    """

    sigmas: tuple[float, ...]
    first: int
    own: int
    begins_late: bool

    @property
    def ends_early(self) -> bool:
        """Whether noise is left for another sampler."""
        return self.first + self.own < len(self.sigmas) - 1

    @property
    def to_compute(self) -> frozenset[int]:
        """The run's last step if noise is left. No later step would correct the forecasts before it, as another
        model may go on. Solvers with two calls a step make the second at the next step's sigma."""
        last = self.first + self.own - 1
        return frozenset({last, last + 1}) if self.ends_early else frozenset()


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """The end of a run that has left noise."""

    part: Part
    latents: torch.Tensor
    like: tuple[Any, ...]
    generation: Generation

    def is_before(self, call: SamplerCall, like: tuple[Any, ...]) -> bool:
        """Whether a run goes on where this one has ended."""
        made, given = self.latents, call.latent
        ended, begins = self.part.sigmas[self.part.first + self.part.own], float(call.sigmas[0])
        if like != self.like or made.shape != given.shape or abs(ended - begins) > NEAR * begins or call.noise.any():
            return False
        return torch.equal(made.to(given), given)


class SplitRuns:
    """Knows the latest run of one model if it has left noise, so that the next can go on with its memory."""

    def __init__(self) -> None:
        self._ended: _Ended | None = None

    def place(self, guider: Any, call: SamplerCall) -> tuple[Part | None, Generation | None]:
        """The place of a run's steps, and the state of the part before it; None for a run that is a whole denoising,
        and if nothing is known of a part before.

        Cost: if one of both is a part, some values of each conditioning are read.
        """
        before, model_sampling = self._ended, guider.model_patcher.get_model_object("model_sampling")
        if before is not None and before.is_before(call, _like_of(guider, call)):
            return part_of(call, model_sampling, before.part), before.generation
        self._ended = None
        return part_of(call, model_sampling, None), None

    def end(self, guider: object, call: SamplerCall, part: Part, latents: torch.Tensor, generation: Generation) -> None:
        """Keep what a run remembers that has left noise, until another run begins elsewhere."""
        like = _like_of(guider, call)
        self._ended = _Ended(part=part, latents=latents, like=like, generation=generation.copy())


def _like_of(guider: object, call: SamplerCall) -> tuple[Any, ...]:
    """The common things of two parts of a denoising: the solver, guidance and conditions."""
    options = content_of(getattr(call.sampler, "extra_options", {}))
    return sampler_name(call.sampler), options, getattr(guider, "cfg", None), content_of(call.conds)


def part_of(call: SamplerCall, model_sampling: Any, before: Part | None) -> Part | None:
    """The place of a run's steps; None for a run that is a whole denoising, with noise of its own.

    Args:
        before: the part that this run goes on from, if that is known.
    """
    own = tuple(call.sigmas.tolist())
    has_noise = bool(call.noise.any()) if before is None else False
    if len(own) < 2 or own[0] <= 0 or (has_noise and own[-1] <= 0):
        return None
    begin, end = (percent_of(sigma, model_sampling) for sigma in (own[0], own[-1]))
    begins_late, ends_early = not has_noise and begin > _EDGE, leaves_noise(own, model_sampling)
    if end <= begin or not (begins_late or ends_early):
        return None
    earlier = () if before is None else before.sigmas[: before.first + before.own]
    later: tuple[float, ...] = ()
    if ends_early:
        steps = len(own) - 1 + len(earlier)
        origin = begin if before is None else percent_of(earlier[0], model_sampling)
        left = max(round(steps * (1 - end) / (end - origin)), 1)
        later = tuple(
            float(model_sampling.percent_to_sigma(end + (1 - end) * step / left)) for step in range(1, left + 1)
        )
    return Part(sigmas=(*earlier, *own, *later), first=len(earlier), own=len(own) - 1, begins_late=begins_late)


def leaves_noise(sigmas: Sequence[float], model_sampling: object) -> bool:
    """Whether a run with these sigmas ends before the denoising does."""
    return sigmas[-1] > 0 and percent_of(sigmas[-1], model_sampling) < 1 - _EDGE


def percent_of(sigma: float, model_sampling: Any) -> float:
    """The share of a denoising, in [0, 1], after which this sigma is reached, as ComfyUI's ``start_percent`` counts."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(model_sampling.percent_to_sigma(middle)) > sigma * (1 + NEAR):
            low = middle
        else:
            high = middle
    return high
