"""Where a search stands, told to whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Standing"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a search stands.

    Attributes:
        pipeline: what computes, where and in which precision, and how many runs are asked of it, in words.
        doing: in words; every part of the search has words of its own.
        done: prompts that were run, or schedules that were scored, in this part.
        total: most of them there can be in this part.
        best: mean PSNR in dB of the best schedule so far, where this part looks for one.
        runs: full runs of one prompt that were spent, reused steps not counted.
        runs_left: most that are still to come.
        seconds_left: what those take at the speed so far; None before anything was run.
    """

    pipeline: str
    doing: str
    done: int
    total: int
    best: float | None = None
    runs: float
    runs_left: float
    seconds_left: float | None
