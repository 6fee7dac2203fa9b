"""A full run that is measured: every step computes, and copies of its outputs and latents are kept."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.base.validation import in_words
from omnireuse.forecasters import Hold
from omnireuse.hooks.regions.step import kinds_of
from omnireuse.hooks.run import DenoiserCall, Region, Run
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.planning.path import copied
from omnireuse.policies import Never

__all__ = ["FULL", "Keeper", "RecordedStep", "Recording"]

logger = logging.getLogger("omnireuse")

FULL = Strategy(policy=Never(), forecaster=Hold())
"""Computes every step."""
MOST_BYTES = 4 << 30
"""Most bytes that the recording of one call keeps. A call that needs more is not tuned."""
ON_DEVICE = 256 << 20
"""Recordings of more bytes are kept on the host."""


@dataclass(kw_only=True)
class RecordedStep:
    """One step of a full run.

    Attributes:
        calls: place of the denoiser among the pipeline's, and what it returned, for each call.
        given: arguments of the scheduler's step beside the output and the latents.
        output: what the scheduler was given.
        sample: the latents before the step.
        latents: the latents that the step returned.
    """

    calls: list[tuple[int, Any]] = field(default_factory=list)
    given: Mapping[str, Any] = field(default_factory=dict)
    output: torch.Tensor | None = None
    sample: torch.Tensor | None = None
    latents: torch.Tensor | None = None


class Keeper:
    """What becomes of keeping the values of one run. An error in it ends the keeping and not the run.

    Args:
        is_bounded: whether at most `MOST_BYTES` are kept.
    """

    def __init__(self, *, is_bounded: bool) -> None:
        self.failure: str | None = None
        """Why nothing can be learnt from the run; None as long as something can."""
        self.is_permanent = False
        """Whether other runs of this configuration would fail alike."""
        self.device: torch.device | None = None
        """Where values are kept; None for where they are."""
        self._is_bounded = is_bounded

    def fail(self, why: str, *, is_permanent: bool) -> None:
        """End it."""
        self.failure, self.is_permanent = why, is_permanent

    def keep(self, note: Callable[..., None], *values: Any) -> None:
        """Note values, as long as something can be learnt."""
        if self.failure is not None:
            return
        try:
            note(*values)
        except Exception as error:  # the picture must not fail because measuring it does
            why = in_words(error)
            logger.warning("measuring ended within a picture, which goes on: %s", why)
            self.fail(why, is_permanent=False)

    def choose_device(self, needed: int) -> None:
        """Choose where so many bytes are kept, or end it where they are too many."""
        if self._is_bounded and needed > MOST_BYTES:
            self.fail(
                f"measuring would keep {needed / 2**30:.1f} GiB, and at most {MOST_BYTES / 2**30:.0f} GiB are kept",
                is_permanent=True,
            )
        elif needed > ON_DEVICE:
            self.device = torch.device("cpu")


class Recording(Region, Keeper):
    """Computes every call of one run, and keeps copies of its values.

    Args:
        scheduler: of the run; a copy is kept as it is before the first step.
        total: steps of the run.
        keeps: whether anything is kept.
        is_bounded: whether at most `MOST_BYTES` are kept.
        calls_may_change: whether steps may have other calls than the first, as where guidance ends on the way.
        inner: takes the calls, and computes every one; None where the strategy is `FULL`.

    Attributes:
        levels: noise level of each step so far, whether values are kept or not.
    """

    def __init__(
        self,
        scheduler: Any,
        total: int,
        *,
        keeps: bool = True,
        is_bounded: bool = True,
        calls_may_change: bool = False,
        inner: Region | None = None,
    ) -> None:
        super().__init__(is_bounded=is_bounded)
        self.failure = None if keeps else "another thread is measuring"
        self.steps: list[RecordedStep] = []
        self.scheduler: Any = None
        self.total = total
        self._scheduler, self._step = scheduler, RecordedStep()
        self._calls_may_change, self._inner = calls_may_change, inner
        self.levels: list[NoiseLevel] = []

    @property
    def is_whole(self) -> bool:
        """Whether all steps of the run were kept."""
        return self.failure is None and len(self.steps) == self.total and self.steps[-1].latents is not None

    def call(self, call: DenoiserCall) -> Any:
        """The computed output itself."""
        output = call.compute() if self._inner is None else self._inner.call(call)
        self.keep(self._note_call, call, output)
        return output

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The output itself."""
        self.levels.append(run.generation.level)
        if self._inner is None:
            run.generation.pass_by(replace(run.generation.decide(), reason="measuring"))
        self.keep(self.note_step, run.given, output, sample)
        return output

    def stepped(self, run: Run, latents: torch.Tensor | None) -> None:
        """Note the latents that the step returned."""
        self.keep(self.note_latents, latents)

    def undo(self) -> None:
        """Take back what the inner region put between objects."""
        if self._inner is not None:
            self._inner.undo()

    def fail(self, why: str, *, is_permanent: bool) -> None:
        """End the recording, and drop what was kept."""
        super().fail(why, is_permanent=is_permanent)
        self.steps.clear()
        self.scheduler, self._step = None, RecordedStep()

    def _note_call(self, call: DenoiserCall, output: Any) -> None:
        if (kinds := kinds_of(call, output)) > 1:
            self.fail(f"{call.model} returns {kinds} kinds of latents", is_permanent=True)
        else:
            self.note_output(call.denoiser, output)

    def note_output(self, denoiser: int, output: Any) -> None:
        """Note what a denoiser, by its place, returned at the present step."""
        self._step.calls.append((denoiser, copied(output)))

    def note_step(self, given: Mapping[str, Any], output: torch.Tensor, sample: torch.Tensor) -> None:
        """Note what the scheduler's step is about to get; its calls were noted before."""
        step, self._step = self._step, RecordedStep()
        if not self.steps:
            self.scheduler = copy.deepcopy(self._scheduler)
            self._choose_device(step, output, sample)
        elif not self._calls_may_change and _places(step) != _places(self.steps[0]):
            self.fail(
                f"step {len(self.steps)} has other calls of the denoisers than the first ({len(step.calls)} and "
                f"{len(self.steps[0].calls)}): guidance or the denoiser changes on the way",
                is_permanent=True,
            )
        if self.failure is not None:
            return
        step.given = {name: each for name, each in given.items() if name not in ("model_output", "sample")}
        step.output, step.sample = self._kept(output), self._kept(sample)
        if self.device is not None:
            step.calls = [(place, pytree.tree_map(self._moved, each)) for place, each in step.calls]
        self.steps.append(step)

    def note_latents(self, latents: torch.Tensor | None) -> None:
        """Note the latents that the scheduler's step returned."""
        if latents is None:
            self.fail("the scheduler's step returns no latents", is_permanent=True)
        else:
            self.steps[-1].latents = self._kept(latents)

    def _choose_device(self, step: RecordedStep, output: torch.Tensor, sample: torch.Tensor) -> None:
        leaves = [leaf for _, each in step.calls for leaf in pytree.tree_leaves(each) if isinstance(leaf, torch.Tensor)]
        self.choose_device(self.total * sum(each.nbytes for each in (*leaves, output, sample, sample)))

    def _kept(self, value: torch.Tensor) -> torch.Tensor:
        # Copies: engines overwrite one buffer at every step.
        return value.detach().clone() if self.device is None else value.detach().to(self.device, copy=True)

    def _moved(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, torch.Tensor) else value


def _places(step: RecordedStep) -> list[int]:
    return [place for place, _ in step.calls]
