"""One generation of one request: it decides at each step, forecasts missing outputs, and learns from computed ones.

It knows nothing of pipelines, hooks or threads. `examples/own_loop.py` shows its life: `computes`, then `use`, at each
step. Hosts that forecast each call of a step for itself put the same two questions for each call, `decide` and
`answer`, and `advance` at the end of the step. A batch whose rows are decided on one by one has a generation for each
row (`Wave`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from omnireuse.base.validation import field_error, is_whole
from omnireuse.errors import StateError
from omnireuse.forecasters.base import Forecaster, held_bytes
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.branch_state import BranchState
from omnireuse.loop.events import Choice, Decision, Hooks, observing
from omnireuse.loop.stepper import NOTHING, Stepper
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.parametrization import NoiseLevel, Parametrization
from omnireuse.policies.base import StepView

__all__ = ["Emit", "Generation", "layout_of"]

Emit = Callable[[Decision], None]


def layout_of(*values: object) -> tuple[tuple[tuple[int, ...], torch.dtype, torch.device], ...]:
    """Shape, dtype and device of every tensor among the values."""
    return tuple((tuple(v.shape), v.dtype, v.device) for v in values if isinstance(v, torch.Tensor))


class Generation(Stepper):
    """The state of one generation under a strategy. No tensors at first.

    It can be kept in an engine's own request, copied, moved between devices and freed. One thread at a time uses it;
    different generations share nothing.

    Args:
        strategy: what decides and forecasts.
        levels: noise level of each step (`noise_levels(scheduler)`); empty if unknown.
        total: number of steps, ≥ 1; that of the levels by default, unknown without any.
        at: the first step that is made, if a run begins in the middle, as image-to-image and resumed requests do,
            ≥ 0 and below `total`. That part is a run of its own: the generation counts its steps from 0, its first step
            is computed, and the computed steps are spread over it.
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
                must = f"be a step of the run, counted from 0, and {length}"
                raise field_error("Generation", "at", must, f"{at!r:.60}", do="give the levels of all steps, or total=")
            levels, steps = levels[at:], steps - at
        self.strategy, self.agreement = strategy, agreement or Agreement()
        self.number, self.hooks = number, Hooks() if emit is None else Hooks(observing(emit))
        self.total = steps
        """Number of steps; None if it is not known."""
        self.levels = tuple(levels)
        """Noise level of each step; empty if unknown."""
        self.plan = plan = strategy.for_run(steps, self.levels)
        """What is known of the run before it begins."""
        self.noises, self.schedule, self.forecaster = plan.noises, plan.schedule, plan.forecaster
        self.outputs = Parametrization(plan.target, is_required=strategy.prediction_target is not None)
        """Between the model's outputs and the remembered values."""
        self.fallbacks: set[str] = set()
        """What this generation does in place of what was asked for, for the summary."""
        self.change: tuple[Hashable, Hashable] | None = None
        """The layouts before and after the latest change of one."""
        self.sample: int | None = None
        """The row of its batch that it serves, for its events; None if it serves all rows together."""
        self.is_of_new_kind = False
        """Whether this step's output is of another kind than those before, as when guidance begins or ends. A computed
        one starts the memory anew; a forecast is the last one that the old memory is used for."""
        self._choice: Choice | None = None
        """Of the step that `computes` was asked for, until `use`."""
        self._move_to(0)
        self._states: dict[tuple[int, str], BranchState] = {}
        self._leads: dict[int, bool] = {}
        """Decisions of the first branch of each denoiser at this step: reused or not."""
        self._done: set[tuple[int, str]] = set()
        """Denoisers and branches whose choices were carried out at this step."""

    @property
    def finished(self) -> bool:
        """True if all steps are done."""
        return self.total is not None and self.index >= self.total

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        """Whether the model is called at this step. Ask once for each step, in order.

        Raises:
            StateError: another step is due.
        """
        if step != self.index:
            raise StateError(f"step {step} is asked for although step {self.index} is due")
        self._choice = self.decide(signal=latents, layout=(kind, *(() if latents is None else layout_of(latents))))
        return not self._choice.reuse

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        """The solver's input: the output, corrected or as it is, or its forecast. Ends the step.

        Raises:
            StateError: `computes` was not asked for this step.
        """
        choice, self._choice = self._choice, None
        if choice is None:
            raise StateError("Generation.use: the step must be asked for first; call computes(step, latents)")
        if output is not None and choice.reuse:  # the host has computed all the same
            choice = replace(choice, reuse=False)
        used = self.answer(choice, None if output is None else [output], [latents])
        self.advance()
        return used[0]

    def answer(
        self, choice: Choice, outputs: Sequence[torch.Tensor] | None, samples: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor]:
        """What stands for a branch's outputs at this step: forecasts, corrected outputs, or they themselves.

        Args:
            choice: made at this step.
            outputs: of the model; kept only as copies. Not looked at on a reuse.
            samples: what each output was computed from, or would have been: the latents.
        """
        is_of_new_kind, self.is_of_new_kind = self.is_of_new_kind, False
        forecasts = self.predict_outputs(choice, samples) if choice.reuse else None
        if is_of_new_kind:
            self.forget(choice)
        if forecasts is not None:
            return forecasts
        if outputs is None:
            raise StateError(f"step {self.index} computes ({choice.reason}), and its output must be given")
        corrected = self.observe_outputs(choice, outputs, samples)
        return outputs if corrected is None else corrected

    def carry_out(self, choice: Choice, output: torch.Tensor | None, latents: torch.Tensor) -> torch.Tensor:
        """The solver's input for one choice of this step, as `answer` for one output."""
        return self.answer(choice, None if output is None else [output], [latents])[0]

    def decide(
        self,
        branch: str = "step",
        *,
        denoiser: int = 0,
        order: int = 0,
        layout: Hashable = None,
        signal: torch.Tensor | None = None,
    ) -> Choice:
        """Decide whether the step is computed or reused. Changes nothing.

        Args:
            branch: names the branch; what it remembers is its own.
            denoiser: number of the model, if there are several.
            order: place among the step's calls of the denoiser, from 0.
            layout: of the inputs (`layout_of`); a reuse needs the remembered one.
            signal: the tensor to watch; ignored if the strategy watches none.

        Raises:
            StateError: a policy that depends on the number of steps, which is not known.

        Cost: one host synchronisation if the policy measures, and one all-reduce if ranks agree.
        """
        started, strategy, level = perf_counter(), self.strategy, self.level
        state = self._states.get((denoiser, branch)) or self._new_state(order)
        leader = self._leads.get(denoiser) if strategy.shared_cfg_decision else None
        if leader is not None or strategy.chosen_signal == "none":
            signal = None
        view = StepView(
            index=self.index,
            total=self.total,
            sigma=level.sigma,
            branch=order,
            drift=None if signal is None else state.drift(signal),
            error=state.error,
            noise=None if level.sample_weight is None else level.coordinate,
            noises=self.noises,
            coordinate=self.coordinate,
            order=self.forecaster.order,
        )
        # What a branch remembers is older than its age says if it was not asked at the step before.
        is_paused = state.step is not None and state.step < self.index - 1
        is_changed = is_paused or (state.layout is not None and layout != state.layout)
        reuse, reason = self._verdict(state, view, leader, is_changed, is_paused)
        return Choice(
            reuse=reuse,
            reason=reason,
            branch=branch,
            denoiser=denoiser,
            view=view,
            layout=layout,
            is_changed=is_changed,
            signal=None if signal is None else signal.detach().clone(),
            host_seconds=perf_counter() - started,
        )

    def _verdict(
        self, state: BranchState, view: StepView, leader: bool | None, is_changed: bool, is_paused: bool
    ) -> tuple[bool, str]:
        """Reuse or compute, with the reason: the policy answers, and the first guard that holds overrules it."""
        policy, longest, row, must = self.strategy.policy, self.strategy.max_consecutive, self.row, self.row.must
        # The policy is asked before the guards, so that one that cannot serve this run says so at the first step.
        if leader is not None:
            is_wanted = leader
        elif row.reuses is not None:
            is_wanted = row.reuses
        else:
            is_wanted = policy.wants_reuse(policy.start() if is_changed else state.policy, view)
        if must is not None:
            pass
        elif is_changed:
            must = "paused" if is_paused else "layout"
        elif not state.primed:
            must = "unprimed"
        elif view.drift is not None and not math.isfinite(view.drift):
            must = "nonfinite"
        elif longest is not None and state.consecutive >= longest:
            must = "longest"
        elif is_wanted and self.outputs.target in ("x0", "velocity") and not row.level.output_weight:
            must = "noiseless"
        return is_wanted and must is None, must or ("policy" if leader is None else "together")

    def predict_outputs(self, choice: Choice, samples: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The forecasts of the model's outputs, in their dtypes."""
        started, state = perf_counter(), self.state_of(choice)
        outputs = self.outputs.outputs(self.row.factors, samples, self.forecasts(state), state.output_dtypes)
        self.conclude(choice, state, started)
        return outputs

    def forecasts(self, state: BranchState) -> list[torch.Tensor]:
        """The forecast of each value of a branch, in the dtype it was computed in; read-only."""
        found = []
        for memory, shape, dtype in zip(state.memories, state.shapes, state.dtypes, strict=True):
            forecast = memory.predict(self.coordinate)
            if getattr(forecast, "shape", None) != shape:
                raise state.shape_error(forecast, shape)
            found.append(forecast.to(dtype))
        return found

    def observe_outputs(
        self, choice: Choice, outputs: Sequence[torch.Tensor], samples: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor] | None:
        """Learn from the model's outputs; their corrections, or None if they are used as they are."""
        started, state, algebra = perf_counter(), self.state_of(choice), self.outputs
        values = algebra.values(self.level, samples, outputs)
        if not values:
            self.record_computed(choice)
            return None
        state.output_dtypes = [output.dtype for output in outputs]
        error, corrected = state.observe(
            self.coordinate,
            values,
            signal=choice.signal,
            scales=partial(algebra.scales, self.level, samples, outputs, values),
            gap=state.gap_before(self.index, self.levels, algebra.target),
            forecasts=partial(self.forecasts, state),
        )
        self.conclude(choice, state, started, error=error, corrected=corrected is not None)
        return None if corrected is None else algebra.outputs(self.row.factors, samples, corrected, state.output_dtypes)

    def record_computed(self, choice: Choice) -> None:
        """Record a computed step without remembering anything of it."""
        self.forget(choice)
        self.conclude(choice, self.state_of(choice), perf_counter())

    def forget(self, choice: Choice) -> None:
        """Drop this branch's memory, for example when guidance begins or ends: outputs are then of another kind."""
        self.state_of(choice).forget()

    def advance(self) -> None:
        """End the step."""
        before = self.forecaster
        if self._done and type(before).after_calls is not Forecaster.after_calls:
            self.forecaster = before.after_calls(self.index, len(self._done))
        if self.forecaster is not before:
            self._states.clear()
        self._move_to(self.index + 1)
        self._done.clear()
        self._leads.clear()

    def _move_to(self, index: int) -> None:
        self.index, self.row = index, self.plan.rows[index] if index < len(self.plan.rows) else self.plan.row(index)
        """The current step, counted from 0, and what is known of it."""
        self.level, self.coordinate = self.row.level, self.row.coordinate
        """The noise level at which the model is called, and that on the strategy's axis."""

    def call_at(self, level: NoiseLevel) -> None:
        """Set the noise level of the model's calls until the step ends, as solvers do between two steps."""
        self.row = self.plan.row(self.index, level)
        self.level, self.coordinate = level, self.row.coordinate

    def begin_at(self, step: int, remembered: Generation | None = None) -> None:
        """Begin at a later step of a run, with the memory of the generation of the steps before, under an equal
        strategy. That step is computed unless there is enough to forecast it from."""
        self._move_to(step)
        if remembered is not None:
            known = remembered.copy()
            self._states, self.outputs = known._states, known.outputs

    def finish(self) -> None:
        """Drop everything that is kept."""
        self._states.clear()
        self._done.clear()
        self._leads.clear()

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage held; each storage counts once."""
        return held_bytes(self._states.values())

    def copy(self) -> Generation:
        """A generation that goes on independently; remembered tensors, which nobody writes to, are shared."""
        return self._transformed(lambda tensor: tensor)

    def of_row(self, row: int) -> Generation:
        """A generation for one row of this one's batch, which remembers nothing yet. What belongs to the run is shared:
        plan, outputs, fallbacks, hooks."""
        own = copy.copy(self)
        own.sample, own._states, own._done, own._choice = row, {}, set(), None
        own._leads = {} if row else self._leads  # a call of one row follows the first row
        return own

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
        twin._done, twin._leads, twin.fallbacks = set(self._done), dict(self._leads), set(self.fallbacks)
        return twin

    def _new_state(self, order: int) -> BranchState:
        return BranchState(strategy=self.strategy, forecaster=self.forecaster, agreement=self.agreement, order=order)

    def state_of(self, choice: Choice) -> BranchState:
        """The state that a choice is carried out on, without values of another layout."""
        key = choice.denoiser, choice.branch
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._new_state(choice.view.branch)
        if choice.is_changed and (state.layout, state.step) != (choice.layout, self.index):
            if state.layout != choice.layout:
                self.change = state.layout, choice.layout
            state.forget()
        state.layout, state.step = choice.layout, self.index
        return state

    def fall_back(self, on: str, why: str) -> None:
        """Count a fallback of this generation; say why, once for each text."""
        self.fallbacks.add(on)
        self.outputs.said.say(why)

    def conclude(
        self, choice: Choice, state: BranchState, started: float, *, error: float | None = None, corrected: bool = False
    ) -> None:
        """Tell the policy the decision and the time since `started` (`perf_counter`); emit the event."""
        policy, view, measured = self.strategy.policy, choice.view, None
        seconds = choice.host_seconds + perf_counter() - started
        if self.schedule is None:
            measured = policy.measured(state.policy, view)
            state.policy = policy.after(state.policy, view, choice.reuse)
        state.consecutive = state.consecutive + 1 if choice.reuse else 0
        if choice.signal is not None and not (choice.reuse and policy.drift_since_computed):
            state.signal = choice.signal
        self._done.add((choice.denoiser, choice.branch))
        self._leads.setdefault(choice.denoiser, choice.reuse)
        if not self.hooks.all:
            return
        decision = Decision(
            run=self.number,
            step=view.index,
            total=view.total,
            branch=choice.branch,
            sample=self.sample,
            reused=choice.reuse,
            corrected=corrected,
            reason=choice.reason,
            sigma=view.sigma,
            noise=view.noise,
            drift=view.drift,
            measured=measured,
            error=error,
            heading=None if choice.reuse else state.heading,
            host_seconds=seconds,
        )
        for hook in self.hooks.all:
            hook(decision)
