"""What learning from traffic has come to, for the summary."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.diffusion.reuse.present import counted

__all__ = ["Learned"]


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What runs of one kind have shown of their errors (`omnireuse.enable(learn=True)`).

    Attributes:
        runs: complete runs of this kind.
        schedule: the steps that its next run computes.
        changes: how often that has changed.
        gain: expected fall of the error of the final latents against the default's schedule, in dB; 0 where the two
            schedules are the same.
        kinds: how many kinds of runs are known: other noise levels, numbers of steps, schedulers or guidance.
        is_frozen: whether learning has ended.
    """

    runs: int
    schedule: tuple[int, ...]
    changes: int
    gain: float
    kinds: int
    is_frozen: bool

    def __str__(self) -> str:
        of = f" (of {counted(self.kinds, 'kind')}, the latest)" if self.kinds > 1 else ""
        then = f"{self.gain:.1f} dB less error expected than with the default" if self.gain else "as in the default"
        return (
            f"learnt from {counted(self.runs, 'run')}{of}{', now frozen' if self.is_frozen else ''}: computes "
            f"{' '.join(map(str, self.schedule))}; changed {counted(self.changes, 'time')}; {then}"
        )
