"""The reuse state of one request of an engine, and its counts in the engine's own Prometheus metrics."""

from __future__ import annotations

import functools
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from omnireuse import Generation, Tuning, noise_levels
from omnireuse.errors import OmniReuseError, StateError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.conditions import CallConditions
from omnireuse.loop.stepper import NOTHING, Stepper
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.summary.summary import Promise
from omnireuse.tuning.loops import OFF, RequestPlan
from omnireuse.tuning.tuner import HostTuner
from omnireuse_engines.host import warn_once
from omnireuse_engines.modulation import MODULATION
from omnireuse_engines.settings import KEY

__all__ = [
    "COUNTED",
    "METRICS",
    "PROMPTS",
    "STRATEGY",
    "TUNING_WORK",
    "RequestReuse",
    "count_request",
    "figures_of",
    "levels_of",
    "run_start",
    "tuning_figures",
    "work_figures",
]

logger = logging.getLogger("omnireuse")

STRATEGY = f"{KEY}_strategy"
"""Key of the one figure that is a name and no number."""
PROMPTS = f"{KEY}_prompts"
"""Beginning of the figures of a cache of prompt embeddings, which are for counters alone: requests that arrive together
share them."""
TUNING_WORK = f"{KEY}_tuning_runs"
"""Key of the work of tuning since the last request, in full runs, for the counters alone."""
COUNTED = (PROMPTS, TUNING_WORK, MODULATION)
"""Beginnings of the figures that no response has."""
TUNING_STATES = ("measured", "untuned", "tuned")
ACTIONS = ("computed", "reused", "bypassed")
"""Of the caches of prompts and modulation."""


@dataclass(eq=False)
class RequestReuse(Stepper):
    """The reuse of one request, in the engine's own state of it: it is freed with the request. An error of reuse does
    not fail the request: it computes every further step.

    Attributes:
        plan: of the request.
        name: of the request, for warnings.
        generation: its state; None if the request computes every step, because it is measured or has no reuse.
        computed, reused: steps so far.
        chunk: of a streaming request, whose chunks are denoised one after the other.
        first: the step that its generation began with.
        conditions: of its run; what changed at a step is not forecast from what was before.
        failures: how often something of the request failed, and it went on without reuse.
        weights: of the model, a number that tells them from earlier ones; -1 before the first step.
    """

    plan: RequestPlan = OFF
    name: str | None = None
    generation: Generation | None = None
    computed: int = 0
    reused: int = 0
    chunk: int = 0
    first: int = 0
    conditions: CallConditions = field(default_factory=lambda: CallConditions(are_padded=True))
    failures: int = 0
    weights: int = -1

    def start(self, scheduler: object, total: int, *, at: int = 0) -> None:
        """Begin a run of so many steps, `at` one of them. What it cannot give is logged once for each text.

        Args:
            scheduler: of the request, with its timesteps.
        """
        self.first, self.generation, self.conditions = at, None, CallConditions(are_padded=True)
        if self.plan.strategy is not None:
            if (caution := self.plan.strategy.policy.caution(total)) is not None:
                warn_once(caution)
            levels, agreement = levels_of(scheduler, total), Agreement(self.plan.group)
            self.generation = Generation(self.plan.strategy, levels, total=total, at=at, agreement=agreement)

    @contextmanager
    def running(self, scheduler: object, total: int) -> Iterator[None]:
        """The run of a request is made within, from its first step on; its state ends with it."""
        try:
            self.start(scheduler, total)
        except Exception as error:  # of reuse: the request goes on
            self.give_up("the start of a run", error)
        try:
            yield
        finally:
            if self.generation is not None:
                self.generation.finish()

    def arrived(self, latents: torch.Tensor | None) -> None:
        if self._stepper is not None:
            self._stepper.arrived(latents)

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        """Whether the model is called at this step, which the engine counts."""
        stepper = self._stepper
        if stepper is None:
            return True
        try:
            return stepper.computes(step - self.first, latents, kind=kind)
        except Exception as error:  # of reuse: the request goes on
            self.give_up("the decision on a step", error)
            return True

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor | None:
        """The solver's input. None if a forecast has failed; the output itself if learning from it has failed."""
        used, stepper = output, self._stepper
        try:
            if stepper is not None:
                if stepper is self.generation and output is not None and not isinstance(output, torch.Tensor):
                    raise StateError(f"the model predicts {type(output).__name__} and not one tensor")
                used = stepper.use(output, latents, given)
        except Exception as error:  # of reuse: the request goes on
            self.give_up("a forecast" if output is None else "learning from a computed step", error)
        self.computed += output is not None
        self.reused += output is None and used is not None
        return used

    @property
    def _stepper(self) -> Stepper | None:
        return self.generation if self.plan.measured is None else self.plan.measured

    def give_up(self, doing: str, error: BaseException) -> None:
        """Compute every further step, with a warning: something of this request has failed."""
        trace = None if isinstance(error, OmniReuseError) else error
        why = f"{doing} failed: {type(error).__name__}: {error!s:.300}"
        name = self.name or "without a name"
        logger.warning("request %s computes every further step: %s", name, why, exc_info=trace)
        self.plan, self.generation = OFF, None
        self.failures += 1

    def is_at(self, chunk: int, step: int) -> bool:
        """Whether this step follows the known ones. An engine may begin a chunk, or go back to an earlier step."""
        if self.chunk != chunk:
            return False
        return self.generation is None or self.first + self.generation.index == step

    def figures(self) -> dict[str, Any]:
        """The response's figures: numbers, and the strategy's name under `STRATEGY`."""
        found = figures_of(self.plan.name, self.plan.promise, self.computed, self.reused)
        if self.plan.entry is not None:
            found |= tuning_figures(self.plan.tuned, self.plan.entry.tuning)
        if self.failures:
            found[f"{KEY}_failures"] = float(self.failures)
        return found


