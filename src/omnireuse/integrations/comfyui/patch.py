"""Reuse on a model of ComfyUI: three wrappers on a clone, of the kinds that ComfyUI offers to custom nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from omnireuse.diffusion.reuse.runtime.inert import explain
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Stats, Summary
from omnireuse.diffusion.tuning.switch import is_off_by_environment
from omnireuse.errors import StateError, WrongTypeError
from omnireuse.integrations.comfyui.call_sigmas import CallSigmas
from omnireuse.integrations.comfyui.calls import SamplerCall
from omnireuse.integrations.comfyui.graph import sampler_name
from omnireuse.integrations.comfyui.plans import ProfilePlan
from omnireuse.integrations.comfyui.release import TESTED
from omnireuse.integrations.comfyui.sampling import SamplingRun, active_conditions
from omnireuse.integrations.comfyui.shadows import Measurement
from omnireuse.integrations.comfyui.tuning import SamplerTuner
from omnireuse.integrations.comfyui.wrappers import OUTER, PARTS, POST, PREDICT, Wrappers, wrapped
from omnireuse.integrations.settings import KEY, Plan

__all__ = ["Reuse", "attach", "refuse_other_caches", "reuse_of"]

logger = logging.getLogger("omnireuse")

_OTHERS = {"easycache": "EasyCache", "lazycache": "LazyCache"}
"""ComfyUI's own step caches, by the keys of their wrappers."""


class Reuse:
    """Reuse on one patched model: its wrappers, and what its runs have done.

    Args:
        plan: what its runs follow.
        tune: whether the first pictures are measured, and a plan that suits them followed from then on.
        item: names the item of ComfyUI's queue that is under way. ComfyUI keeps a patched model for the items after,
            and the summary is of the latest alone.
    """

    def __init__(self, plan: Plan, *, tune: bool = False, item: Callable[[], object] = lambda: None) -> None:
        assert plan.strategy is not None, "a node reuses"
        self.plan, self._strategy = plan, plan.strategy
        self._tuner = SamplerTuner(self._strategy) if tune and not is_off_by_environment() else None
        self._item_now, self._item = item, item()
        self._call_sigmas = CallSigmas()
        self._numbers = count(1)
        self._said: set[str] = set()
        self._begin_item()

    def _begin_item(self) -> None:
        self._stats = Stats(self.plan.name, self.plan.promise)
        if isinstance(self.plan, ProfilePlan) and self.plan.is_fallback:
            self._stats.fell_back("a forecaster without fitted weights")
        self._kept_bytes = 0

    def summary(self) -> Summary:
        """What the runs of the latest item of the queue have done so far."""
        summary = self._stats.summary(kept_bytes=self._kept_bytes, calls_outside=0)
        return summary if self._tuner is None else replace(summary, tuning=self._tuner.tuning)

    @property
    def wrappers(self) -> dict[str, Wrappers]:
        """By the kinds of ComfyUI's `WrappersMP`."""
        return {OUTER: self.sample, PREDICT: self.predict, PARTS: self.predict_parts}

    def sample(
        self, executor: Any, noise: Any, latent_image: Any, sampler: Any, sigmas: Any, *rest: Any, **named: Any
    ) -> Any:
        """A run of the sampler. Its state lives in a copy of the guider's options, and ends with it.

        Raises:
            StateError: another step cache stands on the model.
        """
        guider = executor.class_obj
        if (item := self._item_now()) != self._item:
            self._item = item
            self._begin_item()
        self._compare(sampler, guider)
        refuse_other_caches(guider.model_options.get("transformer_options", {}).get("wrappers", {}).get(OUTER, {}))

        def proceed() -> Any:
            return executor(noise, latent_image, sampler, sigmas, *rest, **named)

        strategy = self._strategy
        if self._tuner is not None:
            call = SamplerCall.of(guider, noise, latent_image, sampler, sigmas, rest, named)
            chosen = self._tuner.begin(executor, call, number=next(self._numbers), emit=self._stats.inbox.append)
            if isinstance(chosen, Measurement):
                try:
                    return self._tuner.measure(executor, call, chosen, proceed)
                finally:
                    self._stats.end_run(chosen.generation.number)
                    logger.info("omnireuse (%s): %s", self.plan.name, self._tuner.tuning)
            strategy = chosen
        return self._reused(guider, strategy, sampler, sigmas, proceed)

    def _reused(
        self, guider: Any, strategy: Strategy, sampler: Any, sigmas: torch.Tensor, proceed: Callable[[], Any]
    ) -> Any:
        values = sigmas.tolist()
        run = self._run(guider, strategy, sampler, values)
        if run is None:
            return proceed()
        options = guider.model_options
        inner = {**options.get("transformer_options", {}), KEY: (run, len(options.get(POST, [])))}
        guider.model_options = {**options, "transformer_options": inner}
        try:
            result = proceed()
            if run.is_as_known:
                self._call_sigmas.learn(sampler, values, run.call_sigmas)
            else:
                self._call_sigmas.forget(sampler, values)
            self._explain(run, guider)
            return result
        finally:
            guider.model_options = options
            run.finish()
            self._kept_bytes = max(self._kept_bytes, run.kept_bytes)
            self._stats.end_run(run.generation.number)

    def _compare(self, sampler: Any, guider: Any) -> None:
        """Promise nothing of runs with another sampler or another guidance than the profile was made with."""
        made_for = self.plan.made_for if isinstance(self.plan, ProfilePlan) else None
        name, cfg = sampler_name(sampler), getattr(guider, "cfg", None)
        if made_for is not None and (name, cfg) != made_for:
            unlike = f"it was calibrated with {made_for[0]} at cfg {made_for[1]:g}, this run has {name} at cfg {cfg}"
            self._warn(f"{self.plan.name}: {unlike}")
            self._stats.withdraw(unlike)

    def _run(self, guider: Any, strategy: Strategy, sampler: Any, sigmas: list[float]) -> SamplingRun | None:
        """The state of a run; None where no step of it can be reused."""
        if len(sigmas) < 2:
            return None
        run = SamplingRun(
            strategy,
            sigmas,
            guider.model_patcher.get_model_object("model_sampling"),
            sampler=sampler_name(sampler),
            call_sigmas=self._call_sigmas.known(sampler, sigmas),
            number=next(self._numbers),
            emit=self._stats.inbox.append,
        )
        if not run.noise.falls:
            self._warn("omnireuse computes every step of this run: its sigmas rise in between")
            self._stats.fell_back("full runs")
            return None
        caution = strategy.policy.caution(len(run.noise.sigmas), run.generation.noises)
        if caution is not None:
            self._warn(caution)
        return run

    def predict(
        self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any = None, seed: Any = None
    ) -> Any:
        """A call of the model by the solver: x0 after guidance."""
        options = options or {}
        found = options.get("transformer_options", {}).get(KEY)
        if found is None:
            return executor(x, timestep, options, seed)
        run, own_functions = found
        sigma = run.sigma_of(timestep)
        # A solver that reads the parts of guidance (CFG++) hands a function of its own along.
        run.begin_call(sigma, by_part=len(options.get(POST, [])) > own_functions)
        if run.strategy.region == "call":
            return executor(x, timestep, options, seed)
        conditions = active_conditions(getattr(executor.class_obj, "conds", {}).values(), sigma)
        return run.whole(lambda: executor(x, timestep, options, seed), x, conditions)

    def predict_parts(
        self, executor: Any, model: Any, conds: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any
    ) -> Any:
        """The calls of the model for the conditions of all parts of guidance."""
        found = options.get("transformer_options", {}).get(KEY)
        if found is None or found[0].strategy.region != "call":
            return executor(model, conds, x, timestep, options)
        conditions = active_conditions(conds, found[0].sigma)
        return found[0].parts(lambda: executor(model, conds, x, timestep, options), x, conds, conditions)

    def _explain(self, run: SamplingRun, guider: Any) -> None:
        """Log what a whole run has done, and why nothing where that was not meant."""
        if not run.calls:
            self._warn(
                f"omnireuse has seen no call of the model in this run: {type(guider).__name__} does not go through "
                "ComfyUI's predict_noise wrappers"
            )
            return
        strip = self.summary().last_run
        computed = sum(share or 0.0 for share in strip)
        logger.info("omnireuse (%s): %.3g of %d steps computed", self.plan.name, computed, len(strip))
        if not run.is_as_known:
            self._warn(
                f"omnireuse knew of {len(run.noise.sigmas)} steps, and the sampler made {run.calls} calls of the model "
                "that do not fit them: other steps may have been computed than were meant"
            )
        record = self._stats.end_run(run.generation.number)
        explanation = None if record is None else explain(run.strategy, record)
        if explanation is not None:
            self._warn(str(explanation))

    def _warn(self, text: str) -> None:
        """Once for each model and text."""
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)

    def __repr__(self) -> str:
        return f"Reuse({self.plan.name!r})"


