"""What happened: one frozen event a decision. Counters, summaries and pictures are all built on it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Decision"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One answer to "compute or reuse?", and what came of it.

    Attributes:
        run: number of the run in this handle, counted from 1.
        step: denoising step, counted from 0.
        total: steps of the run; None where nobody told.
        branch: which call of the step: "cond", "uncond", "0", "1", …; "step" where one decision covers the whole step.
        sample: row of the batch that was decided on; None where one decision covers the batch.
        reused: what was done.
        corrected: on a computed step, whether forecasts before it were made good in what was handed on.
        reason: who decided: "policy", or the guard that made the step compute ("first", "last", "unprimed", …).
        sigma: the scheduler's noise level; None where it has none.
        noise: share of noise in the latents, in [0, 1]; None where the scheduler's algebra is not known.
        drift: relative L1 change of the signal since the previous step; None where it was not measured.
        measured: what the policy held against its threshold; None where it measured nothing.
        error: on a computed step, the relative L1 error that the forecast for it would have had; None where unknown.
        host_seconds: time spent on the decision and on the forecast, without the model's own computation.
    """

    run: int
    step: int
    total: int | None
    branch: str
    sample: int | None = None
    reused: bool
    corrected: bool = False
    reason: str
    sigma: float | None
    noise: float | None = None
    drift: float | None
    measured: float | None = None
    error: float | None
    host_seconds: float
