"""Tuning in step mode: a request of a wave is measured or follows a plan, and shadows are made between waves.

One request is measured at a time, and the others go on with the untuned default. Shadows begin when all pictures are
measured. Each wave makes one call of the model for them, with a copy of a measured request that is no part of the wave.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch

from omnireuse.engines.settings import RequestPlan
from omnireuse.engines.vllm_omni.calls import request_scales, untunable
from omnireuse.engines.vllm_omni.waves import levels_of
from omnireuse.hooks.run import RunStart
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.fit import WeightFit
from omnireuse.planning.solver import next_latents
from omnireuse.policies import Steps
from omnireuse.tuning.budget import budget_for
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entries import Entries, Entry
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.loops import Followed, Given, Led, MeasuredLoop, ShadowLoop
from omnireuse.tuning.replay import unchanged_random_states
from omnireuse.tuning.store import Store
from omnireuse.tuning.trials import MeasuredCall, Pausing, Shadow

__all__ = ["WaveTuner"]

logger = logging.getLogger("omnireuse")

Denoise = Callable[[Any], torch.Tensor]
"""Computes the output of one request's state, apart from any wave."""


class WaveTuner:
    """Chooses what each request of one pipeline follows.

    Args:
        pipeline: that serves the requests.
        denoise: computes the output of a request's copy.
        pictures: how many are measured at most, ≥ 1.
    """

    def __init__(self, pipeline: Any, denoise: Denoise, pictures: int) -> None:
        self._pipeline, self._shadows = pipeline, WaveShadows(denoise)
        self._entries = Entries(pictures=pictures, store=Store(), command="vllm-omni's step mode with omnireuse")
        self._measured: Callable[[], _MeasuredRequest | None] = lambda: None
        """The request that is measured. It ends with the engine's state of it, where it is aborted, say."""
        self._under_way: Generator[None, None, None] | None = None
        """The shadows that are being made."""
        self._said: set[str] = set()

    def plan(self, plan: RequestPlan, state: Any) -> RequestPlan:
        """What a request that begins follows: the given plan, a tuned one, or none while it is measured."""
        if plan.strategy is None or state.step_index or state.chunk_index:
            return plan
        try:
            entry = self._entry(plan.strategy, state)
        except Exception as error:  # the picture must not fail because tuning does
            entry = f"the request cannot be told from others ({type(error).__name__}: {error})"
        if isinstance(entry, str):
            self._say(f"tuning is off: {entry}")
            return plan
        if entry.tuning.state == "ready":
            self._say(str(entry.tuning))
        elif entry.tuning.state == "measuring" and self._under_way is None and self._measured() is None:
            self._entries.start(entry)
            measured = _MeasuredRequest(state, entry, self._learn)
            self._measured = weakref.ref(measured)
            return replace(plan, strategy=None, name=f"{plan.name}, measured", measured=measured)
        if entry.strategy is None:
            return plan
        return replace(plan, strategy=entry.strategy, name=f"{plan.name}, tuned", tuned=True)

    def after_wave(self) -> None:
        """Go on with the shadows that are due, by one call of the model at most. The wave is done, and goes on."""
        if self._under_way is None:
            return
        try:
            with unchanged_random_states():
                next(self._under_way)
        except StopIteration:
            self._under_way = None
        except Exception:  # no request may fail because a shadow does
            self._under_way = None
            logger.exception("shadows have ended, and the untuned default serves")

    def _learn(self, measured: _MeasuredRequest) -> None:
        entry, recording = measured.entry, measured.loop.recording
        self._measured = lambda: None
        self._entries.learn(entry, recording, lambda: FullRun.of(recording), measured.twin)
        entry.is_busy = self._entries.is_whole(entry)
        if entry.is_busy:
            self._under_way = self._entries.going_on(entry, self._shadows)

    def _entry(self, strategy: Strategy, state: Any) -> Entry | str:
        """The entry of a request; in words why it has none."""
        if (why := untunable(state.sampling)) is not None:
            return why
        start = RunStart(
            total=state.total_steps,
            levels=levels_of(state),
            scheduler=state.scheduler,
            shape=tuple(state.latents.shape),
        )
        budget = budget_for(strategy.policy, start)
        if isinstance(budget, str):
            return budget
        configuration = Configuration.of(self._pipeline, start, request_scales(state.sampling, state.prompt))
        if configuration.conditions.weights is None:
            return "weights cannot be told apart, because they are sharded or not in memory"
        entry = self._entries.find(configuration, budget)
        if entry.strategy is not None and entry.strategy.region != "step":
            self._say("a kept plan has weights for the branches of guidance, and waves are forecast after it")
            call = {**configuration.call, "guidance": "as one call"}
            entry = self._entries.find(msgspec.structs.replace(configuration, call=call), budget)
        return entry

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.info("omnireuse: %s", text)