def levels_of(scheduler: object, total: int) -> Sequence[NoiseLevel]:
    """The noise level of each of a run's steps; empty if the scheduler has another number of steps and does not say
    which of them the run makes: steps are counted then."""
    known, begin = len(getattr(scheduler, "timesteps", ())), 0
    if known != total:
        begin = getattr(scheduler, "begin_index", None) or 0
    return noise_levels(scheduler)[begin:] if 0 < known == begin + total else ()


def run_start(scheduler: object, total: int, latents: torch.Tensor) -> RunStart:
    """A run of so many steps that begins with these latents."""
    levels = levels_of(scheduler, total)
    return RunStart(total=total, levels=levels, scheduler=scheduler, shape=tuple(latents.shape))


def figures_of(name: str, promise: Promise | None, computed: int | None, reused: int) -> dict[str, Any]:
    """A response's figures: the strategy's name, numbers of steps, and the mean PSNR in dB that a profile expects.

    Args:
        computed: None if it is not known.
    """
    known: dict[str, Any] = {"strategy": name, "steps_computed": computed, "steps_reused": float(reused)}
    known = {name: float(each) if isinstance(each, int) else each for name, each in known.items() if each is not None}
    if promise is not None and promise.but is None:
        known["expected_psnr_db"] = promise.expected
    return {f"{KEY}_{name}": figure for name, figure in known.items()}


def work_figures(tuner: HostTuner | None) -> dict[str, float]:
    """The work of tuning since this was last asked for; empty if there is none."""
    new = 0.0 if tuner is None else tuner.new_work()
    return {TUNING_WORK: new} if new else {}


def tuning_figures(tuned: bool, tuning: Tuning) -> dict[str, float]:
    """A response's figures on tuning: whether it was finished, and how many pictures it has measured."""
    return {f"{KEY}_tuned": float(tuned), f"{KEY}_pictures_measured": float(tuning.pictures)}


METRICS = {
    f"{KEY}_requests_total": "Finished requests whose steps reuse decided on, by target",
    f"{KEY}_request_steps_total": "Denoising steps of these requests, by target and by action (computed, reused)",
    f"{KEY}_request_failures_total": "Times that something of a request failed, and it went on without reuse",
    f"{KEY}_request_tuning_total": "Finished requests that tuning serves, by state: measured, and so computed in full; "
    "untuned; tuned",
    f"{KEY}_tuning_runs_total": "Work of tuning, measured pictures and trial runs, in full runs",
    f"{KEY}_prompts_total": "Encodes of prompts, by action (computed, reused, bypassed), if they are cached",
    f"{KEY}_modulation_total": "Projections of the timestep, by action (computed, reused), if they are cached",
}
"""Every metric by its name in the exposition, with its meaning. The label `target` is "server" for a request without
targets of its own, "off", or the name of its target: never a value, since clients choose the values."""


def count_request(figures: Mapping[str, Any], target: str) -> None:
    """Count a finished request.

    Call this in a process whose metrics the engine exposes. The counters are made at the first call, in the registry
    and the storage of that process.

    Args:
        figures: of the request, as `RequestReuse.figures` returns them.
    """
    requests, steps, failures, tuning, work, *caches = _counters()
    requests.labels(target).inc()
    for action in ("computed", "reused"):
        steps.labels(target, action).inc(figures.get(f"{KEY}_steps_{action}", 0.0))
    failures.labels(target).inc(figures.get(f"{KEY}_failures", 0.0))
    if (is_tuned := figures.get(f"{KEY}_tuned")) is not None:
        tuning.labels("tuned" if is_tuned else "untuned" if figures[f"{KEY}_steps_reused"] else "measured").inc()
    work.inc(figures.get(TUNING_WORK, 0.0))
    for counter, name in zip(caches, (PROMPTS, MODULATION), strict=True):
        for action in ACTIONS:
            if (number := figures.get(f"{name}_{action}")) is not None:
                counter.labels(action).inc(number)


@functools.cache
def _counters() -> tuple[Any, ...]:
    from prometheus_client import Counter  # an engine that is asked for metrics has it

    labels = (("target",), ("target", "action"), ("target",), ("state",), (), ("action",), ("action",))
    made = tuple(Counter(name, meaning, names) for (name, meaning), names in zip(METRICS.items(), labels, strict=True))
    for state in TUNING_STATES:  # a query of a state that no request was in has 0, and not nothing
        made[3].labels(state)
    return made
