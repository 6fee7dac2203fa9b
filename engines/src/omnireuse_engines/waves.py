"""Continuous batching: each request of a wave computes or is forecast, as its own state says.

An engine runs one denoising step of all running requests in a wave. Requests that compute go through the transformer in
one smaller batch; the others are forecast; the results are put back in the wave's order.

A wave that raises fails every request in it. So nothing that belongs to one request may raise here: that request
computes every further step, and the others go on.

The engine keeps a state of each request, whose attributes are read here: `latents` (rows, …), `scheduler`, `timesteps`,
`total_steps`, `step_index`, `chunk_index` (of a streaming request, whose chunks are denoised one after the other),
`request_id`, and two mappings: `extra`, which is freed with the request, and `stage_durations`, whose figures travel to
its response.

Tuning measures one request at a time, and the others go on with the untuned default. Trial runs begin when all pictures
are measured. Each wave makes one call of the model for them, with a copy of a measured request that is no part of it.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse import Policy
from omnireuse.hooks.run import RunStart
from omnireuse.loop.stepper import Stepper, stepped
from omnireuse.planning.solver import next_latents
from omnireuse.tuning.entry import TuningEntry
from omnireuse.tuning.loops import LoopTrials, LoopTuner, MeasuredLoop, RepeatableLoop, RequestPlan
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.replay import unchanged_random_states
from omnireuse.tuning.trials import Pausing
from omnireuse_engines.request import RequestReuse, run_start
from omnireuse_engines.settings import KEY

__all__ = ["WaveLoop", "WaveTuner", "Waves"]

logger = logging.getLogger("omnireuse")


def _is_input(value: object) -> bool:
    """Whether a request's state keeps this for the model: prompts, masks, references. Numbers tell how long a wave's
    prompts are."""
    each = value if isinstance(value, (list, tuple)) else [value]
    return bool(each) and all(isinstance(one, torch.Tensor) for one in each)


@dataclass(eq=False)
class _Member:
    """One request of a wave.

    Attributes:
        state: the engine's.
        request: its reuse state.
        failures: of the request before this step.
        computes: whether it computes this step.
        output: its scheduler's input.
    """

    state: Any
    request: RequestReuse
    failures: int
    computes: bool = True
    output: torch.Tensor | None = None

    def use(self) -> bool:
        """Turn what was computed, or nothing, into the scheduler's input; False if nothing can stand in."""
        self.output = self.request.use(self.output, self.state.latents)
        return self.output is not None


