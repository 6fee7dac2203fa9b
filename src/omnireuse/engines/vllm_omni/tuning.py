"""Tuning in step mode: a request of a wave is measured or follows a plan, and shadows are made between waves.

One request is measured at a time, and the others go on with the untuned default. Shadows begin when all pictures are
measured. Each wave makes one call of the model for them, with a copy of a measured request that is no part of the wave.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch

from omnireuse.engines.loops import Loop, LoopShadows, LoopTuner
from omnireuse.engines.request import levels_of
from omnireuse.engines.settings import RequestPlan
from omnireuse.engines.vllm_omni.calls import request_scales, untunable
from omnireuse.errors import NotTunableError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.stepper import stepped
from omnireuse.planning.solver import next_latents
from omnireuse.policies.base import Policy
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entry import Entry
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.replay import unchanged_random_states
from omnireuse.tuning.shadows import Beside
from omnireuse.tuning.store import Store
from omnireuse.tuning.trials import Pausing

__all__ = ["RequestLoop", "WaveTuner"]

logger = logging.getLogger("omnireuse")

Denoise = Callable[[Any], torch.Tensor]
"""Computes the output of one request's state, apart from any wave."""


@dataclass(frozen=True)
class RequestLoop(Loop):
    """The loop of a request.

    Attributes:
        state: the engine's.
        pipeline: that serves it.
        apart: what its configuration has beside the arguments of the request, as text by name.
    """

    state: Any
    pipeline: Any
    apart: Mapping[str, str] = field(default_factory=dict)

    @property
    def start(self) -> RunStart:
        state = self.state
        return RunStart(
            total=state.total_steps,
            levels=levels_of(state.scheduler, state.total_steps),
            scheduler=state.scheduler,
            shape=tuple(state.latents.shape),
        )

    def twin(self) -> RequestLoop:
        """A copy that no step of the other one changes; conditioning, which nobody writes to, is shared."""
        twin = copy.copy(self.state)
        twin.latents, twin.scheduler = self.state.latents.clone(), copy.deepcopy(self.state.scheduler)
        twin.extra, twin.stage_durations = {}, {}
        return replace(self, state=twin)

    def given(self, step: int) -> dict[str, Any]:
        """Arguments of the scheduler's step beside the output and the latents."""
        return {"timestep": self.state.timesteps[step], "return_dict": False}

    def check(self) -> None:
        if (why := untunable(self.state.sampling)) is not None:
            raise NotTunableError(why)

    def configuration(self, start: RunStart) -> Configuration:
        scales = request_scales(self.state.sampling, self.state.prompt)
        found = Configuration.of(self.pipeline, start, scales)
        return msgspec.structs.replace(found, call={**found.call, **self.apart})

    def stepped(self, scheduler: Any, output: torch.Tensor) -> torch.Tensor:
        """The latents after the present step, which pipelines of the engine leave to the scheduler of the request."""
        given = self.given(self.state.step_index)
        return next_latents(scheduler.step(**given, model_output=output, sample=self.state.latents))


class WaveTuner(LoopTuner):
    """Chooses what each request of one pipeline follows.

    Args:
        pipeline: that serves the requests.
        denoise: computes the output of a request's copy.
        pictures: how many are measured at most, ≥ 1.
    """

    def __init__(self, pipeline: Any, denoise: Denoise, pictures: int) -> None:
        command = "vllm-omni's step mode with omnireuse"
        super().__init__(PlanRegistry(pictures=pictures, store=Store(), command=command))
        self._pipeline, self._denoise = pipeline, denoise
        self._measured: Callable[[], _MeasuredRequest | None] = lambda: None
        """The request that is measured. It ends with the engine's state of it, if it is aborted, say."""
        self._entry: Entry | None = None
        """Of the request that is measured."""
        self._under_way: Generator[None, None, None] | None = None
        """The shadows that are being made."""

    def plan(self, plan: RequestPlan, state: Any) -> RequestPlan:
        """The plan of a request that begins: the given one, a tuned one, or none while it is measured."""
        if state.step_index or state.chunk_index:
            return plan
        if self._entry is not None and self._measured() is None:  # it was aborted
            self._entry.is_busy, self._entry = False, None
        loop = RequestLoop(state, self._pipeline)
        plan, entry = self.choose(plan, loop, self._go_on, self._may_measure)
        if entry is None:
            return plan
        entry.start()
        measured = _MeasuredRequest(loop, entry, self._learn)
        self._measured, self._entry = weakref.ref(measured), entry
        return replace(plan, strategy=None, name=f"{plan.name}, measured", measured=measured)

    def find(self, policy: Policy, loop: Loop) -> Entry:
        entry = super().find(policy, loop)
        if entry.strategy is not None and entry.strategy.region != "step":
            self.say("a kept plan has weights for the branches of guidance, and waves are forecast after it")
            assert isinstance(loop, RequestLoop)
            entry = super().find(policy, replace(loop, apart={"guidance": "as one call"}))
        return entry

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
            logger.exception("trial runs have ended, and the untuned default is used")

    def _learn(self, measured: _MeasuredRequest) -> None:
        entry = measured.entry
        self._measured, self._entry = lambda: None, None
        self.learn(entry, measured.twin, measured.recording)
        entry.is_busy = False
        if entry.is_whole:
            self._go_on(entry)

    def _may_measure(self, entry: Entry) -> bool:
        return self._under_way is None and self._measured() is None

    def _go_on(self, entry: Entry) -> None:
        """Let the waves to come make the shadows that are due."""
        if self._under_way is None and not entry.is_busy:
            self._under_way = self._going_on(entry)

    def _going_on(self, entry: Entry) -> Pausing[None]:
        entry.is_busy = True
        try:
            yield from entry.going_on(LoopShadows(self._made_again))
        finally:
            entry.is_busy = False

    def _made_again(self, loop: RequestLoop, run: Beside) -> Pausing[torch.Tensor]:
        """The final latents of a loop, which pauses after each call of the model."""
        state, computed = loop.state, 0
        while (step := state.step_index) < state.total_steps:
            output = stepped(run, lambda: self._denoise(state), step, state.latents, given=loop.given(step))
            state.latents = loop.stepped(state.scheduler, output)
            state.step_index += 1
            if run.computed > computed:
                computed = run.computed
                yield
        latents: torch.Tensor = state.latents
        return latents


class _MeasuredRequest:
    """A request that is computed in full, and whose values are kept.

    Args:
        learn: takes it when its last step is computed.
    """

    def __init__(self, loop: RequestLoop, entry: Entry, learn: Callable[[_MeasuredRequest], None]) -> None:
        self.entry, self.twin, self._learn = entry, loop.twin(), learn
        self.recording, self._is_over = self.twin.twin().recording(), False

    def note(self, state: Any, output: Any) -> None:
        """Take in the output of a step, whose scheduler's step is still to come."""
        if self._is_over:  # the engine has begun another chunk
            return
        step, recording, now = state.step_index, self.recording, RequestLoop(state, None)
        recording.computes(step, state.latents)
        recording.use(output, state.latents, self.twin.given(step))
        self._is_over = step + 1 == state.total_steps
        if self._is_over:
            recording.keep(lambda: recording.arrived(now.stepped(copy.deepcopy(state.scheduler), output)))
            self._learn(self)