def attach(model: Any, plan: Plan, *, tune: bool = False, item: Callable[[], object] = lambda: None) -> Any:
    """A clone of the model that reuses steps; the model itself stays as it is. A plan on the model before is replaced.

    Args:
        model: ComfyUI's `ModelPatcher`.
        plan: what its runs follow.
        tune: whether the first pictures are measured; the environment may turn it off (OMNIREUSE_TUNE=0).
        item: names the item of ComfyUI's queue that is under way.

    Raises:
        WrongTypeError: no model, or one of a ComfyUI without wrappers.
    """
    if not hasattr(model, "add_wrapper_with_key"):
        raise WrongTypeError(
            f"Omnireuse(model={type(model).__name__}): model must have ComfyUI's wrappers (add_wrapper_with_key), got "
            f"none; update ComfyUI (tested: {', '.join(TESTED)})"
        )
    return wrapped(model, Reuse(plan, tune=tune, item=item).wrappers)


def refuse_other_caches(keys: Iterable[str]) -> None:
    """Refuse another step cache.

    Args:
        keys: of the wrappers around a run.

    Raises:
        StateError: there is one.
    """
    for key in _OTHERS.keys() & set(keys):
        raise StateError(
            f"Omnireuse and {_OTHERS[key]} are both on this model, and each would take the other's forecasts for "
            "the model's outputs; remove one of the two nodes"
        )


def reuse_of(model: Any) -> Reuse:
    """The reuse on a model, or on one that it was cloned from.

    Raises:
        StateError: there is none.
    """
    for wrapper in getattr(model, "get_wrappers", lambda *_: [])(OUTER, KEY):
        owner = getattr(wrapper, "__self__", None)
        if isinstance(owner, Reuse):
            return owner
    raise StateError("Omnireuse summary: this model has no reuse; connect the model that the Omnireuse node returns")
