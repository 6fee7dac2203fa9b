"""The results of reuse: a record, its words, and its HTML for notebooks."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import count
from typing import TYPE_CHECKING

from omnireuse.base.validation import counted
from omnireuse.loop.events import Audit
from omnireuse.policies.base import SAME_NOISE
from omnireuse.summary.tuning import Tuning

if TYPE_CHECKING:
    from omnireuse.noise.parametrization import NoiseLevel

__all__ = ["Promise", "ReferenceCalls", "Summary", "summary_html"]

_REASONS = {  # "together", of branches that follow the first one's decision, is the policy's
    "policy": "as the policy chose",
    "first": "at the first step",
    "last": "at the last step",
    "layout": "when a prompt, another input or its shape, or an adapter changed",
    "paused": "when a branch came back that an earlier step had left out",
    "unprimed": "before there was enough to forecast from",
    "nonfinite": "when the measured change was not finite",
    "longest": "after as many reused steps as max_consecutive allows",
    "noiseless": "when no noise was left",
    "measuring": "while the pipeline was measured",
    "cfg++": "as the sampler steps from a part of guidance (CFG++)",
    "cache-dit": "as the cache-dit library chose",
}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A profile's knowledge of the quality of its plan, and the runs that it holds for.

    Attributes:
        tenth: PSNR in dB to the full run that at least nine of ten new pictures reach, by what the held-out prompts
            have shown; −inf if they were too few to say.
        expected: mean on the held-out prompts; NaN without any.
        prompts: how many those were.
        coordinates: of the steps of the runs that it was measured on, as forecasters see them.
        but: why nothing is promised, if so.
    """

    tenth: float
    expected: float
    prompts: int
    coordinates: tuple[float, ...]
    but: str | None = None

    @property
    def quality(self) -> float:
        """PSNR in dB that at least nine of ten new pictures reach; −inf if nothing is promised."""
        return self.tenth if self.but is None else -math.inf

    def unlike(self, total: int | None, levels: Sequence[NoiseLevel]) -> str | None:
        """How the steps of a run differ from those of these runs, in words; None if they do not.

        Args:
            total: number of its steps; None if it is not known.
            levels: noise level of each step; empty if unknown.
        """
        own = len(self.coordinates)
        pairs = zip((level.noise for level in levels), self.coordinates, strict=False)
        if total is not None and total != own:
            differ = f"{total} steps"
        elif any(noise is not None and abs(noise - place) > SAME_NOISE for noise, place in pairs):
            differ = "other noise levels"
        else:
            return None
        return f"a run has {differ}, the profile was measured on runs of {own} steps"

    def __str__(self) -> str:
        if not self.prompts:
            return f"not promised: {self.but or 'the plan was not judged on held-out prompts'}"
        mean = f"mean {self.expected:.1f} on {counted(self.prompts, 'held-out prompt')}"
        if not math.isfinite(self.tenth):
            return f"not promised: {self.but or 'too few held-out prompts'} ({mean})"
        shown = f"nine of ten reach {self.tenth:.1f} dB; {mean}"
        return f"promised: {shown}" if self.but is None else f"not promised: {self.but} (the profile: {shown})"


