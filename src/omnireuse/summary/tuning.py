"""The state of tuning, as a record for users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omnireuse.base.validation import counted

__all__ = ["BEGINS", "GOES_ON", "Tuning"]

BEGINS = "the first pictures are measured"
"""Why a configuration is measured."""
GOES_ON = "trial runs go on after the next picture"
"""Why it is still measured, once its pictures are."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The state of tuning for runs like the latest one.

    Attributes:
        state: "off"; "waiting" for another process, or until reuse has saved enough; "measuring" while pictures are
            computed in full; "ready" once a plan is frozen; "failed" if the pipeline cannot be tuned. The untuned
            default is used if the state is "off", "waiting" or "failed".
        pictures: measured so far.
        wanted: how many are measured at most.
        runs: work spent on full runs and trial runs, in full runs of one call.
        expected: relative L1 error of the final latents that the plan in use left in the measured pictures, on average;
            None if nothing was measured, and for the untuned default.
        path: file that keeps the plan; None if it is in memory only.
        computes_all: whether every step is computed if the state is "off", "waiting" or "failed", as for a quality.
        reason: why the state is as it is, in a sentence.
        is_sure: whether a plan will be used once all pictures are measured; if False, only if one is close enough.
        near: other arguments that have a plan already, while these are measured, in words; empty without any.
    """

    state: Literal["off", "waiting", "measuring", "ready", "failed"]
    pictures: int = 0
    wanted: int = 0
    runs: float = 0.0
    expected: float | None = None
    path: str | None = None
    computes_all: bool = False
    reason: str = ""
    is_sure: bool = True
    near: str = ""

    def __str__(self) -> str:
        serves = "every step is computed" if self.computes_all else "the untuned default is used"
        if self.state == "measuring":
            then = "reuse begins if trial runs find a plan that is close enough"
            if self.is_sure:
                is_used = self.pictures == self.wanted and not self.computes_all
                then = f"{f'{serves} until' if is_used else 'reuse begins once'} trial runs have chosen a plan"
            text = f"{self.pictures} of {counted(self.wanted, 'picture')} measured"
            why = "" if self.reason == BEGINS else f" ({self.reason})"
            near = self.near and f" ({self.near})"
            return f"measuring: {text}{why}; {then}{near}"
        if self.state == "off":
            return f"tuning is off{', and every step is computed' if self.computes_all else ''}: {self.reason}"
        if self.state == "waiting":
            return f"tuning waits, {serves}: {self.reason}"
        if self.state == "failed":
            return f"not tuned, {serves}: {self.reason}"
        kept = f"; kept in {self.path}" if self.path is not None else "; kept in memory only"
        return f"tuned: {self.reason}{kept}"