class Waves:
    """Stands before the function that computes a wave.

    Args:
        denoise: the function, `denoise(input_batch, *, states, **kwargs)`.
        sub_batch: makes the input batch of some of the wave's requests.
        plan: of a request.
        tuner: of the requests; None if none is measured.
    """

    def __init__(
        self,
        denoise: Callable[..., Any],
        sub_batch: Callable[[list[Any]], Any],
        plan: Callable[[Any], RequestPlan],
        tuner: WaveTuner | None = None,
    ) -> None:
        self._denoise, self._sub_batch, self._plan, self._tuner = denoise, sub_batch, plan, tuner
        self.failures = 0
        """Requests that went on without reuse because something of theirs failed."""
        self._weights = 0
        """How often the model has got other weights."""

    def forget(self) -> None:
        """Drop what was measured, and what each request remembers: the model has other weights."""
        self._weights += 1
        if self._tuner is not None:
            self._tuner.forget()

    def denoise_step(self, input_batch: object, *, states: Sequence[Any] | None = None, **kwargs: object) -> Any:
        """One denoising step of a wave.

        Args:
            states: the engine's state of each, in order; `latents` have shape (rows, …).

        Returns:
            The outputs of all rows, in the order of the states; None if the pipeline was interrupted.
        """
        if not states:
            return self._denoise(input_batch, states=states, **kwargs)
        entries = [self._entry(state) for state in states]
        try:
            return self._step(entries, input_batch, kwargs)
        finally:
            # Ranks that share a forward pass must fail alike, or the engine ends them: the error of one rank alone
            # cannot be told to the others in the middle of a step.
            self.failures += sum(entry.request.failures - entry.failures for entry in entries)

    def _step(self, entries: Sequence[_Member], input_batch: object, kwargs: dict[str, Any]) -> Any:
        computing = [entry for entry in entries if entry.computes]
        whole = input_batch if len(computing) == len(entries) else None
        if computing and not self._compute(computing, whole, kwargs):
            return None
        # Nothing of any request has changed up to here: a step that raises leaves all of them as they were.
        reusing = [entry for entry in entries if not entry.computes]
        if failed := [entry for entry in reusing if not entry.use()]:
            for entry in computing:  # a graph of the device may write over its last output
                entry.output = None if entry.output is None else entry.output.clone()
            try:
                is_computed = self._compute(failed, None, kwargs)
            except BaseException as error:
                for entry in reusing:
                    if entry not in failed:  # its forecast is made, and the step is not
                        entry.request.reused -= 1
                        entry.request.give_up("the computation of another request", error)
                raise
            if not is_computed:
                return None
        for entry in (*computing, *failed):
            entry.use()
        for entry in entries:
            self._note(entry)
        outputs = torch.cat([entry.output for entry in entries if entry.output is not None])
        if self._tuner is not None:
            self._tuner.after_wave()
        return outputs

    def _entry(self, state: Any) -> _Member:
        kept: RequestReuse | None = state.extra.get(KEY)
        request = RequestReuse(name=getattr(state, "request_id", None)) if kept is None else kept
        entry = _Member(state, request, request.failures)
        try:
            is_anew, request.weights = request.weights != self._weights, self._weights
            if kept is None:
                state.extra[KEY] = request
                request.plan = self._plan(state)
            elif is_anew:  # what was recorded with other weights is not kept
                request.plan = replace(request.plan, measured=None)
            if is_anew or not request.is_at(state.chunk_index, state.step_index):
                request.chunk = state.chunk_index
                request.start(state.scheduler, state.total_steps, at=state.step_index)
            given = {**vars(state), **state.extra}
            given = {name: each for name, each in given.items() if name != "latents" and _is_input(each)}
            changed_at = request.conditions.look("request", state.step_index, given)
            entry.computes = request.computes(state.step_index, state.latents, kind=changed_at)
        except Exception as error:  # of this request alone
            request.give_up("the decision on a step", error)
        return entry

    def _note(self, entry: _Member) -> None:
        request, state = entry.request, entry.state
        try:
            measured = request.plan.measured
            if self._tuner is not None and measured is not None and state.step_index + 1 == state.total_steps:
                request.plan = replace(request.plan, measured=None)  # the engine may begin another chunk
                self._tuner.end(measured, state, entry.output)
        except Exception as error:  # of this request alone
            request.give_up("the end of a step", error)
        # The one mapping of numbers that travels with a request to its response.
        state.stage_durations.update(request.figures())

    def _compute(self, entries: Sequence[_Member], batch: object, kwargs: dict[str, Any]) -> bool:
        """Compute the outputs of some requests; False if the pipeline was interrupted."""
        states = [entry.state for entry in entries]
        output = self._denoise(self._sub_batch(states) if batch is None else batch, states=states, **kwargs)
        if output is None:
            return False
        rows = [state.latents.shape[0] for state in states]
        for entry, part in zip(entries, output.split(rows), strict=True):
            entry.output = part
        return True


@dataclass(frozen=True)
class WaveLoop(RepeatableLoop):
    """The loop of a request of waves, whose solver is the scheduler of its state.

    An engine says in `check` and `configuration` what its requests are. It makes loops with a function that computes
    the output of one state, apart from any wave.

    Attributes:
        state: the engine's.
        pipeline: that serves it.
    """

    state: Any
    pipeline: Any

    @property
    def start(self) -> RunStart:
        return run_start(self.state.scheduler, self.state.total_steps, self.state.latents)

    def twin(self) -> WaveLoop:
        """A copy that no step of the other one changes; conditioning, which nobody writes to, is shared."""
        twin = copy.copy(self.state)
        twin.latents, twin.scheduler = self.state.latents.clone(), copy.deepcopy(self.state.scheduler)
        twin.extra, twin.stage_durations = {}, {}
        return replace(self, state=twin)

    def given(self, step: int) -> dict[str, Any]:
        return {"timestep": self.state.timesteps[step], "return_dict": False}

    def after(self, state: Any, output: torch.Tensor) -> torch.Tensor:
        """The latents of a state after its step with this output. The step is taken by the state's scheduler."""
        given = self.given(state.step_index)
        return next_latents(state.scheduler.step(**given, model_output=output, sample=state.latents))

    def run(self, stepper: Stepper, host: Callable[[Any], torch.Tensor]) -> Pausing[torch.Tensor]:
        state, computed = self.state, list[torch.Tensor]()

        def compute() -> torch.Tensor:
            computed.append(host(state))
            return computed[-1]

        while (step := state.step_index) < state.total_steps:
            output = stepped(stepper, compute, step, state.latents, given=self.given(step))
            state.latents = self.after(state, output)
            state.step_index += 1
            if computed:
                computed.clear()
                yield
        latents: torch.Tensor = state.latents
        return latents


