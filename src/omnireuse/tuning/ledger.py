"""The price of tuning: the work of all pictures of a handle beside that of computing every step."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

__all__ = ["FROM", "FROM_FOR_AIMS", "PRICE", "Ledger", "Work", "work_of"]

FROM = 10
"""The picture from which on the price holds: the first ones are measured."""
FROM_FOR_AIMS = 16
"""The same where something is asked of the pictures, so that more of them are measured to judge it."""
PRICE = 1.1
"""Most work of all pictures so far, as a multiple of that of computing every step."""

Work = NDArray[np.float64]
"""Calls of the denoiser, and the same times the elements of the latents: the price holds in both."""


def work_of(calls: float, elements: int) -> Work:
    """The work of so many calls on latents of so many elements."""
    return np.array([calls, calls * elements])


class Ledger:
    """Notes work, and says whether tuning may spend more. Threads may share it."""

    def __init__(self) -> None:
        self._pictures, self._plain, self._spent = 0, work_of(0, 0), work_of(0, 0)
        self._lock = threading.Lock()
        self.pace = 1.0
        """Calls of the denoiser in each step of the latest picture."""

    def made(self, plain: Work, share: float) -> None:
        """Note a picture.

        Args:
            plain: its work if every step computes.
            share: of its steps that were computed.
        """
        with self._lock:
            self._pictures += 1
            self._plain = self._plain + plain
            self._spent = self._spent + share * plain

    def spend(self, work: Work) -> None:
        """Note work beside the pictures; a negative amount takes some back."""
        with self._lock:
            self._spent = self._spent + work

    def allows(self, work: Work, picture: Work, share: float, *, full: int = 0, by: int = FROM) -> bool:
        """Whether the price still holds after so much work beside the pictures.

        Args:
            work: to be spent.
            picture: work of a picture like the present one if every step computes. As many as are missing to `by` are
                taken to follow.
            share: of their steps that compute.
            full: pictures to come before them that compute every step.
            by: the picture from which on the price holds.
        """
        with self._lock:
            ahead = max(by - self._pictures - full, 0)
            spent = self._spent + work + (full + share * ahead) * picture
            plain = self._plain + (full + ahead) * picture
            return bool((spent <= PRICE * plain + 1e-6).all())
