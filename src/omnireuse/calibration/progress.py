"""The progress of a search, and its bar in terminals and notebooks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from tqdm.auto import tqdm

__all__ = ["Progress", "ProgressBar", "Tracker"]

FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of at most {total:.0f} full runs [{elapsed}<{remaining}]"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a search is.

    Attributes:
        pipeline: what computes, where, in which dtype, and what is asked of it, in words.
        doing: name of the present part of the search.
        done: prompts that were run, or schedules that were scored, in this part.
        total: the most of them in this part.
        best: mean PSNR in dB of the best schedule so far, in parts that search one.
        runs: full runs of one prompt that were spent; a reused step costs nothing.
        runs_left: the most that are still to come.
        seconds_left: time for those at the speed so far; None before the first run.
    """

    pipeline: str
    doing: str
    done: int
    total: int
    best: float | None = None
    runs: float
    runs_left: float
    seconds_left: float | None


class Tracker:
    """Reports the progress of a search.

    Args:
        pipeline: as in `Progress`.
        most_runs: the most runs that the search takes, until `expect` knows better.
        report: called with each `Progress`.
    """

    def __init__(self, pipeline: str, most_runs: float, report: Callable[[Progress], None]) -> None:
        self._pipeline, self._report = pipeline, report
        self._begun, self._ahead = time.monotonic(), most_runs
        self.runs = 0.0
        """Full runs of one prompt that were spent."""

    def spend(self, runs: float) -> None:
        """Count runs that were spent."""
        self.runs += runs

    def expect(self, runs: float) -> None:
        """Correct the runs that are still to come."""
        self._ahead = self.runs + runs

    def __call__(self, doing: str, done: int, total: int, best: float | None = None) -> None:
        """Report."""
        left = max(0.0, self._ahead - self.runs)
        self._report(
            Progress(
                pipeline=self._pipeline,
                doing=doing,
                done=done,
                total=total,
                best=best,
                runs=self.runs,
                runs_left=left,
                seconds_left=(time.monotonic() - self._begun) / self.runs * left if self.runs else None,
            )
        )


class ProgressBar:
    """Shows each `Progress` that it is called with. A context manager.

    Args:
        shown: False for no bar.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self._bar = tqdm(desc="loading", bar_format="{desc} [{elapsed}]", disable=not shown, file=sys.stderr)
        self._has_begun = False

    def __call__(self, progress: Progress) -> None:
        """Show it; the first time after a line that describes the pipeline."""
        if self._bar.disable:
            return
        best = "" if progress.best is None else f", best {progress.best:.1f} dB"
        self._bar.set_description_str(f"{progress.doing}{best}", refresh=False)
        if not self._has_begun:
            self._has_begun = True
            self._bar.write(progress.pipeline, file=self._bar.fp)
            self._bar.bar_format = FORMAT
            self._bar.reset(total=max(round(progress.runs_left), 1))
        self._bar.total = max(self._bar.total or 0, progress.runs)
        self._bar.update(progress.runs - self._bar.n)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._has_begun:
            # A search may take fewer runs than expected.
            self._bar.set_description_str("done", refresh=False)
            self._bar.total = max(self._bar.n, 1)
        self._bar.close()