class WaveTuner(LoopTuner):
    """Chooses what each request of waves follows.

    Args:
        registry: of its plans.
        denoise: computes the output of a copy of a request's state, apart from any wave.
    """

    def __init__(self, registry: PlanRegistry, denoise: Callable[[Any], torch.Tensor]) -> None:
        super().__init__(registry)
        self._denoise = denoise
        self._measured: Callable[[], MeasuredLoop | None] = lambda: None
        """The request that is measured. It ends with the engine's state of it, if it is aborted, say."""
        self._entry: TuningEntry | None = None
        """Of the request that is measured."""
        self._under_way: Generator[None, None, None] | None = None
        """The trial runs that are being made."""

    def plan(self, plan: RequestPlan, loop: WaveLoop) -> RequestPlan:
        """The plan of a request that begins: the given one, a tuned one, or one that measures it."""
        if loop.state.step_index or loop.state.chunk_index:
            return plan
        if self._entry is not None and self._measured() is None:  # it was aborted
            self._entry.is_busy, self._entry = False, None
        plan = self.choose(plan, loop, self._denoise)
        if plan.measured is not None:
            self._measured, self._entry = weakref.ref(plan.measured), plan.entry
        return plan

    def find(self, policy: Policy, loop: RepeatableLoop, **apart: str) -> TuningEntry:
        entry = super().find(policy, loop, **apart)
        if entry.strategy is not None and entry.strategy.region != "step":
            self.say("a kept plan has weights for the branches of guidance, and waves are forecast after it")
            entry = super().find(policy, loop, **apart, guidance="as one call")
        return entry

    def may_measure(self, entry: TuningEntry, loop: RepeatableLoop, host: object) -> bool:
        return self._under_way is None and self._measured() is None

    def forget(self) -> None:
        super().forget()
        self._measured, self._entry, self._under_way = lambda: None, None, None

    def end(self, measured: MeasuredLoop, state: Any, output: Any) -> None:
        """Learn from a request whose last output is computed, and whose scheduler's last step is still to come."""
        if self._measured() is not measured:  # its first steps were computed with other weights
            return
        entry, loop = measured.entry, measured.loop
        assert isinstance(loop, WaveLoop), "it was given to `plan`"
        self._measured, self._entry = lambda: None, None

        def arrive() -> None:
            now = copy.copy(state)
            now.scheduler = copy.deepcopy(state.scheduler)
            with unchanged_random_states():  # the scheduler's own step may draw the same noise
                measured.arrived(loop.after(now, output))

        try:
            measured.keep(arrive)
            self.learn(measured)
        finally:
            entry.is_busy = False
        if entry.is_whole:
            self.go_on(entry, self._denoise)

    def go_on(self, entry: TuningEntry, host: object) -> None:
        """Let the waves to come make the trial runs that are due."""
        if self._under_way is None and not entry.is_busy:
            self._under_way = self._going_on(entry)

    def after_wave(self) -> None:
        """Go on with the trial runs that are due, by one call of the model at most. The wave is done, and goes on."""
        if self._under_way is None:
            return
        try:
            with unchanged_random_states():
                next(self._under_way)
        except StopIteration:
            self._under_way = None
        except Exception:  # no request may fail because a trial run does
            self._under_way = None
            logger.exception("trial runs have ended, and the untuned default is used")

    def _going_on(self, entry: TuningEntry) -> Pausing[None]:
        entry.is_busy = True
        try:
            yield from entry.going_on(LoopTrials(self._denoise))
        finally:
            entry.is_busy = False
