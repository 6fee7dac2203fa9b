"""Reuse on a model of ComfyUI: three wrappers on a clone, of the kinds that ComfyUI offers to custom nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import Any

import torch

from omnireuse import Generation, Strategy
from omnireuse.arguments.tune import is_off_by_environment
from omnireuse.base.once import Once
from omnireuse.errors import StateError, WrongTypeError
from omnireuse.hooks.inert import explain
from omnireuse.loop.events import FellBack, RunEnded
from omnireuse.profiles.guidance import DEFAULT_PLAN
from omnireuse.summary.counters import Counts
from omnireuse.summary.summary import Summary
from omnireuse.tuning.loops import RequestPlan
from omnireuse_engines.comfyui.calls import SamplerCall, sampler_name
from omnireuse_engines.comfyui.nodes import Span
from omnireuse_engines.comfyui.parts import Part, SplitRuns
from omnireuse_engines.comfyui.sampling import SamplingRun, active_conditions
from omnireuse_engines.comfyui.solver import CallSigmas
from omnireuse_engines.comfyui.tuning import Measurement, SamplerTuner
from omnireuse_engines.comfyui.wrappers import (
    OUTER,
    PARTS,
    POST,
    PREDICT,
    TESTED,
    Wrappers,
    refuse_other_caches,
    wrapped,
)
from omnireuse_engines.host import SWITCH, is_switched_off
from omnireuse_engines.settings import KEY

__all__ = ["Reuse", "attach", "reuse_of"]

logger = logging.getLogger("omnireuse")

EVERYTHING = Span()
Item = Callable[[], object]
"""Names the item of ComfyUI's queue that is under way."""


