"""Tuning at work on one pipeline: each call is measured, followed by trial runs, or served by a frozen plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import torch.distributed as dist

from omnireuse.arguments.targets import strategy_for
from omnireuse.arguments.tune import TuneOptions, check_tune, why_untuned
from omnireuse.base.once import Once
from omnireuse.errors import NotTunableError, OmniReuseError
from omnireuse.hooks.extension import ByCalls, PipelineCall
from omnireuse.hooks.live import Loop, StepRegion
from omnireuse.hooks.opening import Opened, Tunes, Untuned
from omnireuse.hooks.run import Chosen, RunStart
from omnireuse.hooks.session import Session
from omnireuse.loop.agreement import Agreement
from omnireuse.pipelines.call_arguments import Calls
from omnireuse.profiles.profile import Profile
from omnireuse.profiles.target import Target
from omnireuse.references import ReferenceAxis
from omnireuse.summary.tuning import Tuning
from omnireuse.tuning.callback import Callback
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entry import TuningEntry
from omnireuse.tuning.lean import REFERENCES
from omnireuse.tuning.own_work import OwnWork, state_after
from omnireuse.tuning.pulse import PictureBar, Pulse
from omnireuse.tuning.recording import FULL, Recording
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.replay import Replay, noting_bars
from omnireuse.tuning.store import Store
from omnireuse.tuning.trials import SessionTrials

__all__ = ["HostTuner", "Tuned", "Tuner"]

logger = logging.getLogger("omnireuse")


class HostTuner:
    """What the tuners of all hosts have in common: the entries of their runs, and what users are told.

    Args:
        computes_all: whether every step is computed if nothing is tuned, which is then worth a warning.
    """

    def __init__(self, registry: PlanRegistry, *, computes_all: bool = False) -> None:
        self._registry, self._computes_all = registry, computes_all
        self._latest: TuningEntry | None = None
        self._elsewhere = Tuning(state="measuring", wanted=registry.pictures, reason="no run has begun yet")
        """The state of tuning if the latest run has no entry."""
        self._said = Once()
        self._reported = 0.0

    @property
    def tuning(self) -> Tuning:
        """The state of tuning for the configuration of the latest run."""
        with self._registry.lock:
            return self._elsewhere if self._latest is None else self._latest.tuning

    def new_work(self) -> float:
        """The work of tuning since this was last asked for, in full runs of one call (`Tuning.runs`)."""
        with self._registry.lock:
            before, self._reported = self._reported, sum(each.tuning.runs for each in self._registry.entries.values())
        return max(self._reported - before, 0.0)

    def say(self, text: str, level: int = logging.INFO) -> None:
        """Log a line once."""
        self._said.say(text, level)

    def leave_untuned(self, why: object) -> None:
        """Say, once for each reason, that the run which begins is not tuned."""
        elsewhere = Tuning(
            state=state_after(why),
            wanted=self._registry.pictures,
            computes_all=self._computes_all,
            reason=str(why),
        )
        with self._registry.lock:
            self._latest, self._elsewhere = None, elsewhere
        is_news = self._computes_all or elsewhere.state == "failed"
        self.say(str(elsewhere), logging.WARNING if is_news else logging.INFO)


class _TunedCall:
    """One call of the pipeline: what its run belongs to, and the recording of it.

    Args:
        callback: of the call.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.runs = 0
        self.arguments: Mapping[str, Any] = {}
        self.loop: Loop | None = None
        self.entry: TuningEntry | None = None
        self.is_held = False
        """Whether the entry is busy with this call."""
        self.recording: Recording | None = None
        self.bar = PictureBar()
        self.is_full = False
        """Whether every step is computed because the configuration is measured, here or by another thread."""
        self.replay: Replay | None = None
        self.failure: OmniReuseError | None = None
        """Why the call cannot be told from others."""
        self.unlike: Exception | None = None
        """Why it cannot be made again; that is said if it is to be measured."""

    def check(self, own_work: OwnWork) -> None:
        """Refuse a call that cannot be made again."""
        with own_work():
            if self.unlike is not None:
                raise self.unlike


