"""DiCache: the first block always runs; its output decides, and places the skipped rest between the last two.

Source: "DiCache: Let Diffusion Model Determine Its Own Cache", arXiv 2508.17356, and its public code
(https://github.com/Bujiazi/DiCache, FLUX): the relative L1 change of the probe's output from step to step, added up
against a threshold; the residual r₋₂ + γ (r₋₁ − r₋₂) of the whole stack, with γ the same ratio of the probe's
residuals, in 1…1.5; the first share of the steps and the last compute. A prompt runs alone, as one decision serves a
batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from omnireuse.hooks.regions.stack import Arguments, Block
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, call_text
from omnireuse_lab.peers.stack_cache import Run, StackCache, stack_caches

__all__ = ["DI_CACHE"]


@dataclass
class _ProbedBranch:
    """What one branch of guidance remembers."""

    change: float = 0.0
    before: torch.Tensor | None = None
    probed: torch.Tensor | None = None
    residuals: list[list[torch.Tensor]] = field(default_factory=list)
    probe_residuals: list[torch.Tensor] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class _Probe(StackCache[_ProbedBranch]):
    """The method on one denoiser.

    Args:
        threshold: added-up change at which a call computes, above 0.
        retained: share of the steps that are computed first.
        less_input: subtract the change of the probe's input from that of its output.
    """

    threshold: float
    retained: float
    less_input: bool

    def begin(self) -> _ProbedBranch:
        return _ProbedBranch()

    def first(self, block: Block, run: Run, arguments: Arguments) -> torch.Tensor:
        result: torch.Tensor = run()
        self._probed = self.left(block, result)[self.main].clone()
        self.skips = self._decides(self.entry[self.main], self._probed)
        return result

    def _decides(self, entry: torch.Tensor, probed: torch.Tensor) -> bool:
        """Whether the rest is skipped."""
        branch = self.branch
        skips = False
        if branch.probed is None or branch.before is None or not branch.residuals:
            branch.change = 0.0
        elif int(self.retained * self.steps) < self.step < self.steps - 1:
            change = _relative(probed, branch.probed)
            if self.less_input:
                change = abs(change - _relative(entry, branch.before))
            branch.change += change
            skips = branch.change < self.threshold
        if not skips:
            branch.change = 0.0
        branch.before, branch.probed = entry, probed
        return skips

    def last(self, block: Block, run: Run, arguments: Arguments) -> object:
        branch, entry = self.branch, self.entry
        if self.skips:
            return block.returned([a + b for a, b in zip(entry, self._aligned(branch), strict=True)])
        result = run()
        residual = [after - before for after, before in zip(self.left(block, result), entry, strict=True)]
        branch.residuals = [*branch.residuals[-1:], residual]
        branch.probe_residuals = [*branch.probe_residuals[-1:], self._probed - entry[self.main]]
        return result

    def _aligned(self, branch: _ProbedBranch) -> Sequence[torch.Tensor]:
        """The residual of the whole stack, placed by the probe."""
        if len(branch.residuals) < 2:
            return branch.residuals[-1]
        now = self._probed - self.entry[self.main]
        before, last = branch.probe_residuals
        gamma = ((now - before).abs().mean() / (last - before).abs().mean()).clip(1.0, 1.5)
        return [a + gamma * (b - a) for a, b in zip(*branch.residuals, strict=True)]


def _relative(now: torch.Tensor, before: torch.Tensor) -> float:
    return float((now - before).abs().mean() / before.abs().mean())


def _grid(subject: Subject) -> Iterator[Setting]:
    # Of the public code: a change of 0.4 behind a fifth of the steps, or the difference of changes from the start.
    for less_input, retained, thresholds in ((False, 0.2, (0.1, 0.2, 0.4, 0.8)), (True, 0.0, (0.04, 0.08, 0.16, 0.32))):
        for threshold in thresholds:
            settings = {"threshold": threshold, "retained": retained, "less_input": less_input}
            options = {**settings, "steps": subject.workload.steps, "count": subject.calls_per_step}
            enable = partial(stack_caches, kind=_Probe, **options)
            yield Setting(settings=settings, call=call_text("DiCache", **settings), enable=enable)


DI_CACHE = Method(key="di-cache", name="DiCache", family="peer", grid=_grid)
