"""The one progress bar of a measured picture, which goes on while trial runs do."""

from __future__ import annotations

from typing import Any

from omnireuse.arguments.tune import TURN_OFF

__all__ = ["PictureBar"]


class PictureBar:
    """The bar that the pipeline has made for the run of a picture, once it is known to be measured.

    Args:
        made: bars of the call so far; the latest one is the run's.
        total: steps of the picture and of the trial runs that are expected after it.
    """

    def __init__(self, made: list[Any], total: int) -> None:
        self._bar: Any = made[-1] if made and _can_go_on(made[-1]) else None
        if self._bar is not None:
            own = str(self._bar.desc or "").removesuffix(": ")
            words = f"omnireuse: measuring ({TURN_OFF})"
            self._bar.total = max(total, self._bar.total or 0)
            self._bar.close = lambda: None  # the pipeline's loop closes it before the trial runs
            self._bar.set_description(f"{own}: {words}" if own else words)

    def computed(self) -> None:
        """Go on by one step."""
        if self._bar is not None and self._bar.n < self._bar.total:
            self._bar.update()

    def close(self) -> None:
        """End the bar where it stands."""
        bar, self._bar = self._bar, None
        if bar is not None:
            del bar.close
            bar.total = bar.n
            bar.close()


def _can_go_on(bar: object) -> bool:
    """Whether it is a bar of tqdm that is shown."""
    return getattr(bar, "disable", True) is False and hasattr(bar, "n") and callable(getattr(bar, "refresh", None))
