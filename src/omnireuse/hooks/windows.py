"""Loops that denoise a picture or video window by window: is a call given the window that it had at the step before?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["WINDOW", "Windows"]

WINDOW = "the window that a call is given"
"""Names the condition that changes at every step if the windows move."""

_LEAST_COSINE = 0.6
"""Between the latents of one window at two steps. Those of a solver that adds noise have 0.75 at 20 steps, and more at
more; windows beside each other have 0 at the first steps."""


class Windows:
    """The windows of one run: calls of a step with different latents, which no name tells apart.

    What is remembered is told apart by the order of the calls, which is right if each has its own window at every step.
    The second step verifies that: its latents must resemble those of the first. At later steps no window may be added,
    or begin at another place in the memory of the latents. If windows move, each step counts as a change of conditions.

    Attributes:
        are_several: whether the first two steps have shown windows.
    """

    def __init__(self) -> None:
        self.are_several = self._are_lost = False
        self._first: dict[Hashable, list[torch.Tensor]] = defaultdict(list)
        """The latents of the first step, until the second one has shown them."""
        self._begins: dict[Hashable, dict[int, int | torch.SymInt]] = defaultdict(dict)
        """Where each window of a name begins in memory, counted in values."""

    def move(self, step: int, name: Hashable, place: int, latents: torch.Tensor, *, is_again: bool) -> bool:
        """Look at a call of the first two steps, or of any if there are several windows; returns whether they move.

        Args:
            name: that the calls of a step share.
            place: of the call among them, from 0.
            is_again: whether the second step has the time of the first: the scheduler is stepped for each window.

        Cost: a copy of the latents at the first step; a read of the device at the second, if a name has several calls.
        """
        if step == 0:
            self._first[name].append(latents.detach().clone())
        elif first := self._first.get(name):
            if (len(first) > 1 or is_again) and place < len(first):
                is_beside, is_other = _compared(first[place - 1], first[place], latents)
                is_window = is_beside or is_again
                self._are_lost |= is_window and is_other
                self.are_several |= is_window
                self._begins[name][place] = latents.storage_offset()
            if place + 1 >= len(first):
                del self._first[name]
        elif begins := self._begins.get(name):
            self._are_lost |= self.are_several and begins.get(place) != latents.storage_offset()
        return self._are_lost


def _compared(beside: torch.Tensor, before: torch.Tensor, now: torch.Tensor) -> tuple[bool, bool]:
    """Whether a call has other latents than the one beside it, and whether they are not those that it had before."""
    if now.is_meta or isinstance(now, FakeTensor) or now.shape != before.shape:
        return False, False  # another shape begins anew
    cosine = torch.cosine_similarity(before.flatten().float(), now.flatten().float(), dim=0)
    is_other = cosine < _LEAST_COSINE
    is_window = (beside != before).any() if beside.shape == before.shape else torch.ones_like(is_other)
    found: tuple[bool, bool] = tuple(torch.stack([is_window, is_other]).tolist())
    return found
