"""Continuous batching: each request of a wave computes or is forecast, as its own state says.

vllm-omni runs one denoising step of all running requests in a wave. Requests that compute go through the transformer in
one smaller batch; the others are forecast in one fused operation; the results are put back in the wave's order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.batch import Row, observe_batch, predict_batch
from omnireuse.diffusion.reuse.forecasters import Fitted
from omnireuse.diffusion.reuse.generation import Generation, layout_of
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.schedulers import noise_levels
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.integrations.phases import WavePlanner
from omnireuse.integrations.request import RequestReuse
from omnireuse.integrations.settings import KEY, Plan

__all__ = ["Waves"]

logger = logging.getLogger("omnireuse")


class Waves:
    """Stands before a pipeline's `denoise_step`.

    Args:
        denoise: the pipeline's own `denoise_step(input_batch, *, states, **kwargs)`.
        sub_batch: makes the input batch of some of the wave's requests.
        plan: what a request follows.
        planner: moves the computed steps of a request to waves in which others compute; None leaves every request the
            schedule that it would have alone.
    """

    def __init__(
        self,
        denoise: Callable[..., Any],
        sub_batch: Callable[[list[Any]], Any],
        plan: Callable[[Any], Plan],
        planner: WavePlanner | None = None,
    ) -> None:
        self._denoise = denoise
        self._sub_batch = sub_batch
        self._plan = plan
        self._planner = planner
        self._wave = 0
        self._warned = False
        self.computed_whole = 0
        """Waves whose outputs are no single tensor, and which were computed whole for that."""

    def denoise_step(self, input_batch: Any, *, states: Sequence[Any] | None = None, **kwargs: Any) -> Any:
        """One denoising step of a wave.

        Args:
            input_batch: of all requests of the wave.
            states: the engine's state of each, in order; `latents` have shape (rows, …).

        Returns:
            The outputs of all rows, in the order of the states; None where the pipeline was interrupted.
        """
        if not states:
            return self._denoise(input_batch, states=states, **kwargs)
        self._wave += 1
        if self._planner is not None:
            self._planner.finish(self._wave)
        requests = [self._request(state) for state in states]
        choices = [
            None
            if request.generation is None
            else request.generation.decide(layout=layout_of(state.latents), signal=state.latents)
            for request, state in zip(requests, states, strict=True)
        ]
        is_computed = [choice is None or not choice.reuse for choice in choices]
        outputs: list[torch.Tensor | None] = [None] * len(states)
        computing = [state for state, computes in zip(states, is_computed, strict=True) if computes]
        if computing:
            batch = input_batch if len(computing) == len(states) else self._sub_batch(computing)
            output = self._denoise(batch, states=computing, **kwargs)
            if not isinstance(output, torch.Tensor):
                return self._without_reuse(output, input_batch, states, requests, batch is input_batch, kwargs)
            parts = iter(output.split([state.latents.shape[0] for state in computing]))
            outputs = [next(parts) if computes else None for computes in is_computed]
        # Nothing of any request has changed up to here: a step that raises leaves all of them as they were.
        everything = zip(requests, choices, states, outputs, strict=True)
        rows = [
            (place, Row(generation=request.generation, choice=choice, sample=state.latents, output=output))
            for place, (request, choice, state, output) in enumerate(everything)
            if request.generation is not None and choice is not None
        ]
        for fused, of in ((observe_batch, True), (predict_batch, False)):
            chosen = [(place, row) for place, row in rows if is_computed[place] is of]
            for (place, _), value in zip(chosen, fused([row for _, row in chosen]), strict=True):
                outputs[place] = value
        self._count(states, requests, is_computed)
        return torch.cat([output for output in outputs if output is not None])

    def _request(self, state: Any) -> RequestReuse:
        kept: RequestReuse | None = state.extra.get(KEY)
        if kept is None:
            plan = self._plan(state)
            kept = state.extra[KEY] = RequestReuse(plan, self._start(plan, state), chunk=state.chunk_index)
        elif kept.chunk != state.chunk_index:
            kept.chunk, kept.generation = state.chunk_index, self._start(kept.plan, state)
        return kept

    def _start(self, plan: Plan, state: Any) -> Generation | None:
        if plan.strategy is None:
            return None
        scheduler = state.scheduler
        levels = noise_levels(scheduler) if hasattr(scheduler, "timesteps") else ()
        strategy = self._in_phase(plan.strategy, plan.strategy.start(levels, total=state.total_steps), state)
        generation = strategy.start(levels, total=state.total_steps, agreement=Agreement(plan.group))
        generation.index = state.step_index
        return generation

    def _in_phase(self, strategy: Strategy, alone: Generation, state: Any) -> Strategy:
        """The strategy with the planner's steps. Fitted weights belong to the steps they were fitted for, and a policy
        that measures has no steps ahead of the run: both stay."""
        own = alone.schedule
        if self._planner is None or own is None or isinstance(strategy.forecaster, Fitted) or state.step_index:
            return strategy
        steps = self._planner.place(own, state.total_steps, wave=self._wave, rows=state.latents.shape[0])
        return replace(strategy, policy=FixedSchedule(steps=tuple(sorted(steps))))

    def _without_reuse(
        self,
        output: Any,
        input_batch: Any,
        states: Sequence[Any],
        requests: Sequence[RequestReuse],
        is_whole: bool,
        kwargs: dict[str, Any],
    ) -> Any:
        """The step of a wave whose output is no tensor: an interrupt, or outputs of several kinds."""
        if output is None:
            return None
        self.computed_whole += 1
        if not self._warned:
            self._warned = True
            logger.warning(
                "the pipeline's denoise_step returns %s and not one tensor: every step is computed",
                type(output).__name__,
            )
        if not is_whole:
            output = self._denoise(input_batch, states=states, **kwargs)
        for request in requests:
            request.generation = None
        self._count(states, requests, [True] * len(requests))
        return output

    @staticmethod
    def _count(states: Sequence[Any], requests: Sequence[RequestReuse], is_computed: Sequence[bool]) -> None:
        for state, request, computes in zip(states, requests, is_computed, strict=True):
            request.computed += computes
            request.reused += not computes
            if request.generation is not None:
                request.generation.advance()
            # The one mapping of numbers that travels with a request to its response; `hooks` makes metrics of them.
            state.stage_durations.update(request.figures())
