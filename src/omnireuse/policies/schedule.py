"""The base of schedules: steps that are known before the run, with no measurement, and alike on all ranks."""

from __future__ import annotations

from abc import abstractmethod

from omnireuse.errors import StateError
from omnireuse.loop.policy import Policy, StepView

__all__ = ["Schedule"]


class Schedule(Policy):
    """Compute at steps chosen beforehand and reuse at all others. Only `schedule` must be written."""

    @abstractmethod
    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        """The steps that compute in a run of `total` ≥ 1 steps with these noise fractions."""

    def wants_reuse(self, state: None, view: StepView) -> bool:
        if view.total is None:
            raise StateError(
                f"{self!r} depends on the number of steps, which is not known; call "
                "handle.expect(num_inference_steps), or refresh(pipeline, num_inference_steps) of a cache backend"
            )
        return view.index not in self.schedule(view.total, view.noises)
