"""One run of a ComfyUI sampler, in which its calls of the model are forecast instead of computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from omnireuse import Choice, Generation, Steps, Strategy, layout_of
from omnireuse.loop.generation import Emit
from omnireuse_engines.comfyui.noise import RunNoise

__all__ = ["SamplingRun", "active_conditions"]

Conditions = Sequence[Iterable[dict[str, Any]] | None]


class SamplingRun:
    """The state of one run. It is made when the run begins and dropped when it ends.

    A step is what lies between two sigmas of the run's schedule. A solver that calls the model several times a step, at
    sigmas of its own, gets each forecast at the sigma of the call. Further calls at one sigma (Heun's method makes two)
    have a history of their own, since their latents differ.

    Args:
        strategy: in region "step" or "call".
        sigmas: of the steps, and the one at which the run ends. Those of a part of a denoising have the steps of all
            other parts among them.
        model_sampling: ComfyUI's.
        sampler: name of the sampler's function.
        call_sigmas: of all calls that the sampler will make; None if each is read from the device.
        number: of the run, for its events.
        emit: takes an event for each decision.
        always: steps that are computed whatever the policy says.
        first: number of steps that other samplers have made.
        remembered: the state that they left; None if unknown.
    """

    def __init__(
        self,
        strategy: Strategy,
        sigmas: Sequence[float],
        model_sampling: object,
        *,
        sampler: str,
        call_sigmas: Sequence[float] | None = None,
        number: int,
        emit: Emit,
        always: frozenset[int] = frozenset(),
        first: int = 0,
        remembered: Generation | None = None,
    ) -> None:
        self.strategy, self._always, self._by_derivative = strategy, always, strategy.chosen_target == "output"
        self.noise = RunNoise(sigmas, model_sampling, derivative=self._by_derivative, sampler=sampler)
        levels = self.noise.levels
        self.generation = Generation(strategy, levels, number=number, emit=emit)
        if always and self.generation.schedule is not None:
            # Forecasts look ahead to the next computed step.
            steps = self.generation.schedule | {step for step in always if step < len(levels)}
            policy = Steps(steps=tuple(steps), compute_last=strategy.policy.compute_last)
            self.generation = Generation(replace(strategy, policy=policy), levels, number=number, emit=emit)
        if first:
            self.generation.begin_at(first, remembered)
        self.calls = 0
        """Calls of the model that came by, whatever was done with them."""
        self.is_by_part = False
        """Whether the solver steps from parts of guidance."""
        self.sigma = -1.0
        """The latest call's."""
        self._known, self.call_sigmas = call_sigmas, list[float]()
        self._repeats = self._parts = 0

    def sigma_of(self, timestep: torch.Tensor) -> float:
        """The sigma of the call to come."""
        known, place = self._known, len(self.call_sigmas)
        self.call_sigmas.append(known[place] if known and place < len(known) else float(timestep.flatten()[0]))
        return self.call_sigmas[-1]

    @property
    def is_as_known(self) -> bool:
        """Whether the sampler has made as many calls as was known of it."""
        return self._known is None or self.calls == len(self._known)

    def begin_call(self, sigma: float) -> None:
        """The solver calls the model."""
        self.calls += 1
        self._parts = 0
        self._repeats = self._repeats + 1 if sigma == self.sigma else 0
        self.sigma = sigma
        while self.generation.index < self.noise.step_of(sigma):
            self.generation.advance()
        self.generation.call_at(self.noise.level_at(sigma))

    def compute_whole(self) -> None:
        """The call is computed, and nothing is remembered of it: the solver steps from parts of guidance."""
        self.is_by_part = True
        self.generation.record_computed(replace(self.generation.decide(), reuse=False, reason="cfg++"))

    def whole(self, compute: Callable[[], torch.Tensor], x: torch.Tensor, conditions: object) -> torch.Tensor:
        """x0 after guidance, computed or forecast.

        Args:
            conditions: a forecast is possible only if they are as they were.
        """
        return self._outputs(lambda: [compute()], x, ["step"], conditions)[0]

    def parts(
        self, compute: Callable[[], Sequence[torch.Tensor]], x: torch.Tensor, given: Conditions, conditions: object
    ) -> Sequence[torch.Tensor]:
        """x0 of each part of guidance, computed or forecast together.

        Args:
            given: the conditions of each part; None for one that is not asked for.
        """
        asked = [place for place, each in enumerate(given) if each is not None]
        computed: list[torch.Tensor] = []

        def compute_asked() -> list[torch.Tensor]:
            computed.extend(compute())
            return [computed[place] for place in asked]

        outputs = self._outputs(compute_asked, x, [f"{self._parts + place}" for place in range(len(asked))], conditions)
        self._parts += len(asked)
        found = dict(zip(asked, outputs, strict=True))
        return [found[place] if place in found else torch.zeros_like(x) for place in range(len(given))]

    def _outputs(
        self, compute: Callable[[], list[torch.Tensor]], x: torch.Tensor, branches: Sequence[str], conditions: object
    ) -> list[torch.Tensor]:
        """One x0 for each branch; all of them are computed if one of them must be."""
        layout = (layout_of(x), conditions)
        names = [f"{branch} again" * bool(self._repeats) or branch for branch in branches]
        choices = [
            self.generation.decide(name, order=int(branch) if branch.isdigit() else 0, layout=layout)
            for name, branch in zip(names, branches, strict=True)
        ]
        if self.generation.index not in self._always and all(choice.reuse for choice in choices):
            return [self._x0(self.generation.carry_out(choice, None, x), x) for choice in choices]
        pairs = zip(choices, compute(), strict=True)
        return [self._observed(replace(choice, reuse=False), x0, x) for choice, x0 in pairs]

    def _observed(self, choice: Choice, x0: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        output = (x - x0) / self.sigma if self._by_derivative and self.sigma else x0
        used = self.generation.carry_out(choice, output, x)
        return x0 if used is output else self._x0(used, x)

    def _x0(self, output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x - output * self.sigma if self._by_derivative and self.sigma else output

    def finish(self) -> int:
        """Drop all tensors; returns their bytes."""
        kept = self.generation.kept_bytes
        self.generation.finish()
        return kept


def active_conditions(groups: Iterable[Iterable[dict[str, Any]] | None], sigma: float) -> tuple[bool, ...]:
    """The conditions, and the controls of each, that count at this sigma: those with a range begin and end
    in the midst of a run, and x0 jumps where they do."""
    found = []
    for condition in (each for group in groups for each in group or ()):
        found.append(condition.get("timestep_end", 0.0) <= sigma <= condition.get("timestep_start", float("inf")))
        control = condition.get("control")
        while control is not None:
            start, end = getattr(control, "timestep_range", None) or (float("inf"), 0.0)
            found.append(end <= sigma <= start)
            control = getattr(control, "previous_controlnet", None)
    return tuple(found)