class Tuner(HostTuner, Tunes):
    """Measures the first pictures of each configuration, and uses the best plan for the others.

    Calls of one pipeline in several threads measure one at a time; the others compute every step meanwhile.

    Args:
        target: of the untuned default, which is in region "step" with a schedule; that of a quality computes every
            step.
        registry: of the configurations.
        heartbeat: whether the callback of a call is called during the trial runs after it.

    Attributes:
        calls: reads the arguments of the pipeline's calls.
        references: of an editing pipeline, whose lean calls are tried, too; None for full ones.
    """

    def __init__(self, target: Target, registry: PlanRegistry, *, heartbeat: bool = True) -> None:
        super().__init__(registry, computes_all=target.quality is not None)
        self._target, self.calls = target, Calls()
        self._beats, self._stops = heartbeat, 0
        self._changing: dict[str, str] = {}
        """What the callbacks that change a run have changed in their latest call, by their names."""
        self._own_work, self._lock, self._is_closed = registry.own_work, registry.lock, False
        self.references: ReferenceAxis | None = None

    def attach(self, session: Session) -> None:
        """Begin, or go on with another session on the same pipeline."""
        self._session, self._own_work.emit = session, session.emit

    def summarize(self, fields: dict[str, Any]) -> None:
        fields["tuning"] = self.tuning

    @property
    def profile(self) -> Profile | None:
        """A profile with the one plan of the latest run's target; None before it is ready."""
        with self._lock:
            entry = self._latest
            if entry is None or entry.profile is None:
                return None
            plan = entry.budget.plan_of(entry.profile.plans)
            plans = {count: each for count, each in entry.profile.plans.items() if each is plan}
            return msgspec.structs.replace(entry.profile, plans=plans)

    def measure_all(self) -> None:
        """Measure as many pictures as are wanted, whatever earlier processes have measured."""
        self._registry.measures_all = True

    def interrupt(self) -> None:
        """End the trial runs that are under way, and make none after the pictures that are."""
        self._stops += 1

    def close(self) -> None:
        """Drop what was measured, and let other processes measure."""
        with self._lock:
            self._is_closed = True
            self._registry.close()

    def around(self, call: PipelineCall, make: Callable[[PipelineCall], Any]) -> Any:
        """Make one call of the pipeline."""
        pipeline, stops, args, kwargs = self._session.pipeline, self._stops, call.args, call.kwargs
        tuned = _TunedCall(Callback(pipeline, kwargs))
        try:
            with self._own_work():
                if (why := self.calls.untunable(args, kwargs)) is None:
                    tuned.arguments = self.calls.arguments(pipeline, args, kwargs)
        except OmniReuseError as error:
            why, tuned.failure = None, error
        if why is not None:
            self.leave_untuned(why)
            return make(call)
        try:
            with ExitStack() as stack:
                try:
                    tuned.replay = Replay(args, kwargs)
                    if self.tuning.state != "ready":
                        stack.enter_context(tuned.replay.noting(pipeline))
                        tuned.bar.made = stack.enter_context(noting_bars(pipeline, self))
                except Exception as error:
                    tuned.unlike = error
                watched = stack.enter_context(tuned.callback.watched())
                try:
                    result = make(replace(call, kwargs=watched, choose=partial(self._choose, tuned)))
                except BaseException as error:
                    if tuned.recording is not None and tuned.entry is not None:
                        tuned.entry.broken_off(error)
                    raise
            pulse = Pulse(
                pipeline,
                tuned.callback if self._beats else None,
                tuned.bar,
                self._registry.agreement,
                lambda: self._is_closed or self._stops != stops,
            )
            measured = None if tuned.entry is None else tuned.entry.configuration
            self._made(tuned, SessionTrials(self._session, call, measured, self.references, pulse))
        finally:
            tuned.bar.close()
            if tuned.is_held and tuned.entry is not None:
                tuned.entry.is_busy = False
            tuned.failure = tuned.unlike = None  # their tracebacks hold this call, and the picture
        return result

    def choose(self, start: RunStart) -> None:
        """Leave the untuned default to a run that cannot be made again, because no call of the pipeline makes it, and
        to calls that are not tuned."""
        if start.call is None:
            self.leave_untuned(
                "only a loop that the pipeline's call makes is measured, because it can be made again; put it into "
                "__call__ of an object with the scheduler and the denoiser"
            )

    def _choose(self, tuned: _TunedCall, start: RunStart) -> Chosen:
        """What a run follows: the untuned default if tuning meets an error."""
        tuned.runs += 1
        untuned = Chosen(strategy=self._session.strategy)
        if tuned.runs > 1:
            if tuned.recording is None:
                return untuned
            tuned.recording.fail(NotTunableError("a call has several runs"))
            return Chosen(strategy=FULL, region=StepRegion(stepper=tuned.recording), kind="measured")

        def configuration() -> Configuration:
            if tuned.failure is not None:
                raise tuned.failure
            has_references = self.references is not None and tuned.arguments.get("image") is not None
            tried = {REFERENCES: "tried"} if has_references else {}
            return Configuration.of(self._session.pipeline, start, {**tuned.arguments, **tried})

        if (changes := self._changing.get(tuned.callback.name)) is not None:
            self.leave_untuned(
                f"the callback of such calls changes the run ({changes}), and trial runs are made without it"
            )
            return untuned
        try:
            with self._lock:
                known = self._registry.known(self._session.strategy.policy, start, configuration, self._target)
        except OmniReuseError as error:
            self.leave_untuned(error)
            return untuned
        try:
            with self._own_work(), self._lock:
                self._latest = tuned.entry = entry = self._registry.find(*known)
                tuned.loop = self._session.loop
                if entry.tuning.state == "measuring":
                    return self._measured(tuned, entry, start)
                lean = None if self.references is None else self.references.tuned(entry.full_every)
                return Chosen(strategy=entry.strategy or untuned.strategy, references=lean)
        except OmniReuseError as error:
            if not self._registry.agreement.is_alone:
                # The other ranks have not met it, and compute other steps: this one cannot go on beside them.
                raise
            if tuned.entry is None:
                self.leave_untuned(error)
            else:
                tuned.entry.failed(error)
            tuned.recording, tuned.is_full = None, False
            return untuned

    def _measured(self, tuned: _TunedCall, entry: TuningEntry, start: RunStart) -> Chosen:
        """Compute every step and record the run if a picture is to be measured; trial runs follow it. While another
        thread measures or tries, every step is computed, and no more. Once all is measured, trial runs follow pictures
        of the untuned default."""
        untuned, total = Chosen(strategy=self._session.strategy), start.total or 0
        recording = Recording(start.scheduler, total, keeps=entry.is_due)
        if entry.is_due:
            try:
                self._registry.agreement.of_each(lambda: tuned.check(self._own_work))
            except OmniReuseError as error:
                entry.failed(error, "a call cannot be made again: ")
                return untuned
            tuned.recording = recording
        tuned.is_full = not entry.is_idle
        if not entry.is_busy:
            is_alone = not entry.products
            entry.start()
            tuned.is_held = True
            tuned.bar.begin(total if is_alone else 2 * total)
        if not tuned.is_full:
            return untuned
        return Chosen(strategy=FULL, region=StepRegion(stepper=recording), kind="measured")

    def _made(self, tuned: _TunedCall, trials: SessionTrials) -> None:
        """Learn from a finished picture if it was measured, and make the trial runs that are due."""
        entry, recording, callback = tuned.entry, tuned.recording, tuned.callback
        if callback.changes:
            self._changing[callback.name] = callback.changes
        else:
            self._changing.pop(callback.name, None)
        if entry is None or tuned.loop is None or self._is_closed:
            return
        entry.made(is_full=tuned.is_full, calls=tuned.loop.asked)
        if not tuned.is_held:
            return
        why = f"its callback changed {callback.changes}" if callback.changes else ""
        if not why and getattr(self._session.pipeline, "_interrupt", False) is True:
            why = "it was interrupted"
        if not why and not entry.configuration.has_weights_of(self._session.pipeline):
            why = "its weights were replaced meanwhile"
        if why := self._registry.agreement.of_any(why or None) or "":
            if recording is not None:
                entry.skip(f"a picture was not measured: {why}")
        elif recording is None:
            entry.finish()
            entry.go_on(trials)
        elif entry.learn(recording, tuned.replay):
            entry.go_on(trials)
        if entry.tuning.state == "ready":
            with self._lock:
                self._latest = entry