class _MeasuredRequest:
    """A request that is computed in full, and whose values are kept.

    Args:
        learn: takes it when its last step is computed.
    """

    def __init__(self, state: Any, entry: Entry, learn: Callable[[_MeasuredRequest], None]) -> None:
        self.entry, self.twin, self._learn = entry, _twin_of(state), learn
        self.loop, self._is_over = MeasuredLoop(state.scheduler, state.total_steps, _given(state)), False

    def note(self, state: Any, output: Any) -> None:
        """Take in the output of a step, whose scheduler's step is still to come."""
        if self._is_over:  # the engine has begun another chunk
            return
        self.loop.step(lambda: output, state.step_index, state.latents, denoiser=0)
        self._is_over = state.step_index + 1 == state.total_steps
        if self._is_over:
            self.loop.recording.keep(lambda: self.loop.end(_stepped(copy.deepcopy(state.scheduler), state, output)))
            self._learn(self)


@dataclass(frozen=True)
class WaveShadows:
    """Shadows of requests, as `Shadows`, which pause after each call of the model. Each call's `replay` is a copy of
    the engine's state of its request."""

    denoise: Denoise

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Pausing[Shadow]:
        """As `Shadows.follow`."""
        again = _twin_of(call.replay)
        return self._made(again, Followed(call.full, strategy, first_reused, levels_of(again)))

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Pausing[Shadow]:
        """As `Shadows.lead`; the fit knows the steps of the policy."""
        again = _twin_of(call.replay)
        return self._made(again, Led(call.full, fit, again.scheduler, _given(again)))

    def arrive(self, call: MeasuredCall) -> Shadow:
        """As `Shadows.arrive`. Waves compare latents, since decoding would hold them up."""
        return Shadow(0, call.full.final)

    def _made(self, again: Any, run: ShadowLoop) -> Pausing[Shadow]:
        computed = 0
        while again.step_index < again.total_steps:
            output = run.step(lambda: self.denoise(again), again.step_index, again.latents, denoiser=0)
            again.latents = _stepped(again.scheduler, again, output)
            again.step_index += 1
            if run.computed > computed:
                computed = run.computed
                yield
        return Shadow(run.computed, again.latents)


def _twin_of(state: Any) -> Any:
    """A copy that no step of the other one changes; conditioning, which nobody writes to, is shared."""
    twin = copy.copy(state)
    twin.latents, twin.scheduler = state.latents.clone(), copy.deepcopy(state.scheduler)
    twin.extra, twin.stage_durations = {}, {}
    return twin


def _given(state: Any) -> Given:
    timesteps = state.timesteps
    return lambda step: {"timestep": timesteps[step], "return_dict": False}


def _stepped(scheduler: Any, state: Any, output: torch.Tensor) -> torch.Tensor:
    """The latents after the present step, which pipelines of the engine leave to the scheduler of the request."""
    given = _given(state)(state.step_index)
    return next_latents(scheduler.step(**given, model_output=output, sample=state.latents))
