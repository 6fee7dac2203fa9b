"""A look at each run at its end: did its latents stay finite, and if it reused nothing, or nearly all, why?"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from omnireuse import messages
from omnireuse.base.once import Once
from omnireuse.errors import StateError
from omnireuse.hooks.run import Layout, Run
from omnireuse.hooks.windows import WINDOW
from omnireuse.loop.events import Decision
from omnireuse.loop.strategy import Strategy
from omnireuse.summary.counters import Counts

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
_TIMES = Explanation(
    "times",
    "each frame has a timestep of its own, and the scheduler makes no step of all frames (diffusion forcing)",
    "if all frames share them (ar_step=0), call handle.advance() in a callback of each step, with region='call'",
)
FEW = 8
"""A run that computes less than one in this many steps is explained in the log."""


def explain(strategy: Strategy, run: Sequence[Decision]) -> Explanation | None:
    """The reason why a finished run reused nothing, by its decisions; None if it did, or was not to."""
    policy = strategy.policy
    if not run or any(each.reused for each in run) or not policy.expects_reuse:
        return None
    total = run[0].total
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
    limit, measured = policy.limit, [each.measured for each in run if each.reason == "policy"]
    smallest = min((each for each in measured if each is not None), default=None)
    if limit is not None and smallest is not None and smallest >= limit.value:
        return Explanation(
            "threshold",
            f"every step measured above {limit.name}={limit.value:g}; the smallest value was {smallest:.3g}",
            f"give a {limit.name} above that to reuse, at the price of larger errors",
        )
    reasons = Counter(each.reason for each in run)
    guard = max(_GUARDS, key=lambda each: reasons[each.reason])
    if reasons[guard.reason]:
        return guard
    if total is not None and policy.schedule(total) is not None:
        return _too_few_steps(total)
    return Explanation(
        "policy",
        f"{type(policy).__name__} computed every step",
        "give it a larger tolerance or threshold, or take more steps",
    )


def too_much(strategy: Strategy, run: Sequence[Decision]) -> Explanation | None:
    """The warning for a run whose policy measures and has reused nearly all; None for others."""
    total, share = run[0].total, sum(not each.reused for each in run) / len(run)
    if total is None or total < FEW * 2 or share * total > total / FEW:
        return None
    return Explanation(
        "too much",
        f"{type(strategy.policy).__name__} computed {share * total:.0f} of {total} steps",
        "pictures of so few steps are far from the full run as a rule; compare with as few plain steps, or let the "
        "policy compute more",
        what="nearly all was reused",
    )


def _too_few_steps(total: int) -> Explanation:
    steps, advice = f"{total} steps", "to save time on so short a run, take fewer steps instead"
    if total == 1:
        steps, advice = "1 step", "it needs no reuse"
    return Explanation("too few steps", f"a run of {steps} leaves none out with these settings", advice)


def _of_change(explanation: Explanation, run: Run) -> Explanation:
    """The same with what has changed."""
    generation = run.generation
    if WINDOW in run.conditions.changes:
        return explanation._replace(
            text="calls of a step are given other windows of the latents than at the step before",
            advice="give each call its window at every step, or name each window by cache_context",
        )
    if run.conditions.changes:
        names = ", ".join(run.conditions.changes)
        return explanation._replace(text=f"the content of the denoiser's inputs changed at every step ({names})")
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

    def __init__(self, strategy: Strategy, counts: Counts) -> None:
        self._strategy, self._counts = strategy, counts
        self._said = Once()

    def end(self, run: Run, is_complete: bool, broken: int | None) -> None:
        """Look at a run that is about to end; one that was aborted is not reported.

        A model that computes something that is not finite does so without reuse, too: that is a warning.

        Args:
            broken: the step after which its latents were first not finite; None if they always were.

        Raises:
            StateError: that step was forecast.
        """
        decisions = self._counts.of_run(run.generation.number)
        if run.has_no_end_of_steps:
            unended = _no_steps(f"no step ended after {len(run.called)} calls: nobody calls scheduler.step")
            self._say(_TIMES if run.has_times else unended)
        elif run.kind != "measured":
            self._explain(run, decisions, is_complete)
        if broken is None:
            return
        if any(each.step == broken and each.reused for each in decisions):
            forecaster = type(run.generation.forecaster).__name__
            raise StateError(messages.LATENTS_NOT_FINITE, step=broken, forecaster=forecaster)
        logger.warning(
            "the latents of this run are NaN or infinite from step %d on, which was computed and not forecast: see "
            "whether they are with policy='never', too, and look at the model's dtype and inputs",
            broken,
        )

    def _explain(self, run: Run, decisions: Sequence[Decision], is_complete: bool) -> None:
        generation = run.generation
        if not is_complete:
            return
        explanation = explain(generation.strategy, decisions) if decisions else _NO_SCHEDULER_STEP
        if explanation is not None and explanation.reason == "layout":
            explanation = _of_change(explanation, run)
        if explanation is None and decisions and generation.schedule is None:
            explanation = too_much(generation.strategy, decisions)
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

    def _say(self, explanation: Explanation) -> None:
        """Warn, unless this was said before or nothing was meant to be reused."""
        if self._strategy.policy.expects_reuse and self._said.is_new(explanation.reason):
            logger.warning("%s", explanation)
