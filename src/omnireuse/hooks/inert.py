"""A look at each run at its end: did its latents stay finite, and if it reused nothing, or nearly all, why?"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from omnireuse.errors import StateError
from omnireuse.hooks.run import Layout, Run
from omnireuse.loop.generation import Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.summary.counters import RunRecord, Stats

__all__ = ["Explanation", "InertRuns", "explain"]

logger = logging.getLogger("omnireuse")


class Explanation(NamedTuple):
    """Reasons for no reuse.

    Attributes:
        reason: in short; a handle warns once for each.
        text: the event, as a part of a sentence.
        advice: as a part of a sentence.
        what: the thing explained.
    """

    reason: str
    text: str
    advice: str
    what: str = "nothing was reused"

    def __str__(self) -> str:
        return f"{self.what}: {self.text}; {self.advice}"


_GUARDS = (
    Explanation("layout", "the denoiser's inputs changed at every step", "keep them the same within a run"),
    Explanation("nonfinite", "the watched signal was not finite", "look for NaN or infinite values in the latents"),
    Explanation(
        "noiseless",
        "the denoised sample says nothing about the output at these noise levels",
        "give prediction_target='output'",
    ),
    Explanation("unprimed", "nothing could be remembered at any step", "give prediction_target='output'"),
)
_NO_SCHEDULER_STEP = Explanation(
    "no scheduler step",
    "region 'step' forecasts what scheduler.step is handed, and that was not called",
    "give region='call', which needs no call of it",
)
FEW = 8
"""A run that computes a smaller share of its steps than one in so many gets a word."""
MOST_BRANCHES = 4
"""More calls than that belong to more than one step."""


def explain(strategy: Strategy, record: RunRecord) -> Explanation | None:
    """The reason why a finished run reused nothing; None if it did, or was not to."""
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
            first = f"the first {warmup.value:g} of {total} steps are computed, and so is the last"
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


def too_much(strategy: Strategy, record: RunRecord) -> Explanation | None:
    """The warning for a run whose policy measures and has reused nearly all; None for others."""
    tally, total = record.tally, record.total
    decided = tally.computed + tally.reused
    if total is None or total < FEW * 2 or not decided or tally.computed / decided * total > total / FEW:
        return None
    return Explanation(
        "too much",
        f"{type(strategy.policy).__name__} computed {tally.computed / decided * total:.0f} of {total} steps",
        "pictures of so few steps are far from the full run as a rule; compare with as few plain steps, or let the "
        "policy compute more",
        what="nearly all was reused",
    )


def _too_few_steps(total: int) -> Explanation:
    steps, advice = f"{total} steps", "to save time on so short a run, take fewer steps instead"
    if total == 1:
        steps, advice = "1 step", "it needs no reuse"
    return Explanation("too few steps", f"a run of {steps} leaves none out with these settings", advice)


def _of_change(explanation: Explanation, generation: Generation) -> Explanation:
    """The same with what has changed."""
    # In region "step" the latents follow.
    found: list[Any] = [each[0] if type(each) is tuple else each for each in generation.change or ()]
    if len(found) != 2 or not all(isinstance(each, Layout) for each in found):
        return explanation
    before, after = found
    text = f"the denoiser's inputs changed at every step ({before.changes_to(after)})"
    return explanation._replace(text=text)


def _no_steps(what: str) -> Explanation:
    """The denoiser was called, and nobody told its steps."""
    return Explanation(
        "no steps",
        f"the denoiser was called, and {what}",
        "call set_timesteps and step of the pipeline's own scheduler, or, in a loop with a step of its own, "
        "handle.advance() at the end of each step",
    )


class InertRuns:
    """The look at the ends of a session's runs; those that reused nothing are explained, once for each reason."""

    def __init__(self, strategy: Strategy, stats: Stats) -> None:
        self._strategy, self._stats = strategy, stats
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def end(self, run: Run, is_complete: bool) -> None:
        """Look at a run that has ended; one that was aborted is not reported.

        Raises:
            StateError: as `_check_finite`.
        """
        try:
            if is_complete:
                self._check_finite(run)
        finally:
            self._explain(run, is_complete)

    def _check_finite(self, run: Run) -> None:
        """Count a run apart whose latents are not finite. Cost: one read.

        A model that computes something that is not finite does so without reuse, too: that is a warning.

        Raises:
            StateError: a forecast is the first that is not finite.
        """
        step, generation = _first_broken(run.magnitudes), run.generation
        if step is None:
            return
        self._stats.mark_broken(generation.number)
        if any(each.run == generation.number and each.step == step and each.reused for each in self._stats.events):
            raise StateError(
                f"the latents of this run are NaN or infinite from step {step} on, which "
                f"{type(generation.forecaster).__name__} forecast, unless a callback changed them there; compute more "
                "steps, or give another forecaster"
            )
        logger.warning(
            "the latents of this run are NaN or infinite from step %d on, which was computed and not forecast: see "
            "whether they are with policy='never', too, and look at the model's dtype and inputs",
            step,
        )

    def _explain(self, run: Run, is_complete: bool) -> None:
        generation, last = run.generation, (run.generation.total or 0) - 1
        # If timesteps alone tell the steps, the last one ends when another run begins.
        is_whole = is_complete or (not run.is_stepped and run.step >= last)
        record = self._stats.end_run(generation.number, is_whole=is_whole)
        explanation = None
        if run.kind == "measured":
            return
        if run.step == 0 and run.calls >= max(generation.total or 0, MOST_BRANCHES + 1):
            self.no_step_ended(run.calls)
        elif is_complete:
            explanation = _NO_SCHEDULER_STEP if record is None else explain(self._strategy, record)
            if explanation is not None and explanation.reason == "layout":
                explanation = _of_change(explanation, generation)
            if record is not None and generation.schedule is None:
                explanation = explanation or too_much(self._strategy, record)
        if explanation is not None:
            self._say(explanation)

    def no_run(self, pipeline: str, *, is_called: bool) -> None:
        """Warn of a call of the pipeline that has finished without a run, whether its denoiser was called or not."""
        if is_called:
            self._say(_no_steps(f"the scheduler of {pipeline} was told no timesteps before"))
            return
        self._say(
            Explanation(
                "no run",
                f"{pipeline} finished without a call of the denoiser that reuse was enabled on",
                "enable reuse on the pipeline whose transformer or unet runs",
            )
        )

    def no_step_ended(self, calls: int) -> None:
        """Warn that the denoiser was called for more than a step, and no step ended."""
        self._say(_no_steps(f"no step ended after {calls} calls: nobody calls scheduler.step"))

    def _say(self, explanation: Explanation) -> None:
        """Warn, unless this was said before or nothing was meant to be reused."""
        with self._lock:
            if not self._strategy.policy.expects_reuse or explanation.reason in self._said:
                return
            self._said.add(explanation.reason)
        logger.warning("%s", explanation)


def _first_broken(magnitudes: Sequence[tuple[int, torch.Tensor]]) -> int | None:
    """The step after which the latents were first not finite; None if they always were."""
    if not magnitudes:
        return None
    device = magnitudes[0][1].device
    values = torch.stack([value.to(device, torch.float32) for _, value in magnitudes]).tolist()
    return next((step for (step, _), value in zip(magnitudes, values, strict=True) if not math.isfinite(value)), None)
