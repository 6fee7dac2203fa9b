"""A full run that is measured: every step is computed, and what tuning needs of it is kept."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from omnireuse.base.validation import in_words
from omnireuse.errors import NotTunableError, StateError, UnsupportedModelError
from omnireuse.forecasters import Hold
from omnireuse.loop.stepper import NOTHING, Stepper
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import OutputProducts, Path, branches_of, copied
from omnireuse.planning.solver import Arithmetic, next_latents
from omnireuse.policies import Never

__all__ = ["FULL", "FullRun", "RecordedStep", "Recording", "decibels", "relative_errors"]

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


@dataclass(frozen=True, kw_only=True)
class FullRun:
    """One measured call.

    Attributes:
        path: latents before the first and after each step; the calls of the first half of the steps.
        products: of the outputs.
        calls: how many calls of the denoisers a step has at most.
        unfit: why no weights can be fitted; None if they can.
    """

    path: Path
    products: OutputProducts
    calls: int
    unfit: str | None = None

    @property
    def final(self) -> torch.Tensor:
        """The final latents, one row for each picture."""
        return self.path.latents[-1]

    @property
    def pictures(self) -> int:
        """How many pictures the call has made."""
        return len(self.final)

    def ends_with(self, step: int) -> bool:
        """Whether this is the last step."""
        return step + 2 == len(self.path.latents)

    @classmethod
    def of(cls, recording: Recording) -> FullRun:
        """From a recording, whose values are taken over. Random states stay as they are.

        Raises:
            StateError: the run ended before its last step, or the final latents are not finite.
            NotTunableError: its values could not be kept, and neither could those of other runs like it.
            UnsupportedModelError: it is not known what the scheduler's steps make of their outputs.
            Exception: the error that ended the recording.
        """
        if recording.failure is not None:
            raise recording.failure
        steps = recording.steps
        final = steps[-1].latents if recording.is_whole else None
        if final is None:
            raise StateError("a run ended before its last step")
        if not final.isfinite().all():
            raise StateError("the final latents are not finite")
        assert steps[0].sample is not None
        with torch.random.fork_rng(devices=_devices(final)):
            unfit = _unfit(recording)
            effects = _effects(recording, final)
        if not np.isfinite(effects).all():
            raise UnsupportedModelError(f"{type(recording.scheduler).__name__}: its steps have no finite effects")
        outputs = [(each.output, branches_of(each.calls, each.output)) for each in steps if each.output is not None]
        products, shares = OutputProducts.of(outputs, final, effects)
        known = steps[: len(steps) // 2]  # trial runs need not compute them
        path = Path(
            latents=[steps[0].sample, *(each.latents for each in steps if each.latents is not None)],
            shares=shares,
            calls=[[output for _, output in step.calls] for step in known],
            outputs=[step.output for step in known if step.output is not None],
        )
        recording.steps = []
        return cls(path=path, products=products, calls=max(len(step.calls) for step in steps), unfit=unfit)


def _unfit(recording: Recording) -> str | None:
    """Why no weights can be fitted, by the first, the middle and the last step; None if they can."""
    if len(recording.kinds) > 1:
        # Whoever follows a plan computes the first step of each kind, and remembers nothing from before it.
        return "the outputs are of other kinds on the way: a condition changed, or a ControlNet or an adapter begins"
    twin, last = copy.deepcopy(recording.scheduler), len(recording.steps) - 1
    for number, step in enumerate(recording.steps):
        given = step.arguments(step.output, step.sample)
        if number in (0, last // 2, last):
            try:
                Arithmetic.of(twin, given)
            except UnsupportedModelError as error:
                return str(error)
        twin.step(**given)
    return None


def _unbounded(scheduler: Any) -> Any:
    """A copy of a scheduler, which does not bound x0 in its steps."""
    twin = copy.deepcopy(scheduler)
    config = getattr(twin, "config", {})
    bounds = {name: False for name in ("clip_sample", "thresholding") if config.get(name)}
    if bounds:
        twin.register_to_config(**bounds)
    return twin


def _effects(recording: Recording, like: torch.Tensor) -> NDArray[np.float64]:
    """How far an output of 1 at each step moves the final latents, with all other outputs unchanged; what multistep
    solvers make of it at later steps counts too, and bounds of x0 do not. One row of a batch for each step."""
    total = len(recording.steps)
    moved, still = (torch.zeros(total, *(1,) * (like.ndim - 1), device=like.device) for _ in range(2))
    impulses, zeros = torch.eye(total, device=like.device).view(total, *moved.shape), torch.zeros_like(moved)
    twins = _unbounded(recording.scheduler), _unbounded(recording.scheduler)
    for number, step in enumerate(recording.steps):
        # The same noise for both, if the solver adds some.
        with torch.random.fork_rng(devices=_devices(like)):
            moved = next_latents(twins[0].step(**step.arguments(impulses[number], moved)))
        still = next_latents(twins[1].step(**step.arguments(zeros, still)))
    return (moved - still).double().flatten(1).mean(1).cpu().numpy()


def relative_errors(latents: torch.Tensor, full: torch.Tensor) -> list[float]:
    """Relative L1 error of each row; infinite if it is not finite."""
    given, true = (each.to("cpu", torch.float64).flatten(1) for each in (latents, full))
    errors = (given - true).abs().sum(1) / true.abs().sum(1).clamp_min(1e-30)
    return [float(each) for each in torch.nan_to_num(errors, nan=float("inf"), posinf=float("inf"))]


def decibels(latents: torch.Tensor, full: torch.Tensor) -> list[float]:
    """PSNR of each row of latents in dB, at a range of six times their root mean square; at most 100, at least 0."""
    given, true = (each.to("cpu", torch.float64).flatten(1) for each in (latents, full))
    ratio = 36 * true.square().mean(1) / (given - true).square().mean(1).clamp_min(1e-30)
    return [min(max(float(each), 0.0), 100.0) for each in torch.nan_to_num(10 * ratio.log10(), nan=0.0, neginf=0.0)]


def _devices(tensor: torch.Tensor) -> list[Any]:
    return [tensor.device] if tensor.device.type == "cuda" else []
