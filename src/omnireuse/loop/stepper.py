"""What whoever drives a denoising loop needs to know of reuse: two questions at each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

__all__ = ["NOTHING", "Stepper", "stepped"]

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Stepper(ABC):
    """Answers for each step of one loop whether it is computed, and what the solver gets. `stepped` asks both.

    A generation, a wave of them, the recording of a full run and runs beside a recorded one are steppers. Hosts whose
    solver makes one call a step ask by `stepped`. Region `step` of a pipeline asks at the step's first call of the
    denoiser, and gives the scheduler what is used. Regions that forecast each call for itself ask a generation the same
    two questions of each branch of guidance: `Generation.decide`, and `Generation.answer`.

    Attributes:
        reused_rows: rows of the batch that are forecast at a step that is computed for others.
    """

    reused_rows: Sequence[int] = ()

    @abstractmethod
    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        """Whether the model is called at this step. Asked once for each step, in order.

        Args:
            step: from 0.
            latents: that the model would get, shape (B, …); None if they are not one tensor, or nobody watches them.
            kind: of the model's outputs, which are not forecast from those of another kind: one host has two models,
                for early and late steps, another has guidance that begins on the way.
        """

    @abstractmethod
    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor | None:
        """The solver's input at the step that was asked for.

        Args:
            output: of the model, after guidance; None if it was not called.
            latents: that the solver starts the step from.
            given: arguments of the solver's step beside these two, by the names of a scheduler of diffusers.

        Returns:
            None if nothing can stand in: call the model, and ask again with its output.
        """

    def see(self, denoiser: int, output: object, kinds: int = 1) -> None:  # noqa: B027  # most look at the sum alone
        """Take the output of a branch of guidance at this step, from hosts that see the branches.

        Args:
            denoiser: place of the model.
            output: of the model, in whatever structure; its next call may write over it.
            kinds: of latents in it, of which the solver gets one.
        """

    def known(self, call: int, device: torch.device | None) -> Any:
        """The output that stands in for a call that is not made at this step; None if nothing is known of it.

        Args:
            call: its place in the step, from 0.
        """
        return None

    def arrived(self, latents: torch.Tensor | None) -> None:  # noqa: B027  # most see them at the next step
        """Take the latents that the solver has returned, from hosts that see them, and at the end of the loop."""


def stepped(
    stepper: Stepper,
    compute: Callable[[], torch.Tensor],
    step: int,
    latents: torch.Tensor,
    *,
    kind: Hashable = 0,
    given: Mapping[str, Any] = NOTHING,
) -> torch.Tensor:
    """The solver's input at one step: what `compute` returns, or a forecast of it."""
    output = compute() if stepper.computes(step, latents, kind=kind) else None
    used = stepper.use(output, latents, given)
    if used is None:
        used = stepper.use(compute(), latents, given)
    assert used is not None, "a computed output can always be used"
    return used