@dataclass(frozen=True, kw_only=True)
class ReferenceCalls:
    """The computed calls of an editing model that were given references.

    Attributes:
        full: computed with all tokens.
        lean: computed without the references' tokens, with keys and values that a full call has left.
        kept_bytes: most bytes of keys and values that one run kept.
    """

    full: int = 0
    lean: int = 0
    kept_bytes: int = 0

    def __str__(self) -> str:
        return (
            f"references: {counted(self.full, 'full call')} and {self.lean} lean; kept keys and values took "
            f"{self.kept_bytes / 2**20:.2f} MiB at most"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Summary:
    """The results of reuse so far.

    Attributes:
        name: name of the strategy.
        runs: generations with at least one decision. Means and ratios leave out those that `aborted`, `broken` and
            `measured` count; numbers of steps, calls and reasons do not.
        steps: denoising steps of all runs.
        computed_calls, reused_calls: decisions by their kind: one a step in region "step", one a denoiser call
            elsewhere.
        computed_steps: denoising steps computed in a mean run; fractions if branches decided differently.
        mean_steps: denoising steps of a mean run.
        reasons: number of decisions for each reason, separately for computed and reused ones.
        steps_by_reason: the same, counted in steps. Calls of a step that were decided separately count by their shares.
        mean_error: mean relative L1 distance, at computed steps, between the forecast for the step and what was
            computed and used; None if none could be compared. Not the error of the result.
        is_beyond: whether fewer plain steps, or the last value reused, are probably as good as the forecasts: they
            missed by more than half of the output (root mean square), and its changes from one computed step to the
            next kept less than 0.4 of their direction (mean cosine). False if that was not measured.
        promise: what the profile says of the plan's quality; None without a profile.
        host_seconds: mean host time of a decision with its forecast.
        kept_bytes: most bytes of tensors that one run held.
        calls_outside: denoiser calls that belonged to no run and were passed on.
        fallbacks: how often something else was done than was asked for, by what was done instead.
        last_run: for each step of the latest run, the share of its decisions that computed; None for a step without
            any.
        aborted: runs that ended before their last step.
        broken: runs whose final latents were NaN or infinite.
        measured: whole runs that were computed in full because tuning measured them. Means are of these while there are
            no others.
        saved_seconds: estimate of the time that reuse has saved in the runs of the means: each reused step counts as a
            computed one of its run. Without what tuning cost.
        companions: for models beside the denoiser, such as a ControlNet: the calls that were made, and all calls.
        audits: the latest audits, oldest first; at most 1,000.
        tuning: the state of tuning for runs like the latest one; None if it is off.
        references: full and lean calls; None if lean calls are off.
        notes: lines that extensions add.
    """

    name: str
    runs: int
    steps: int
    computed_calls: int
    reused_calls: int
    computed_steps: float
    reasons: dict[str, int] = field(default_factory=dict)
    steps_by_reason: dict[str, float] = field(default_factory=dict)
    mean_error: float | None = None
    is_beyond: bool = False
    promise: Promise | None = None
    host_seconds: float = 0.0
    kept_bytes: int = 0
    calls_outside: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    last_run: tuple[float | None, ...] = ()
    mean_steps: float = 0.0
    aborted: int = 0
    broken: int = 0
    measured: int = 0
    saved_seconds: float = 0.0
    companions: dict[str, tuple[int, int]] = field(default_factory=dict)
    audits: tuple[Audit, ...] = ()
    tuning: Tuning | None = None
    references: ReferenceCalls | None = None
    notes: Sequence[str] = ()

    @property
    def calls(self) -> int:
        """All decisions."""
        return self.computed_calls + self.reused_calls

    @property
    def step_ratio(self) -> float:
        """All steps divided by computed steps. It is not a ratio of times: time falls by the denoiser's share."""
        return self.mean_steps / self.computed_steps if self.computed_steps else 1.0

    @property
    def promise_holds(self) -> bool:
        """False if the pipeline or a run so far was unlike those that a profile was measured on."""
        return self.promise is None or self.promise.but is None

    def __str__(self) -> str:
        """A few lines for a person; the second is a strip of the steps of the latest run."""
        first, *others = _lines(self)
        return f"{self.name}: " + "\n  ".join((first, *_strip(self.last_run), *others))

    def __repr__(self) -> str:
        share = _share_of_steps(self) if self.mean_steps else "no whole run"
        done = f"{share}, {counted(self.runs, 'run')}" if self.calls else "nothing decided yet"
        return f"<Summary of {self.name}: {done}>"

    def _repr_html_(self) -> str:
        """The summary as a notebook shows it."""
        return summary_html(self)


def _share_of_steps(summary: Summary) -> str:
    """The computed part of a mean run: "14 of 28 steps computed (2.00x fewer)"."""
    fewer = f"{summary.step_ratio:.2f}x fewer" if summary.step_ratio > 1 else "none reused"
    return f"{_short(summary.computed_steps)} of {_short(summary.mean_steps)} steps computed ({fewer})"


def _lines(summary: Summary) -> Iterator[str]:
    """The figures, then the meaning of each."""
    outside = counted(summary.calls_outside, "denoiser call")
    fallbacks = [
        f"fell back to {what} {counted(number, 'time')}; the log says why" for what, number in summary.fallbacks.items()
    ]
    apart = [
        f"{counted(number, 'run')} {what}; no mean includes {'it' if number == 1 else 'them'}"
        for number, what in (
            (summary.aborted, "ended before the last step"),
            (summary.broken, "ended in latents that are NaN or infinite"),
        )
        if number
    ]
    if not summary.calls:
        yield "nothing was decided yet" + (f" ({outside} belonged to no run)" if summary.calls_outside else "")
        yield from (*apart, *fallbacks)
        return
    whole = summary.runs - summary.aborted - summary.broken
    later = whole - summary.measured
    if whole:
        shown = later or whole
        since = "since tuning: " if later and summary.measured else ""
        saved = f", about {_seconds(summary.saved_seconds)} saved" if summary.saved_seconds >= LEAST_SAVED else ""
        average = ", on average" if shown > 1 else ""
        yield f"{since}{_share_of_steps(summary)} in {counted(shown, 'run')}{average}{saved}"
    if later and summary.measured:
        work = f", in all {_short(summary.tuning.runs)} full runs of work" if summary.tuning is not None else ""
        yield f"tuning took {counted(summary.measured, 'run')} in full, and trial runs beside them{work}"
    yield from apart
    for action in ("reused", "computed"):
        yield from _reasons(summary, action)
    for name, (made, every) in summary.companions.items():
        yield f"{made} of {counted(every, 'call')} of {name} made"
    yield (
        f"a decision and its forecast took {summary.host_seconds * 1e3:.3f} ms; values kept for forecasts took "
        f"{summary.kept_bytes / 2**20:.2f} MiB at most"
    )
    if summary.references is not None:
        yield str(summary.references)
    if summary.is_beyond:
        yield (
            "this budget is beyond what forecasts can do here: expect little more than "
            f"{_short(summary.computed_steps)} plain steps give, or the last output held"
        )
    if summary.calls_outside:
        yield f"{outside} belonged to no run and passed unchanged"
    yield from fallbacks
    if summary.audits:
        errors = [error for audit in summary.audits for error in audit.errors]
        broken = sum(audit.broken for audit in summary.audits)
        kept = f"; {counted(broken, 'picture')} beyond the tolerance" if broken else ""
        yield (
            f"{counted(len(errors), 'picture')} audited: {sum(errors) / len(errors):.2%} error of the final latents on "
            f"average, {max(errors):.2%} at most{kept}"
        )
    yield from summary.notes
    if summary.tuning is not None:
        yield str(summary.tuning)
    if summary.promise is not None:
        yield str(summary.promise)


LONGEST_STRIP = 120
"""Steps of the longest run that a line of text shows."""
_BOXES = {"computed": "█#", "partly computed": "▒+", "forecast": "░.", "nothing decided": "·_"}
"""What a step was, and the character for it: first that of a terminal, then one that every stream can show."""


def _strip(shares: Sequence[float | None]) -> Iterator[str]:
    """The steps of a run as a line of one character each, with a legend; none for a run without steps or too long."""
    if not 0 < len(shares) <= LONGEST_STRIP:
        return
    words: dict[float | None, str] = {None: "nothing decided", 0: "forecast", 1: "computed"}
    kinds = [words.get(share, "partly computed") for share in shares]
    try:
        "█▒░·".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        place = 0
    except (UnicodeEncodeError, LookupError):
        place = 1
    legend = ", ".join(f"{box[place]} {kind}" for kind, box in _BOXES.items() if kind in kinds)
    yield f"latest run: {''.join(_BOXES[kind][place] for kind in kinds)} ({legend})"


def _reasons(summary: Summary, action: str) -> Iterator[str]:
    """How many steps were decided so, and why."""
    counts: dict[str, float] = {}
    for words, number in summary.steps_by_reason.items():
        if words.startswith(action):
            reason = words.removeprefix(f"{action} (")[:-1]
            reason = "policy" if reason == "together" else reason
            counts[reason] = counts.get(reason, 0.0) + number
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    parts = [f"{_short(number)} {_REASONS.get(reason, f'for {reason!r}')}" for reason, number in ordered]
    if len(parts) == 1:
        parts = [parts[0].split(" ", 1)[1]]
    if parts:
        steps = _short(sum(counts.values()))
        yield f"{action} {steps} {'step' if steps == '1' else 'steps'}: {', '.join(parts)}"


LEAST_SAVED = 1.0
"""Seconds below which a summary does not tell what was saved."""


def _seconds(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if not hours else f"{hours} h {minutes} min"


def _short(number: float) -> str:
    return f"{number:,.1f}".removesuffix(".0")


def summary_html(summary: Summary, title: str = "") -> str:
    """A summary for a notebook, with the steps of the latest run.

    Args:
        title: what the card is headed with; the strategy's name by default.
    """
    head, *lines = [
        f'<div style="margin-top:.2em">{escape(line[0].upper() + line[1:])}</div>' for line in _lines(summary)
    ]
    body = "".join((head, *lines, _html_strip(summary.last_run) if summary.last_run else ""))
    return (
        '<div style="font:13px/1.45 system-ui,sans-serif;max-width:660px;padding:.7em 1em;border-radius:8px;'
        'border:1px solid rgba(128,128,128,.35)">'
        f'<div style="font-weight:600">{escape(title or summary.name)}</div>{body}</div>'
    )


COMPUTED, FORECAST = "#0c7c6c", "#8b93a1"
"""Colours of steps."""


def _html_strip(shares: Sequence[float | None]) -> str:
    """A box for each step, with a legend: filled if it was computed, grey if it was forecast."""
    label = f"{sum(bool(share) for share in shares)} of {counted(len(shares), 'step')} computed"
    return (
        f'<div style="font-size:.9em">the steps of the latest run: <span style="color:{COMPUTED}">■</span> computed '
        f'(fainter: for some of the branches), <span style="color:{FORECAST}">■</span> forecast</div>'
        f'<div role="img" aria-label="{label}" style="display:flex;gap:1px;height:14px;min-width:180px;'
        f'margin-top:.3em">{"".join(map(_html_box, count(), shares))}</div>'
    )


def _html_box(step: int, share: float | None) -> str:
    fill, opacity, what = FORECAST, 0.1, "nothing decided"
    if share == 0:
        opacity, what = 0.35, "forecast"
    elif share is not None:
        fill, opacity, what = COMPUTED, 0.25 + 0.75 * share, "computed" if share == 1 else f"{share:.0%} computed"
    return f'<i title="step {step}: {what}" style="flex:1;background:{fill};opacity:{opacity:.2f}"></i>'
