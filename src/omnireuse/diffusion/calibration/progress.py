"""The progress bar of a search, in terminals and notebooks alike."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm.auto import tqdm

from omnireuse.diffusion.calibration.standing import Standing

__all__ = ["Bar"]

FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of at most {total:.0f} full runs [{elapsed}<{remaining}]"


class Bar:
    """Shows where a search stands; call it with each `Standing`. A context manager.

    Args:
        shown: False for none at all.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self._bar = tqdm(desc="loading", bar_format="{desc} [{elapsed}]", disable=not shown, file=sys.stderr)
        self._before: float | None = None

    def __call__(self, standing: Standing) -> None:
        """Show it; the first time with a line of its own for the pipeline."""
        if self._bar.disable:
            return
        best = "" if standing.best is None else f", best {standing.best:.1f} dB"
        self._bar.set_description_str(f"{standing.doing}{best}", refresh=False)
        if self._before is None:
            self._before = standing.runs
            self._bar.write(standing.pipeline, file=self._bar.fp)
            self._bar.bar_format = FORMAT
            self._bar.reset(total=max(round(standing.runs_left), 1))
        spent = standing.runs - self._before
        self._bar.total = max(self._bar.total or 0, spent)
        self._bar.update(spent - self._bar.n)

    def __enter__(self) -> Bar:
        """The bar itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the bar; full where the search came to its end, which may take fewer runs than thought."""
        if error is None and self._before is not None:
            self._bar.set_description_str("done", refresh=False)
            self._bar.total = max(self._bar.n, 1)
        self._bar.close()
