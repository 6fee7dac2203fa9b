"""The position of a generation in its schedule, and its decisions: compute or reuse?"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from time import perf_counter

import torch

from omnireuse.forecasters.gap import Gap
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.branch_state import BranchState
from omnireuse.loop.events import Choice
from omnireuse.loop.policy import StepView
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.parametrization import NoiseLevel, Parametrization

__all__ = ["Decider", "layout_of"]


def layout_of(*values: object) -> Hashable:
    """Shape, dtype and device of every tensor among the values."""
    return tuple((tuple(v.shape), v.dtype, v.device) for v in values if isinstance(v, torch.Tensor))


class Decider:
    """The half of a generation that decides. It changes nothing but its position.

    Raises:
        StateError: a policy that cannot serve a run of so many steps.
    """

    def __init__(
        self, strategy: Strategy, levels: Sequence[NoiseLevel], total: int | None, agreement: Agreement
    ) -> None:
        self.strategy, self.total, self.agreement = strategy, total, agreement
        self._levels = tuple(levels)
        is_known = total is not None and 0 < total <= len(levels)
        is_known = is_known and all(level.sample_weight is not None for level in levels[:total])
        self.noises = tuple(level.coordinate for level in levels[:total]) if is_known else None
        """Noise fraction at each step; None where the scheduler's algebra is not known."""
        self.schedule = strategy.policy.schedule(total, self.noises) if total else None
        """The steps that the policy computes; None where it measures, or the number of steps is unknown. Guards may
        compute more: a step whose inputs changed shape computes."""
        self.forecaster, quantity = strategy.forecaster, strategy.chosen_quantity
        if total and self.schedule is not None:
            noises, computed = self.noises if strategy.axis == "noise" else None, tuple(sorted(self.schedule))
            is_followed = noises is not None and all(level.flow_scale is not None for level in levels[:total])
            if is_followed and strategy.follows_path:
                quantity = "velocity"
            self.forecaster = strategy.forecaster.for_run(total, computed, noises, quantity)
        self.outputs = Parametrization(quantity, is_required=strategy.quantity is not None)
        """Between the model's outputs and the remembered values."""
        self._states: dict[tuple[int, str, int | None], BranchState] = {}
        self._leads: dict[tuple[int, int | None], bool] = {}
        """What the first branch of each denoiser and sample has done at this step."""
        self.failure = ""
        """Why every further step computes, where something has failed."""
        self.index = 0
        """The current step, counted from 0."""
        self._locate()

    def _locate(self) -> None:
        is_known = self.index < len(self._levels)
        self.call_at(self._levels[self.index] if is_known else NoiseLevel(sigma=None, coordinate=float(self.index)))

    def call_at(self, level: NoiseLevel) -> None:
        """Until the step is over, the model is called at this noise level, as solvers do between two steps."""
        self.level = level
        """The noise level at which the model is called."""
        self.coordinate = self._coordinate_of(self.index, level)
        """That level on the strategy's axis."""

    def _coordinate_of(self, index: int, level: NoiseLevel) -> float:
        return float(index) if self.strategy.axis == "steps" else level.coordinate

    def gap_before(self, state: BranchState) -> Gap | None:
        """The reused steps since the branch last computed; None where there are none, or nothing corrects them."""
        first, now = self.index - state.consecutive, self.index
        quantity = self.outputs.quantity
        if quantity not in ("x0", "velocity") or self.strategy.region != "step" or not self.forecaster.corrects:
            return None
        if first == now or now >= len(self._levels):
            return None
        levels = self._levels[first : now + 1]
        coordinates = [self._coordinate_of(first + place, level) for place, level in enumerate(levels[:-1])]
        steps = [level.step if quantity == "x0" else level.velocity_step for level in levels]
        return Gap.between(quantity, coordinates, steps)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
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
        started = perf_counter()
        strategy, policy = self.strategy, self.strategy.policy
        state = self._states.get((denoiser, branch, sample)) or self._new_state(order)
        leader = self._leads.get((denoiser, sample)) if strategy.shared_cfg_decision else None
        if leader is not None or strategy.chosen_signal == "none":
            signal = None
        view = StepView(
            index=self.index,
            total=self.total,
            sigma=self.level.sigma,
            branch=order,
            drift=None if signal is None else state.drift(signal),
            error=state.error,
            noise=self.level.noise,
            noises=self.noises,
            coordinate=self.coordinate,
            order=self.forecaster.order,
        )
        is_changed = state.layout is not None and layout != state.layout
        # The policy is asked before the guards, so that one that cannot serve this run says so at the first step.
        if leader is not None:
            wanted = leader
        elif self.failure:
            wanted = False
        elif self.schedule is not None:
            wanted = self.index not in self.schedule
        else:
            wanted = policy.wants_reuse(policy.start() if is_changed else state.policy, view)
        must = self._guard(state, view, is_changed)
        if must is None and wanted and self.outputs.quantity in ("x0", "velocity") and not self.level.output_weight:
            must = "noiseless"
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

    def _new_state(self, order: int) -> BranchState:
        return BranchState(strategy=self.strategy, forecaster=self.forecaster, agreement=self.agreement, order=order)

    def _guard(self, state: BranchState, view: StepView, is_changed: bool) -> str | None:
        """Why a step must compute, whatever the policy says; None where the policy may decide."""
        if self.failure:
            return "failed"
        if view.index == 0:
            return "first"
        is_last = self.total is not None and view.index >= self.total - 1
        if is_last and self.strategy.policy.compute_last and (self.schedule is None or view.index in self.schedule):
            return "last"
        if is_changed:
            return "layout"
        if not state.memories or not all(memory.primed for memory in state.memories):
            return "unprimed"
        if view.drift is not None and not math.isfinite(view.drift):
            return "nonfinite"
        longest = self.strategy.max_consecutive
        return "longest" if longest is not None and state.consecutive >= longest else None
