"""Why a run has reused nothing although it should have, and what to change."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass

from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import RunRecord, Stats

__all__ = ["Explanation", "InertRuns", "explain", "no_run", "no_step_ended", "no_steps"]

logger = logging.getLogger("omnireuse")

_GUARDS = {
    "layout": (
        "the shapes, dtypes or devices of the denoiser's inputs changed at every step",
        "keep them the same within a run, or use region='call', where each call has a history of its own",
    ),
    "nonfinite": ("the watched signal was not finite", "look for NaN or infinite values in the latents"),
    "noiseless": (
        "the denoised sample says nothing about the output at these noise levels",
        "give quantity='output'",
    ),
    "unprimed": ("nothing could be remembered at any step", "give quantity='output'"),
}


@dataclass(frozen=True, kw_only=True)
class Explanation:
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


def explain(strategy: Strategy, record: RunRecord) -> Explanation | None:
    """Why a finished run has reused nothing; None where it has, or was never meant to."""
    policy, total = strategy.policy, record.total
    if record.has_reused or not record.computed or not policy.expects_reuse:
        return None
    if total is not None and policy.caution(total) is not None:
        return None  # It was said when the run began.
    if total is not None and total <= 2:
        return too_few_steps(total)
    warmup = policy.warmup_limit(total)
    if warmup is not None and total is not None and warmup.value >= total - 1:
        return Explanation(
            reason="warm-up",
            text=f"{warmup.name} makes the first {warmup.value:g} of {total} steps compute, and the last computes too",
            advice=f"give a smaller {warmup.name}, or take more steps",
        )
    limit = policy.limit
    if limit is not None and record.smallest is not None and record.smallest >= limit.value:
        return Explanation(
            reason="threshold",
            text=f"every step measured above {limit.name}={limit.value:g}; "
            f"the smallest value was {record.smallest:.3g}",
            advice=f"give a {limit.name} above that to reuse, at the price of larger errors",
        )
    others = Counter({reason: count for reason, count in record.computed.items() if reason in _GUARDS})
    if others:
        ((reason, _),) = others.most_common(1)
        text, advice = _GUARDS[reason]
        return Explanation(reason=reason, text=text, advice=advice)
    if total is not None and policy.schedule(total) is not None:
        return too_few_steps(total)
    return Explanation(
        reason="policy",
        text=f"{type(policy).__name__} computed every step",
        advice="give it a larger tolerance or threshold, or take more steps",
    )


def too_few_steps(total: int) -> Explanation:
    """A run that leaves nothing to reuse."""
    steps = "1 step" if total == 1 else f"{total} steps"
    return Explanation(
        reason="too few steps",
        text=f"a run of {steps} leaves none out with these settings",
        advice="to save time on so short a run, take fewer steps instead",
    )


def no_run(pipeline: str) -> Explanation:
    """The pipeline was called, and its denoiser was not."""
    return Explanation(
        reason="no run",
        text=f"{pipeline} finished without a call of the denoiser that reuse was enabled on",
        advice="enable reuse on the pipeline whose transformer or unet runs",
    )


def no_steps(what: str) -> Explanation:
    """The denoiser was called, and nobody told its steps."""
    return Explanation(
        reason="no steps",
        text=f"the denoiser was called, and {what}",
        advice="call set_timesteps and step of the pipeline's own scheduler, or, in a loop with a step of its own, "
        "handle.advance() at the end of each step",
    )


def no_step_ended(calls: int) -> Explanation:
    """The denoiser was called for more than a step, and no step ended."""
    return no_steps(f"no step ended after {calls} calls: nobody calls scheduler.step")


_NO_SCHEDULER_STEP = Explanation(
    reason="no scheduler step",
    text="region 'step' forecasts what scheduler.step is handed, and that was not called",
    advice="give region='call', which needs no call of it",
)
MOST_BRANCHES = 4
"""More calls than that belong to more than one step."""


class InertRuns:
    """Explains the runs that reused nothing, once for each reason.

    Args:
        strategy: of every run.
        stats: of the session.
    """

    def __init__(self, strategy: Strategy, stats: Stats) -> None:
        self._strategy, self._stats = strategy, stats
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def end(self, run: Run, is_complete: bool) -> None:
        """The run has ended; nothing is said of one that was broken off."""
        generation, record = run.generation, self._stats.end_run(run.generation.number)
        explanation = None
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
