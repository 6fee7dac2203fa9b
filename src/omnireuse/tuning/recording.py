"""A full run that is measured: every step is computed, and copies of its outputs and latents are kept."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.base.validation import in_words
from omnireuse.errors import NotTunableError, StateError
from omnireuse.forecasters import Hold
from omnireuse.loop.stepper import NOTHING, Stepper
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import copied
from omnireuse.policies import Never

__all__ = ["FULL", "RecordedStep", "Recording"]

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

    calls: list[tuple[Hashable, Any]] = field(default_factory=list)
    given: Mapping[str, Any] = field(default_factory=dict)
    output: torch.Tensor | None = None
    sample: torch.Tensor | None = None
    latents: torch.Tensor | None = None

    def arguments(self, output: torch.Tensor | None, sample: torch.Tensor | None) -> dict[str, Any]:
        """Arguments for such a step of the scheduler, without the generator, whose state stays as it is."""
        generator = {"generator": None} if "generator" in self.given else {}
        return {**self.given, **generator, "model_output": output, "sample": sample}


class Recording(Stepper):
    """Computes every step of one loop, and keeps copies of its values. An error in keeping them does not end the loop.

    Args:
        scheduler: of the loop; a copy is kept as it is before the first step.
        total: steps of the loop.
        keeps: whether anything is kept.
        is_bounded: whether at most `MOST_BYTES` are kept.
        calls_may_change: whether steps may have other calls than the first, as when guidance ends on the way.
    """

    def __init__(
        self,
        scheduler: object,
        total: int,
        *,
        keeps: bool = True,
        is_bounded: bool = True,
        calls_may_change: bool = False,
    ) -> None:
        self.failure: Exception | None = None if keeps else StateError("another thread is measuring")
        """Why nothing can be learnt from the loop; None as long as something can. A NotTunableError would meet other
        runs of the configuration, too."""
        self.steps: list[RecordedStep] = []
        self.kinds: set[Hashable] = set()
        """Of the outputs that steps were asked for."""
        self.scheduler: Any = None
        self.total, self.made = total, 0
        """Steps of the loop, and those that were made."""
        self._scheduler, self._is_bounded, self._calls_may_change = scheduler, is_bounded, calls_may_change
        self._device: torch.device | None = None
        """Where values are kept; None for where they are."""
        self._step = RecordedStep()
        self._kind: Hashable = 0

    @property
    def is_whole(self) -> bool:
        """Whether all steps of the run were kept."""
        return self.failure is None and len(self.steps) == self.total and self.steps[-1].latents is not None

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        if self.failure is None and step != len(self.steps):
            self.fail(StateError("the loop went back to an earlier step"))
        if getattr(kind, "conditions", 0) and self.failure is None:
            self.fail(StateError("what the steps are computed from changed in the middle of the picture"))
        self.kinds.add(kind)
        self._kind = kind
        return True

    def see(self, denoiser: int, output: object, kinds: int = 1) -> None:
        if kinds > 1 and self.failure is None:
            self.fail(NotTunableError(f"the denoiser returns {kinds} kinds of latents"))
        self.keep(lambda: self._step.calls.append((denoiser, copied(output))))

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        assert output is not None, "every step is computed"
        self.made += 1
        self.keep(self._note_step, given, output, latents)
        return output

    def arrived(self, latents: torch.Tensor | None) -> None:
        self.keep(self._note_latents, latents)

    def fail(self, why: Exception) -> None:
        """End the recording, and drop what was kept."""
        self.failure = why
        self.steps.clear()
        self.scheduler, self._step = None, RecordedStep()

    def keep(self, note: Callable[..., None], *values: object) -> None:
        """Note values, as long as something can be learnt."""
        if self.failure is not None:
            return
        try:
            note(*values)
        except Exception as error:  # the picture must not fail because measuring it does
            logger.warning("measuring ended within a picture, which goes on: %s", in_words(error))
            self.fail(error)

    def _note_step(self, given: Mapping[str, Any], output: object, sample: torch.Tensor) -> None:
        """Note what the scheduler's step is about to get; the branches were seen before, by hosts that see them."""
        if not isinstance(output, torch.Tensor):
            self.fail(NotTunableError(f"the model predicts {type(output).__name__} and not one tensor"))
            return
        if self.steps and self.steps[-1].latents is None:
            self._note_latents(sample)
        first = self.steps[0].sample if self.steps else None
        if first is not None and sample.shape != first.shape:
            shapes = f"from {tuple(first.shape)} to {tuple(sample.shape)}"
            self.fail(NotTunableError(f"the latents change their shape at step {len(self.steps)}, {shapes}"))
            return
        step, self._step = self._step, RecordedStep()
        if not step.calls:
            step.calls.append((self._kind, copied(output)))
        if not self.steps:
            self.scheduler = copy.deepcopy(self._scheduler)
            self._choose_device(step, output, sample)
        elif not self._calls_may_change and _places(step) != _places(self.steps[0]):
            self.fail(
                NotTunableError(
                    f"step {len(self.steps)} has other calls of the denoisers than the first ({len(step.calls)} and "
                    f"{len(self.steps[0].calls)}): guidance or the denoiser changes on the way"
                )
            )
        if self.failure is not None:
            return
        step.given = {name: each for name, each in given.items() if name not in ("model_output", "sample")}
        step.output, step.sample = self._kept(output), self._kept(sample)
        if self._device is not None:
            step.calls = [(place, pytree.tree_map(self._moved, each)) for place, each in step.calls]
        self.steps.append(step)

    def _note_latents(self, latents: torch.Tensor | None) -> None:
        """Note the latents that the scheduler's step returned."""
        if latents is None:
            self.fail(NotTunableError("the scheduler's step returns no latents"))
        else:
            self.steps[-1].latents = self._kept(latents)

    def _choose_device(self, step: RecordedStep, output: torch.Tensor, sample: torch.Tensor) -> None:
        leaves = [leaf for _, each in step.calls for leaf in pytree.tree_leaves(each) if isinstance(leaf, torch.Tensor)]
        needed = self.total * sum(each.nbytes for each in (*leaves, output, sample, sample))
        if self._is_bounded and needed > MOST_BYTES:
            at_most = f"at most {MOST_BYTES / 2**30:.0f} GiB are kept"
            self.fail(NotTunableError(f"measuring would keep {needed / 2**30:.1f} GiB, and {at_most}"))
        elif needed > ON_DEVICE:
            self._device = torch.device("cpu")

    def _kept(self, value: torch.Tensor) -> torch.Tensor:
        # Copies: engines overwrite one buffer at every step.
        return value.detach().clone() if self._device is None else value.detach().to(self._device, copy=True)

    def _moved(self, value: object) -> Any:
        return value.to(self._device) if isinstance(value, torch.Tensor) else value


def _places(step: RecordedStep) -> list[Hashable]:
    return [place for place, _ in step.calls]
