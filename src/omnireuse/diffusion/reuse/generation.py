"""One generation of one request: it decides at each step, forecasts what is not computed, and learns from what is.

It knows nothing of pipelines, hooks or threads. A sampling loop, an engine or a region of a pipeline asks it what to do
and tells it what was done:

    generation = strategy.start(noise_levels(scheduler))
    for each step:
        choice = generation.decide(layout=layout_of(latents))
        if choice.reuse:
            output = generation.predict(choice, latents)
        else:
            output = generation.observe(choice, model(latents), latents)
        latents = solver(output, latents)
        generation.advance()
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Sequence
from time import perf_counter

import torch

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.branch_state import BranchState
from omnireuse.diffusion.reuse.choice import Choice
from omnireuse.diffusion.reuse.events import Decision
from omnireuse.diffusion.reuse.forecasters import Blend, Memory
from omnireuse.diffusion.reuse.guards import guard
from omnireuse.diffusion.reuse.measuring import (
    Scales,
    drift_of,
    measure_error,
    measure_rate,
    measures_errors,
    own_magnitude,
)
from omnireuse.diffusion.reuse.noise import NoiseLevel
from omnireuse.diffusion.reuse.outputs import OutputAlgebra
from omnireuse.diffusion.reuse.policy import StepView
from omnireuse.diffusion.reuse.position import Position
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import StateError

__all__ = ["CUT", "Emit", "Generation"]

logger = logging.getLogger("omnireuse")

CUT = (
    "reuse would cut the gradient of what it stands in for; sample under torch.no_grad(), or disable reuse while "
    "gradients are needed"
)

Emit = Callable[[Decision], None]


class Generation(Position):
    """The state of one generation. No tensors at first; `Strategy.start` makes one.

    It can be kept in an engine's own request, copied, moved between devices and freed. One thread at a time uses it;
    different generations share nothing.

    Args:
        strategy: what to do.
        levels: the noise level of each step; empty, or shorter than the run, where unknown.
        total: number of steps; None where nobody knows.
        agreement: how ranks agree; alone by default.
        number: names it in its events.
        emit: takes an event for each decision that was carried out.
    """

    def __init__(
        self,
        strategy: Strategy,
        levels: Sequence[NoiseLevel],
        *,
        total: int | None,
        agreement: Agreement | None = None,
        number: int = 1,
        emit: Emit | None = None,
    ) -> None:
        super().__init__(strategy, levels, total)
        self.number = number
        self.outputs = OutputAlgebra(strategy)
        """Between the model's outputs and what is remembered of them."""
        self._forecaster = strategy.forecaster
        self._agreement = agreement or Agreement()
        self.emit = emit or _ignore
        """Takes the events."""
        self._states: dict[tuple[int, str, int | None], BranchState] = {}
        self._done: dict[tuple[int, str], None] = {}
        """Denoisers and branches whose choices were carried out at this step, in order."""
        self._leads: dict[tuple[int, int | None], bool] = {}
        """What the first branch of each denoiser and sample has done at this step."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage held; what is held twice counts once."""
        held: dict[int, int] = {}

        def weigh(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
            return tensor

        for state in self._states.values():
            state.transformed(weigh)
        return sum(held.values())

    # -- one step -----------------------------------------------------------------------------------------------------

    def decide(
        self,
        branch: str = "step",
        *,
        denoiser: int = 0,
        order: int = 0,
        sample: int | None = None,
        layout: Hashable = None,
        signal: torch.Tensor | None = None,
    ) -> Choice:
        """Compute or reuse? Changes nothing.

        Args:
            branch: names the branch; what it remembers is its own.
            denoiser: which of several models it is.
            order: place among the step's calls of the denoiser, from 0.
            sample: row of the batch that is decided on; None for all of them together.
            layout: what must equal the remembered layout for a reuse to be possible (`layout_of`).
            signal: the tensor to watch; left aside where the strategy watches none.

        Raises:
            StateError: a policy that depends on the number of steps, which nobody told.

        Cost: one host synchronisation where the policy measures, and one all-reduce where ranks agree.
        """
        started = perf_counter()
        strategy, policy = self.strategy, self.strategy.policy
        state = self._states.get((denoiser, branch, sample)) or self._new_state(order)
        leader = self._leads.get((denoiser, sample)) if strategy.together else None
        if leader is not None or strategy.chosen_signal == "none":
            signal = None
        drift = None if signal is None else drift_of(strategy, self._agreement, state, signal)
        view = StepView(
            index=self.index,
            total=self.total,
            sigma=self.level.sigma,
            branch=order,
            drift=drift,
            error=state.error,
            noise=None if self.level.sample_weight is None else self.level.coordinate,
            noises=self.noises,
            coordinate=self.coordinate,
            order=self._forecaster.order,
        )
        is_changed = state.layout is not None and layout != state.layout
        # The policy is asked first and always, so that one that cannot serve this run says so at its first step.
        wanted = policy.wants_reuse(policy.start() if is_changed else state.policy, view) if leader is None else leader
        must = guard(strategy, state, view, is_changed=is_changed)
        if must is None and wanted and strategy.remembers_outputs:
            must = self.outputs.veto(self.level)
        return Choice(
            reuse=wanted and must is None,
            reason=must or ("policy" if leader is None else "together"),
            branch=branch,
            denoiser=denoiser,
            sample=sample,
            order=order,
            view=view,
            layout=layout,
            is_changed=is_changed,
            signal=None if signal is None else signal.detach().clone(),
            host_seconds=perf_counter() - started,
        )

    def predict(self, choice: Choice, sample: torch.Tensor) -> torch.Tensor:
        """The forecast of the model's output, for a choice to reuse.

        Args:
            choice: made at this step.
            sample: the latents that the model would have been asked about, shape (B, …).

        Returns:
            A tensor of its own, of the shape and dtype of the last computed output.
        """
        started = perf_counter()
        state = self.begin(choice)
        (value,) = state.predict(self.coordinate)
        output = self.outputs.output(self.level, sample, value, state.output_dtype)
        self.conclude(choice, state, seconds=perf_counter() - started)
        return output

    def observe(self, choice: Choice, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """Learn from a computed output.

        Args:
            choice: made at this step.
            output: what the model returned, shape (B, …); kept only as a copy.
            sample: the latents that it was asked about.

        Returns:
            What to hand on to the solver: the output itself, or a corrected one where forecasts before it went wrong
            and the forecaster makes that good.
        """
        corrected = self.observe_outputs(choice, [output], [sample])
        return output if corrected is None else corrected[0]

    def advance(self) -> None:
        """The step is over."""
        self._check_branches(len(self._done))
        self.index += 1
        self._done.clear()
        self._leads.clear()

    def finish(self) -> None:
        """Drop everything that is kept."""
        self._states.clear()
        self._done.clear()
        self._leads.clear()

    # -- several outputs, and values that are no outputs --------------------------------------------------------------

    def predict_values(self, choice: Choice) -> list[torch.Tensor]:
        """What stands in for the values that will not be computed; read-only."""
        started = perf_counter()
        state = self.begin(choice)
        values = state.predict(self.coordinate)
        self.conclude(choice, state, seconds=perf_counter() - started)
        return values

    def predict_outputs(
        self, choice: Choice, samples: Sequence[torch.Tensor | None], dtypes: Sequence[torch.dtype]
    ) -> list[torch.Tensor]:
        """As `predict`, where the model has several outputs."""
        started = perf_counter()
        state = self.begin(choice)
        values = state.predict(self.coordinate)
        outputs = self.as_outputs(values, samples, dtypes)
        self.conclude(choice, state, seconds=perf_counter() - started)
        return outputs

    def as_outputs(
        self, values: Sequence[torch.Tensor], samples: Sequence[torch.Tensor | None], dtypes: Sequence[torch.dtype]
    ) -> list[torch.Tensor]:
        """The outputs that remembered or forecast values stand for."""
        return [
            self.outputs.output(self.level, sample, value, dtype)
            for value, sample, dtype in zip(values, samples, dtypes, strict=True)
        ]

    def observe_outputs(
        self, choice: Choice, outputs: Sequence[torch.Tensor], samples: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor] | None:
        """As `observe`, where the model has several outputs; None where they are handed on as they are."""
        started = perf_counter()
        for output, sample in zip(outputs, samples, strict=True):
            self.outputs.settle(self.level, sample, output)
        pairs = zip(outputs, samples, strict=True)
        values = [self.outputs.value(self.level, sample, output) for output, sample in pairs]
        known = [value for value in values if value is not None]
        seconds = perf_counter() - started
        if not outputs or len(known) < len(outputs):
            self.pass_by(choice)
            return None
        corrected = self.observe_values(
            choice,
            known,
            scales=lambda: self.outputs.scales(self.level, samples[0], outputs[0], known[0]),
            seconds=seconds,
        )
        self._states[choice.denoiser, choice.branch, choice.sample].output_dtype = outputs[0].dtype
        if corrected is None:
            return None
        return self.as_outputs(corrected, samples, [output.dtype for output in outputs])

    def observe_values(
        self,
        choice: Choice,
        values: Sequence[torch.Tensor],
        *,
        scales: Scales | None = None,
        seconds: float = 0.0,
    ) -> list[torch.Tensor] | None:
        """Learn from computed values, and first compare the forecast for them with the truth.

        Args:
            choice: made at this step.
            values: what was computed; the tensors are kept: hand over ones that nobody writes to.
            scales: gives what the event's error and the policy's are relative to; the values' own magnitude by default.
            seconds: host time that the values took beside the model's own, for the event.

        Returns:
            What to hand on in place of the values; None for these values themselves.
        """
        started = perf_counter()
        if torch.is_grad_enabled() and any(value.requires_grad for value in values):
            raise StateError(CUT)
        state = self.begin(choice)
        error = None
        if state.primed and measures_errors(self.strategy, values[0]):
            forecasts, scales = state.predict(self.coordinate), scales or own_magnitude(values)
            error = measure_error(self.strategy, self._agreement, state, forecasts, values, scales)
        self._remember(choice, state, values)
        corrected = state.corrected(self.coordinate)
        took = perf_counter() - started + seconds
        self.conclude(choice, state, seconds=took, error=error, corrected=corrected is not None)
        return corrected

    def pass_by(self, choice: Choice) -> None:
        """Say that a step was computed of which nothing is remembered."""
        state = self.begin(choice)
        state.forget(self.strategy.policy.start())
        self.conclude(choice, state, seconds=0.0)

    def forget(self, choice: Choice) -> None:
        """Drop what this branch remembers, as where guidance sets in or ends and outputs are of another kind."""
        state = self._states.get((choice.denoiser, choice.branch, choice.sample))
        if state is not None:
            state.forget(self.strategy.policy.start())

    # -- keeping, moving, copying -------------------------------------------------------------------------------------

    def copy(self) -> Generation:
        """A generation that goes on independently; remembered tensors, which nobody writes to, are shared."""
        return self._transformed(lambda tensor: tensor)

    def to(self, device: torch.device | str) -> Generation:
        """A copy whose tensors are on a device. The layout of the inputs changes with the device and is taken anew at
        the next computed step, so inputs must move along."""
        moved = self._transformed(lambda tensor: tensor.to(device))
        for state in moved._states.values():
            state.layout = None
        return moved

    def _transformed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Generation:
        twin = copy.copy(self)
        twin.outputs = copy.copy(self.outputs)
        twin._states = {key: state.transformed(change) for key, state in self._states.items()}
        twin._done, twin._leads = dict(self._done), dict(self._leads)
        return twin

    # -- what both the solo and the batched operations do -------------------------------------------------------------

    def begin(self, choice: Choice) -> BranchState:
        """The state that a choice is carried out on; what another layout has left behind is dropped first."""
        key = (choice.denoiser, choice.branch, choice.sample)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._new_state(choice.order)
        if choice.is_changed:
            state.forget(self.strategy.policy.start())
        state.layout = choice.layout
        return state

    def conclude(
        self,
        choice: Choice,
        state: BranchState,
        *,
        seconds: float,
        error: float | None = None,
        corrected: bool = False,
    ) -> None:
        """Tell the policy what was done, and emit the event."""
        measured = self.strategy.policy.measured(state.policy, choice.view)
        state.policy = self.strategy.policy.after(state.policy, choice.view, choice.reuse)
        state.consecutive = state.consecutive + 1 if choice.reuse else 0
        if choice.signal is not None and not (choice.reuse and self.strategy.policy.drift_since_computed):
            state.signal = choice.signal
        self._done[choice.denoiser, choice.branch] = None
        self._leads.setdefault((choice.denoiser, choice.sample), choice.reuse)
        self.emit(
            Decision(
                run=self.number,
                step=choice.view.index,
                total=choice.view.total,
                branch=choice.branch,
                sample=choice.sample,
                reused=choice.reuse,
                corrected=corrected,
                reason=choice.reason,
                sigma=choice.view.sigma,
                noise=choice.view.noise,
                drift=choice.view.drift,
                measured=measured,
                error=error,
                host_seconds=choice.host_seconds + seconds,
            )
        )

    @property
    def can_be_batched(self) -> bool:
        """Whether what is learnt from a computed output needs nothing but that output: no other rank and no signal."""
        alone = self._agreement.is_alone or not self.strategy.policy.needs_error
        return alone and self.strategy.chosen_signal != "expected_output"

    # -- within one step ----------------------------------------------------------------------------------------------

    def _new_state(self, order: int) -> BranchState:
        return BranchState(order=order, policy=self.strategy.policy.start())

    def _remember(self, choice: Choice, state: BranchState, values: Sequence[torch.Tensor]) -> None:
        memories = self.memories_of(state, values)
        dtype = self.strategy.history_dtype
        is_cast = isinstance(dtype, torch.dtype)
        kept = [value.to(dtype) if is_cast and value.is_floating_point() else value for value in values]
        signal = choice.signal if choice.signal is not None else state.signal
        measure_rate(self.strategy, self._agreement, state, signal, kept)
        for memory, value in zip(memories, kept, strict=True):
            memory.observe(self.coordinate, value)

    def memories_of(self, state: BranchState, values: Sequence[torch.Tensor]) -> list[Memory]:
        """The memory of each value, started where there is none."""
        if state.memories is None or len(state.memories) != len(values):
            branch = state.order if state.order < self._forecaster.branches else 0
            state.memories = [self._forecaster.start(branch) for _ in values]
        state.dtypes = [value.dtype for value in values]
        return state.memories

    def _check_branches(self, branches: int) -> None:
        """Weights for each branch are of no use where others are called than were fitted, from the start or from some
        step on."""
        known = self._forecaster.branches
        if known not in (1, branches):
            logger.warning(
                "the weights were fitted for %d branches of guidance; step %d has %d calls, so a blend forecasts "
                "instead",
                known,
                self.index,
                branches,
            )
            self._forecaster = Blend()
            self._states.clear()


def _ignore(decision: Decision) -> None:
    """Nobody listens."""
