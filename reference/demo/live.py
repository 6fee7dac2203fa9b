"""The steps of the run that goes on, as a strip in the terminal."""

from __future__ import annotations

from omnireuse import Decision

__all__ = ["LiveStrip"]

COMPUTED, REUSED, AHEAD = "[cyan]█[/]", "[dim]░[/]", "[dim]·[/]"


class LiveStrip:
    """Collects the decisions of one run after the other."""

    def __init__(self) -> None:
        self._run: tuple[int, int | None] | None = None
        self._reused: dict[int, bool] = {}

    def add(self, decision: Decision) -> str:
        """The strip with one more decision, in rich's markup. A step is computed where any of its branches is."""
        step, run = decision.step, (decision.run, decision.total)
        if run != self._run or step < max(self._reused, default=0):
            self._run, self._reused = run, {}
        self._reused[step] = decision.reused and self._reused.get(step, True)
        total = max(decision.total or 0, max(self._reused) + 1)
        marks = {None: AHEAD, True: REUSED, False: COMPUTED}
        return "".join(marks[self._reused.get(step)] for step in range(total))
