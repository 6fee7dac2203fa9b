"""Plans that were tuned before, for requests of step mode: requests of a wave share calls, so none of them is measured
there."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from omnireuse.engines.settings import RequestPlan
from omnireuse.engines.vllm_omni.admission import refuse_plan
from omnireuse.engines.vllm_omni.calls import request_scales, untunable
from omnireuse.engines.vllm_omni.waves import levels_of
from omnireuse.errors import ConfigError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.strategy import Strategy
from omnireuse.tuning.budget import budget_for
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.store import Store

__all__ = ["ReadyPlans"]

logger = logging.getLogger("omnireuse")

MOST_KEPT = 256
"""Strategies that are kept in memory."""


class ReadyPlans:
    """The tuned plans of one pipeline that request mode, here or in another process, has left in the cache folder."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline, self._store = pipeline, Store()
        self._known: dict[tuple[str, int], Strategy] = {}
        self._said: set[str] = set()

    def tuned(self, plan: RequestPlan, state: Any) -> RequestPlan:
        """The tuned plan of a request that begins; the given one where there is none that a wave can follow."""
        if plan.strategy is None or state.step_index or untunable(state.sampling) is not None:
            return plan
        start = RunStart(
            total=state.total_steps,
            levels=levels_of(state),
            scheduler=state.scheduler,
            shape=tuple(state.latents.shape),
        )
        budget = budget_for(plan.strategy.policy, start)
        if isinstance(budget, str):
            return plan
        scales = request_scales(state.sampling, state.prompt)
        digest = Configuration.of(self._pipeline, start, scales).digest
        strategy = self._strategy(digest, len(budget.steps))
        if strategy is None:
            return plan
        tuned = replace(plan, strategy=strategy, name=f"{plan.name}, tuned", tuned=True)
        try:
            refuse_plan(tuned, place="a tuned plan")
        except ConfigError as error:
            self._say(f"the untuned default serves: {error}")
            return plan
        self._say(f"tuned: {len(budget.steps)} of {state.total_steps} steps by {self._store.file(digest)}")
        return tuned

    def _strategy(self, digest: str, count: int) -> Strategy | None:
        if (digest, count) not in self._known:
            profile = self._store.load(digest)
            plan = None if profile is None else profile.plans.get(count)
            if profile is None or plan is None or not plan.weights:
                return None
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            self._known[digest, count] = plan.strategy(profile.coordinates)
        return self._known[digest, count]

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.info("omnireuse: %s", text)
