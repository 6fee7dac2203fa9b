"""What one branch of one generation remembers between its steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from omnireuse.diffusion.reuse.forecasters.base import Memory

__all__ = ["BranchState", "layout_of"]


def layout_of(*values: object) -> Hashable:
    """Shape, dtype and device of every tensor among the values: what must not change between remembering and
    reusing."""
    return tuple((tuple(v.shape), v.dtype, v.device) for v in values if isinstance(v, torch.Tensor))


@dataclass(kw_only=True, eq=False)
class BranchState:
    """The memory of one branch: plain data that `Generation` reads and writes.

    Attributes:
        order: place of its call among the step's calls of the denoiser.
        policy: state of the policy.
        memories: of each remembered value; None before the first.
        dtypes: of the values as they were computed.
        output_dtype: of the model's last computed output.
        layout: of the inputs that the memories belong to.
        signal: what was watched at the step that drift is measured from.
        computed: signal and values of the last computed step, where the output's change is estimated from the signal's.
        rate: relative change of the values over that of the signal between the last two computed steps.
        error: of the last forecast that could be compared with the truth.
        consecutive: reused steps since the last computed one.
    """

    order: int
    policy: Any
    memories: list[Memory] | None = None
    dtypes: list[torch.dtype] = field(default_factory=list)
    output_dtype: torch.dtype = torch.float32
    layout: Hashable = None
    signal: torch.Tensor | None = None
    computed: tuple[torch.Tensor, Sequence[torch.Tensor]] | None = None
    rate: float | None = None
    error: float | None = None
    consecutive: int = 0

    @property
    def primed(self) -> bool:
        """Whether every value can be forecast."""
        return self.memories is not None and all(memory.primed for memory in self.memories)

    def predict(self, coordinate: float) -> list[torch.Tensor]:
        """The forecast of every value, in the dtype it was computed in. Read-only."""
        assert self.memories is not None, "asked only when primed"
        return [memory.predict(coordinate).to(dtype) for memory, dtype in zip(self.memories, self.dtypes, strict=True)]

    def corrected(self, coordinate: float) -> list[torch.Tensor] | None:
        """What to hand on in place of the values just observed; None for these values themselves."""
        found = [memory.corrected(coordinate) for memory in self.memories or ()]
        values = [value for value in found if value is not None]
        # All of them or none: they were observed together, at the same steps.
        return [value.to(dtype) for value, dtype in zip(values, self.dtypes, strict=True)] if values else None

    def forget(self, policy: Any) -> None:
        """Drop every tensor and start anew, as after a change of layout or of guidance."""
        self.policy, self.memories, self.signal, self.computed = policy, None, None, None
        self.rate = self.error = None
        self.consecutive = 0

    def transformed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> BranchState:
        """A copy of its own in which every tensor is `change(tensor)`."""
        computed = self.computed
        return replace(
            self,
            memories=None if self.memories is None else [memory.transformed(change) for memory in self.memories],
            signal=None if self.signal is None else change(self.signal),
            computed=None if computed is None else (change(computed[0]), [change(value) for value in computed[1]]),
        )