@dataclass(frozen=True)
class Tuned:
    """A target, or none for the default, with tuning unless that is turned off.

    Attributes:
        region: "step" or "call"; None for the one that serves the pipeline.
        tune: as of `enable`.
    """

    target: Target
    region: str | None = None
    tune: bool | int | TuneOptions | None = None

    def open(self, pipeline: object, group: dist.ProcessGroup | None) -> Opened:
        """The untuned default, and its tuner or why there is none.

        Raises:
            ConfigError: no strategy reaches the target, or a quality is not tuned.
        """
        why = partial(why_untuned, self.tune)
        strategy, name, *_ = strategy_for(pipeline, self.target, region=self.region, untuned=why)
        adapts = (ByCalls(),) if self.region is None else ()
        return strategy, name, (self._tunes(why(strategy.region), group), *adapts)

    def _tunes(self, untuned: str, group: dist.ProcessGroup | None) -> Tunes:
        if untuned:
            return Untuned(untuned)
        options = check_tune(self.tune)
        assert options is not None, "it is tuned"
        registry = PlanRegistry(
            pictures=options.pictures,
            store=Store(),
            command="omnireuse.enable(pipe)",
            agreement=Agreement(group),
        )
        return Tuner(self.target, registry, heartbeat=options.heartbeat)