class Reuse:
    """Reuse on one patched model: its wrappers, and the results of its runs.

    Args:
        plan: of its runs.
        tune: whether the first pictures are measured, and a plan that suits them followed from then on.
        span: the share of the denoising in which steps may be reused; within less than all of it nothing is tuned.
        item: names the item of ComfyUI's queue that is under way. ComfyUI keeps a patched model for the items after,
            and the summary is of the latest alone.
    """

    def __init__(
        self,
        plan: RequestPlan,
        *,
        tune: bool = False,
        span: Span = EVERYTHING,
        item: Item = lambda: None,
    ) -> None:
        self.plan, self._strategy, self._span = plan, plan.strategy, span
        is_tuned = tune and plan.strategy is not None and not is_off_by_environment()
        self._tuner = SamplerTuner(plan) if is_tuned else None
        self._parts = SplitRuns()
        self._item_now, self._item = item, item()
        self._call_sigmas = CallSigmas()
        self._numbers = count(1)
        self._said = Once()
        self._begin_item()

    def _begin_item(self) -> None:
        self._counts, self._full_steps = Counts(), 0

    def report(self) -> tuple[str, tuple[float | None, ...]]:
        """The summary in words, and the share of each step of the latest run that was computed."""
        if self._strategy is None or self._full_steps:
            why = "" if self._strategy is None else f", switched off by {SWITCH}"
            steps = f": all {self._full_steps} steps were computed" if self._full_steps else ""
            return f"{self.plan.name}{why}{steps}", (1.0,) * self._full_steps
        summary = self.summary()
        return str(summary), summary.last_run

    def summary(self) -> Summary:
        """The summary of the runs of the latest item of the queue, so far."""
        tuning = None if self._tuner is None else self._tuner.tuning
        return self._counts.summary(self.plan.name, self.plan.promise, tuning=tuning)

    @property
    def wrappers(self) -> dict[str, Wrappers]:
        """By the kinds of ComfyUI's `WrappersMP`."""
        return {OUTER: self.sample, PREDICT: self.predict, PARTS: self.predict_parts}

    def sample(
        self, executor: Any, noise: Any, latent_image: Any, sampler: Any, sigmas: Any, *rest: Any, **named: Any
    ) -> Any:
        """A run of the sampler. Its state lives in a copy of the guider's options, and ends with it; that of a run that
        leaves noise is kept until the next one begins.
        """
        guider = executor.class_obj
        if (item := self._item_now()) != self._item:
            self._item = item
            self._begin_item()

        def proceed() -> Any:
            return executor(noise, latent_image, sampler, sigmas, *rest, **named)

        strategy = None if is_switched_off() else self._strategy
        if strategy is None:
            self._full_steps = max(len(sigmas) - 1, 0)
            return proceed()
        self._full_steps = 0
        refuse_other_caches(guider.model_options.get("transformer_options", {}).get("wrappers", {}).get(OUTER, {}))
        call = SamplerCall.of(guider, noise, latent_image, sampler, sigmas, rest, named)
        part, before = self._parts.place(guider, call)
        if self._tuner is not None:
            untuned = "" if self._span.is_everything else "runs with start_percent or end_percent are not tuned"
            if part is not None:
                untuned = "a sampler that makes only a part of the denoising is not tuned"
            number, emit = next(self._numbers), self._counts.take
            chosen = self._tuner.begin(executor, call, number=number, emit=emit, untuned=untuned)
            if isinstance(chosen, Measurement):
                try:
                    return self._tuner.serve_measured(executor, chosen, proceed)
                finally:
                    self._counts.take(RunEnded(run=chosen.generation.number))
                    logger.info("omnireuse (%s): %s", self.plan.name, self._tuner.tuning)
            strategy = chosen or strategy
        run = self._run(guider, strategy, call, part, before)
        return proceed() if run is None else self._reused(guider, call, run, part, proceed)

    def _reused(
        self, guider: Any, call: SamplerCall, run: SamplingRun, part: Part | None, proceed: Callable[[], Any]
    ) -> Any:
        values, leaves_noise = call.sigmas.tolist(), part is not None and part.ends_early
        options = guider.model_options
        # Not among "transformer_options", which reach the model: torch.compile guards their number.
        guider.model_options = {**options, KEY: (run, len(options.get(POST, [])))}
        try:
            result = proceed()
            if not run.is_as_known:
                self._call_sigmas.forget(call.sampler, values)
            self._explain(run, guider, len(values) - 1, is_over=not leaves_noise)
            if part is not None and leaves_noise:
                self._parts.end(guider, call, part, result, run.generation)
            return result
        finally:
            guider.model_options = options
            kept = run.finish()
            if not leaves_noise:
                self._counts.take(RunEnded(run=run.generation.number, kept_bytes=kept))

    def _run(
        self, guider: Any, strategy: Strategy, call: SamplerCall, part: Part | None, before: Generation | None
    ) -> SamplingRun | None:
        """The state of a run; None if no step of it can be reused."""
        own = call.sigmas.tolist()
        if len(own) < 2:
            return None
        sigmas, model_sampling = own, guider.model_patcher.get_model_object("model_sampling")
        if part is not None:
            sigmas = list(part.sigmas)
            if part.begins_late and before is None:
                self._said.say(
                    f"omnireuse does not know the steps before these {part.own} of a denoising: another model, other "
                    "latents, another sampler, guidance or prompt made them; the first of these steps is computed"
                )
                self._counts.take(FellBack("nothing remembered of the sampler before"))
        always = self._span.to_compute(sigmas[:-1], model_sampling) | (part.to_compute if part else frozenset())
        run = SamplingRun(
            strategy,
            sigmas,
            model_sampling,
            sampler=sampler_name(call.sampler),
            call_sigmas=self._call_sigmas.known(call.sampler, own, guider.model_patcher),
            number=next(self._numbers) if before is None else before.number,
            emit=self._counts.take,
            always=always,
            first=part.first if part else 0,
            remembered=before,
        )
        if not run.noise.falls:
            self._said.say("omnireuse computes every step of this run: its sigmas rise in between")
            self._counts.take(FellBack("full runs"))
            return None
        promise = self.plan.promise
        if promise is not None and (unlike := promise.unlike(run.generation.total, run.generation.levels)) is not None:
            self._said.say(f"{self.plan.name}: {unlike}: the default's steps are computed")
            self._counts.take(FellBack(DEFAULT_PLAN))
        caution = strategy.policy.caution(len(run.noise.sigmas), run.generation.noises)
        if caution is not None:
            self._said.say(caution)
        return run

    def predict(
        self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any = None, seed: Any = None
    ) -> Any:
        """A call of the model by the solver: x0 after guidance."""
        options = options or {}
        found = options.get(KEY)
        if found is None:
            return executor(x, timestep, options, seed)
        run, own_functions = found
        sigma = run.sigma_of(timestep)
        run.begin_call(sigma)
        # A solver that reads the parts of guidance (CFG++) hands a function of its own along.
        if len(options.get(POST, [])) > own_functions:
            if not run.is_by_part:
                self._said.say(
                    "omnireuse computes every step of this sampler, which steps from a part of guidance (CFG++)"
                )
                self._counts.take(FellBack("full runs"))
            run.compute_whole()
            return executor(x, timestep, options, seed)
        if run.strategy.region == "call":
            return executor(x, timestep, options, seed)
        conditions = active_conditions(getattr(executor.class_obj, "conds", {}).values(), sigma)
        return run.whole(lambda: executor(x, timestep, options, seed), x, conditions)

    def predict_parts(
        self, executor: Any, model: Any, conds: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any
    ) -> Any:
        """The calls of the model for the conditions of all parts of guidance."""
        found = options.get(KEY)
        if found is None or found[0].is_by_part or found[0].strategy.region != "call":
            return executor(model, conds, x, timestep, options)
        conditions = active_conditions(conds, found[0].sigma)
        return found[0].parts(lambda: executor(model, conds, x, timestep, options), x, conds, conditions)

    def _explain(self, run: SamplingRun, guider: object, steps: int, *, is_over: bool) -> None:
        """Log a run's results, and why it reused nothing if it should and no other sampler goes on."""
        if not run.calls:
            self._said.say(
                f"omnireuse has seen no call of the model in this run: {type(guider).__name__} does not go through "
                "ComfyUI's predict_noise wrappers"
            )
            return
        strip = [share for share in self.summary().last_run if share is not None]
        logger.info("omnireuse (%s): %.3g of %d steps computed", self.plan.name, sum(strip), len(strip))
        if not run.is_as_known:
            self._said.say(
                f"omnireuse knew of {steps} steps, and the sampler made {run.calls} calls of the model "
                "that do not fit them: other steps may have been computed than were meant"
            )
        is_explained = is_over and not run.is_by_part
        explanation = explain(run.strategy, self._counts.of_run(run.generation.number)) if is_explained else None
        if explanation is not None:
            self._said.say(str(explanation))


def attach(
    model: object,
    plan: RequestPlan,
    *,
    tune: bool = False,
    span: Span = EVERYTHING,
    item: Item = lambda: None,
) -> Any:
    """A clone of the model that reuses steps; the model itself stays as it is. A plan on the model before is replaced.

    Args:
        plan: of its runs; `OFF` computes every step.
        tune: whether the first pictures are measured; the environment may turn it off (OMNIREUSE_TUNE=0).
    """
    if not hasattr(model, "add_wrapper_with_key"):
        raise WrongTypeError(
            f"Omnireuse(model={type(model).__name__}): model must have ComfyUI's wrappers (add_wrapper_with_key), got "
            f"none; update ComfyUI (tested: {', '.join(TESTED)})"
        )
    return wrapped(model, Reuse(plan, tune=tune, span=span, item=item).wrappers)


def reuse_of(model: object) -> Reuse:
    """The reuse on a model, or on one that it was cloned from."""
    for wrapper in getattr(model, "get_wrappers", lambda *_: [])(OUTER, KEY):
        owner = getattr(wrapper, "__self__", None)
        if isinstance(owner, Reuse):
            return owner
    raise StateError("Omnireuse summary: this model has no reuse; connect the model that the Omnireuse node returns")
