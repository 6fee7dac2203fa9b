"""Why a run has reused nothing although it should have, and what to change."""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import RunRecord, Stats

__all__ = ["Explanation", "InertRuns", "explain", "no_run", "no_step_ended", "no_steps"]

logger = logging.getLogger("omnireuse")


class Explanation(NamedTuple):
    """Why nothing was reused.

    Attributes:
        reason: in short; a handle warns once for each.
        text: what happened, as a part of a sentence.
        advice: what to change, as a part of a sentence.
    """

    reason: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"nothing was reused: {self.text}; {self.advice}"


_GUARDS = (
    Explanation(
        "layout",
        "the shapes, dtypes or devices of the denoiser's inputs changed at every step",
        "keep them the same within a run, or use region='call', where each call has a history of its own",
    ),
    Explanation("nonfinite", "the watched signal was not finite", "look for NaN or infinite values in the latents"),
    Explanation(
        "noiseless",
        "the denoised sample says nothing about the output at these noise levels",
        "give quantity='output'",
    ),
    Explanation("unprimed", "nothing could be remembered at any step", "give quantity='output'"),
)
_NO_SCHEDULER_STEP = Explanation(
    "no scheduler step",
    "region 'step' forecasts what scheduler.step is handed, and that was not called",
    "give region='call', which needs no call of it",
)
MOST_BRANCHES = 4
"""More calls than that belong to more than one step."""


def explain(strategy: Strategy, record: RunRecord) -> Explanation | None:
    """Why a finished run has reused nothing; None where it has, or was never meant to."""
    policy, total = strategy.policy, record.total
    if record.has_reused or not record.computed or not policy.expects_reuse:
        return None
    if total is not None:
        if policy.caution(total) is not None:
            return None  # It was said when the run began.
        if total <= 2:
            return _too_few_steps(total)
        warmup = policy.warmup_limit(total)
        if warmup is not None and warmup.value >= total - 1:
            first = f"the first {warmup.value:g} of {total} steps compute, and the last computes too"
            advice = f"give a smaller {warmup.name}, or take more steps"
            return Explanation("warm-up", f"{warmup.name} makes {first}", advice)
    limit = policy.limit
    if limit is not None and record.smallest is not None and record.smallest >= limit.value:
        return Explanation(
            "threshold",
            f"every step measured above {limit.name}={limit.value:g}; the smallest value was {record.smallest:.3g}",
            f"give a {limit.name} above that to reuse, at the price of larger errors",
        )
    guard = max(_GUARDS, key=lambda each: record.computed[each.reason])
    if record.computed[guard.reason]:
        return guard
    if total is not None and policy.schedule(total) is not None:
        return _too_few_steps(total)
    return Explanation(
        "policy",
        f"{type(policy).__name__} computed every step",
        "give it a larger tolerance or threshold, or take more steps",
    )


def _too_few_steps(total: int) -> Explanation:
    steps = "1 step" if total == 1 else f"{total} steps"
    return Explanation(
        "too few steps",
        f"a run of {steps} leaves none out with these settings",
        "to save time on so short a run, take fewer steps instead",
    )


def no_run(pipeline: str) -> Explanation:
    """The pipeline was called, and its denoiser was not."""
    return Explanation(
        "no run",
        f"{pipeline} finished without a call of the denoiser that reuse was enabled on",
        "enable reuse on the pipeline whose transformer or unet runs",
    )


def no_steps(what: str) -> Explanation:
    """The denoiser was called, and nobody told its steps."""
    return Explanation(
        "no steps",
        f"the denoiser was called, and {what}",
        "call set_timesteps and step of the pipeline's own scheduler, or, in a loop with a step of its own, "
        "handle.advance() at the end of each step",
    )


def no_step_ended(calls: int) -> Explanation:
    """The denoiser was called for more than a step, and no step ended."""
    return no_steps(f"no step ended after {calls} calls: nobody calls scheduler.step")


class InertRuns:
    """Explains the runs of a session that reused nothing, once for each reason."""

    def __init__(self, strategy: Strategy, stats: Stats) -> None:
        self._strategy, self._stats = strategy, stats
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def end(self, run: Run, is_complete: bool) -> None:
        """The run has ended; nothing is said of one that was broken off."""
        generation, record = run.generation, self._stats.end_run(run.generation.number)
        explanation = None
        if run.chosen.kind == "measured":
            return
        if generation.index == 0 and run.calls >= max(generation.total or 0, MOST_BRANCHES + 1):
            explanation = no_step_ended(run.calls)
        elif is_complete:
            explanation = _NO_SCHEDULER_STEP if record is None else explain(self._strategy, record)
        if explanation is not None:
            self.say(explanation)

    def say(self, explanation: Explanation) -> None:
        """Warn, unless this was said before or nothing was meant to be reused."""
        with self._lock:
            if not self._strategy.policy.expects_reuse or explanation.reason in self._said:
                return
            self._said.add(explanation.reason)
        logger.warning("%s", explanation)
