"""One generation of one request: it decides at each step, forecasts missing outputs, and learns from computed ones.

It knows nothing of pipelines, hooks or threads. A sampling loop, an engine or a region of a pipeline uses it like this:

    generation = Generation(strategy, noise_levels(scheduler))
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
from functools import partial
from time import perf_counter

import torch

from omnireuse.base.validation import is_whole
from omnireuse.errors import ConfigError, OmniReuseError, StateError
from omnireuse.forecasters.base import held_bytes
from omnireuse.forecasters.gap import Gap
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.branch_state import BranchState, Scales
from omnireuse.loop.events import Choice, Decision
from omnireuse.loop.policy import StepView
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.parametrization import NoiseLevel, Parametrization

__all__ = ["GRADIENT_ERROR", "Emit", "Generation", "layout_of", "warn_given_up"]

logger = logging.getLogger("omnireuse")

GRADIENT_ERROR = (
    "reuse would cut the gradient of what it stands in for; sample under torch.no_grad(), or disable reuse while "
    "gradients are needed"
)

Emit = Callable[[Decision], None]


def layout_of(*values: object) -> Hashable:
    """Shape, dtype and device of every tensor among the values."""
    return tuple((tuple(v.shape), v.dtype, v.device) for v in values if isinstance(v, torch.Tensor))


class Generation:
    """The state of one generation under a strategy. No tensors at first.

    It can be kept in an engine's own request, copied, moved between devices and freed. One thread at a time uses it;
    different generations share nothing.

    Args:
        strategy: decides and forecasts.
        levels: noise level of each step (`noise_levels(scheduler)`); empty where unknown.
        total: number of steps, ≥ 1; that of the levels by default, unknown without any.
        at: the first step that is made, where a run begins in the middle, as image-to-image and resumed requests do,
            ≥ 0 and below `total`. That part is a run of its own: the generation counts its steps from 0, its first step
            computes, and computed steps are spread over it.
        agreement: how ranks agree; alone by default.
        number: names the generation in its events.
        emit: takes an event for each decision that was carried out.

    Raises:
        ConfigError: `at` is no step of the run, or the number of steps is not known.
        StateError: a policy that cannot serve a run of so many steps.
    """

    def __init__(
        self,
        strategy: Strategy,
        levels: Sequence[NoiseLevel] = (),
        *,
        total: int | None = None,
        at: int = 0,
        agreement: Agreement | None = None,
        number: int = 1,
        emit: Emit | None = None,
    ) -> None:
        steps = total if total is not None else len(levels) or None
        if at:
            if steps is None or not is_whole(at, 1) or at >= steps:
                length = "the number of steps is not known" if steps is None else f"the run has {steps} steps"
                raise ConfigError(
                    f"Generation(at={at!r:.60}): at must be a step of the run, counted from 0, and {length}; give the "
                    "levels of all steps, or total="
                )
            levels, steps = levels[at:], steps - at
        self.strategy, self.agreement = strategy, agreement or Agreement()
        self.number, self.emit = number, emit or _ignore
        self.label = f"generation {number}"
        """Names it in warnings."""
        self.total = steps
        """Number of steps; None where it is not known."""
        self._levels = tuple(levels)
        known = self._levels[:steps] if steps and steps <= len(levels) else ()
        is_known = bool(known) and all(level.sample_weight is not None for level in known)
        self.noises = tuple(level.coordinate for level in known) if is_known else None
        """Noise fraction at each step; None where the scheduler's algebra is not known."""
        self._move_to(0)
        self.schedule = strategy.policy.schedule(steps, self.noises) if steps else None
        """The steps that the policy computes; None where it measures, or the number of steps is unknown. Guards may
        compute more: a step whose inputs changed shape computes."""
        self.forecaster, target = strategy.forecaster, strategy.chosen_target
        if steps and self.schedule is not None:
            noises = self.noises if strategy.axis == "noise" else None
            is_flow = is_known and all(level.flow_scale is not None for level in known)
            if noises is not None and is_flow and strategy.follows_path:
                target = "velocity"
            self.forecaster = strategy.forecaster.for_run(steps, tuple(sorted(self.schedule)), noises, target)
        self.outputs = Parametrization(target, is_required=strategy.prediction_target is not None)
        """Between the model's outputs and the remembered values."""
        self.failure = ""
        """The reason to compute every further step, where something has failed."""
        self._states: dict[tuple[int, str, int | None], BranchState] = {}
        self._leads: dict[tuple[int, int | None], bool] = {}
        """Decisions of the first branch of each denoiser and sample at this step: reused or not."""
        self._done: dict[tuple[int, str], None] = {}
        """Denoisers and branches whose choices were carried out at this step, in order."""

    @property
    def finished(self) -> bool:
        """True if all steps are done."""
        return self.total is not None and self.index >= self.total

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
            signal: the tensor to watch; ignored where the strategy watches none.

        Raises:
            StateError: a policy that depends on the number of steps, which is not known.

        Cost: one host synchronisation where the policy measures, and one all-reduce where ranks agree.
        """
        started, strategy, level = perf_counter(), self.strategy, self.level
        state = self._states.get((denoiser, branch, sample)) or self._new_state(order)
        leader = self._leads.get((denoiser, sample)) if strategy.shared_cfg_decision else None
        if leader is not None or strategy.chosen_signal == "none":
            signal = None
        view = StepView(
            index=self.index,
            total=self.total,
            sigma=level.sigma,
            branch=order,
            drift=None if signal is None else state.drift(signal),
            error=state.error,
            noise=level.noise,
            noises=self.noises,
            coordinate=self.coordinate,
            order=self.forecaster.order,
        )
        is_changed = state.layout is not None and layout != state.layout
        reuse, reason = state.decide(
            view,
            self.schedule,
            leader=leader,
            is_changed=is_changed,
            is_noiseless=self.outputs.target in ("x0", "velocity") and not level.output_weight,
            is_failed=bool(self.failure),
        )
        return Choice(
            reuse=reuse,
            reason=reason,
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
            sample: the latents that the model would have been called with, shape (B, …).

        Returns:
            A new tensor, of the shape and dtype of the last computed output.
        """
        return self.predict_outputs(choice, [sample], [self.state_of(choice).output_dtype])[0]

    def observe(self, choice: Choice, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """Learn from a computed output.

        Args:
            choice: made at this step.
            output: of the model, shape (B, …); kept only as a copy.
            sample: the latents that it was called with.

        Returns:
            What to give to the solver: the output itself, or one that corrects the forecasts before it.
        """
        corrected = self.observe_outputs(choice, [output], [sample])
        return output if corrected is None else corrected[0]

    def advance(self) -> None:
        """The step is over."""
        before = self.forecaster
        self.forecaster = before.after_calls(self.index, len(self._done))
        if self.forecaster is not before:
            self._states.clear()
        self._move_to(self.index + 1)
        self._done.clear()
        self._leads.clear()

    def _move_to(self, index: int) -> None:
        self.index = index
        """The current step, counted from 0."""
        is_known = index < len(self._levels)
        self.call_at(self._levels[index] if is_known else NoiseLevel(sigma=None, coordinate=float(index)))

    def call_at(self, level: NoiseLevel) -> None:
        """Until the step is over, the model is called at this noise level, as solvers do between two steps."""
        self.level = level
        """The noise level at which the model is called."""
        self.coordinate = self._coordinate_of(self.index, level)
        """That level on the strategy's axis."""

    def _coordinate_of(self, index: int, level: NoiseLevel) -> float:
        return float(index) if self.strategy.axis == "steps" else level.coordinate

    def begin_at(self, step: int, remembered: Generation | None = None) -> None:
        """Begin in the midst of a run whose earlier steps another generation has made.

        Args:
            step: the first that is made here, counted from 0; it computes unless there is enough to forecast it from.
            remembered: the generation before, under an equal strategy; None where nothing is known of those steps.
        """
        self._move_to(step)
        if remembered is not None:
            known = remembered.copy()
            self._states, self.outputs = known._states, known.outputs

    def finish(self) -> None:
        """Drop everything that is kept."""
        self._states.clear()
        self._done.clear()
        self._leads.clear()

    def give_up(self, doing: str, error: Exception) -> None:
        """Compute every further step, with a warning: something of this generation has failed."""
        self.finish()
        self.failure = warn_given_up(self.label, doing, error)

    def predict_values(self, choice: Choice) -> list[torch.Tensor]:
        """The forecast of values that are no outputs, in the dtypes they were computed in; read-only."""
        started, state = perf_counter(), self.state_of(choice)
        values = state.forecasts(self.coordinate)
        self.conclude(choice, state, started)
        return values

    def predict_outputs(
        self, choice: Choice, samples: Sequence[torch.Tensor | None], dtypes: Sequence[torch.dtype]
    ) -> list[torch.Tensor]:
        """As `predict`, where the model has several outputs."""
        started, state = perf_counter(), self.state_of(choice)
        outputs = self.outputs.outputs(self.level, samples, state.forecasts(self.coordinate), dtypes)
        self.conclude(choice, state, started)
        return outputs

    def observe_outputs(
        self, choice: Choice, outputs: Sequence[torch.Tensor], samples: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor] | None:
        """As `observe`, where the model has several outputs; None where they are used as they are."""
        started, level, algebra = perf_counter(), self.level, self.outputs
        values = algebra.values(level, samples, outputs)
        if self.failure or not values:
            self.pass_by(choice)
            return None
        scales = partial(algebra.scales, level, samples[0], outputs[0], values[0])
        gap = self.gap_before(self.state_of(choice))
        corrected = self.observe_values(choice, values, scales=scales, started=started, gap=gap)
        self._states[choice.key].output_dtype = outputs[0].dtype
        if corrected is None:
            return None
        return algebra.outputs(level, samples, corrected, [output.dtype for output in outputs])

    def observe_values(
        self,
        choice: Choice,
        values: Sequence[torch.Tensor],
        *,
        scales: Scales | None = None,
        started: float | None = None,
        gap: Gap | None = None,
    ) -> list[torch.Tensor] | None:
        """Compare the forecast for computed values with them, and remember them.

        Args:
            choice: made at this step.
            values: the computed ones; the tensors are kept, so nobody may write to them.
            scales: units of errors; the values' own magnitude by default.
            started: `perf_counter` when the host's work on the values began, for the event; now by default.
            gap: as `BranchState.observe`.

        Returns:
            What replaces the values; None for these values themselves.
        """
        started = perf_counter() if started is None else started
        if torch.is_grad_enabled() and any(value.requires_grad for value in values):
            raise StateError(GRADIENT_ERROR)
        state = self.state_of(choice)
        error, corrected = state.observe(self.coordinate, values, choice.signal, scales, gap)
        self.conclude(choice, state, started, error=error, corrected=corrected is not None)
        return corrected

    def pass_by(self, choice: Choice) -> None:
        """Say that a step was computed of which nothing is remembered."""
        self.forget(choice)
        self.conclude(choice, self.state_of(choice), perf_counter())

    def forget(self, choice: Choice) -> None:
        """Drop this branch's memory, as where guidance begins or ends and outputs are of another kind."""
        if (state := self._states.get(choice.key)) is not None:
            state.forget()

    def gap_before(self, state: BranchState) -> Gap | None:
        """The reused steps since the branch last computed; None where there are none, or nothing corrects them."""
        target, first = self.outputs.target, self.index - state.consecutive
        if target not in ("x0", "velocity") or self.strategy.region != "step" or not self.forecaster.corrects:
            return None
        if first == self.index or self.index >= len(self._levels):
            return None
        levels = self._levels[first : self.index + 1]
        coordinates = [self._coordinate_of(first + place, level) for place, level in enumerate(levels[:-1])]
        return Gap.between(
            target, coordinates, [each.step if target == "x0" else each.velocity_step for each in levels]
        )

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage held; each storage counts once."""
        return held_bytes(self._states.values())

    def copy(self) -> Generation:
        """A generation that goes on independently; remembered tensors, which nobody writes to, are shared."""
        return self._transformed(lambda tensor: tensor)

    def to(self, device: torch.device | str) -> Generation:
        """A copy whose tensors are on a device. Inputs must move along: their layout is taken anew at the next
        computed step."""
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

    def _new_state(self, order: int) -> BranchState:
        return BranchState(strategy=self.strategy, forecaster=self.forecaster, agreement=self.agreement, order=order)

    def state_of(self, choice: Choice) -> BranchState:
        """The state that a choice is carried out on, without values of another layout."""
        state = self._states.get((choice.denoiser, choice.branch, choice.sample))
        if state is None:
            state = self._states[choice.key] = self._new_state(choice.order)
        if choice.is_changed and state.layout != choice.layout:
            state.forget()
        state.layout = choice.layout
        return state

    def conclude(
        self, choice: Choice, state: BranchState, started: float, *, error: float | None = None, corrected: bool = False
    ) -> None:
        """Tell the policy the decision and the time since `started` (`perf_counter`); emit the event."""
        seconds, policy, view, measured = perf_counter() - started, self.strategy.policy, choice.view, None
        if self.schedule is None and not self.failure:
            measured = policy.measured(state.policy, view)
            state.policy = policy.after(state.policy, view, choice.reuse)
        state.consecutive = state.consecutive + 1 if choice.reuse else 0
        if choice.signal is not None and not (choice.reuse and policy.drift_since_computed):
            state.signal = choice.signal
        self._done[choice.denoiser, choice.branch] = None
        self._leads.setdefault((choice.denoiser, choice.sample), choice.reuse)
        self.emit(
            Decision(
                run=self.number,
                step=view.index,
                total=view.total,
                branch=choice.branch,
                sample=choice.sample,
                reused=choice.reuse,
                corrected=corrected,
                reason=choice.reason,
                sigma=view.sigma,
                noise=view.noise,
                drift=view.drift,
                measured=measured,
                error=error,
                host_seconds=choice.host_seconds + seconds,
            )
        )


def warn_given_up(label: str, doing: str, error: BaseException) -> str:
    """Warn that something has failed and every further step is computed; return why."""
    failure = f"{doing} failed: {type(error).__name__}: {error!s:.300}"
    trace = None if isinstance(error, OmniReuseError) else error
    logger.warning("%s computes every further step: %s", label, failure, exc_info=trace)
    return failure


def _ignore(decision: Decision) -> None:
    """Drop a decision."""
