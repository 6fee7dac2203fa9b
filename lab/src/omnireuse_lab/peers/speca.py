"""SpeCa: Taylor drafts stand in for the block stack while its last block, run on a draft, confirms them.

Source: "SpeCa: Accelerating Diffusion Transformers with Speculative Feature Caching", arXiv 2509.11628, and its public
code (https://github.com/Shenyi-Z/Cache4Diffusion, FLUX): finite differences as TaylorSeer takes them, the relative
error of the last block's output against τ₀ β^(share of the run), at most eight drafts in a row. In the paper a rejected
draft is computed in the same step; in the code its step keeps it, and the next one computes. Both are here, and both
check every draft (the code checks from the third of a row on). Ours: relative L2 errors, as in the paper, while the
code has the mean of elementwise ratios; the residuals of the stack up to its last block and behind it as features,
while the code drafts each attention and feed-forward; the last step is computed. A prompt runs alone, as one decision
serves a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from omnireuse.forecasters.base import combine
from omnireuse.hooks.regions.stack import Arguments, Block
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, call_text
from omnireuse_lab.peers.stack_cache import Run, StackCache, stack_caches

__all__ = ["SPECA", "Draft", "Speculation"]

MOST = 8
DECAY = 0.3


@dataclass
class Draft:
    """A Taylor series whose derivatives are finite differences over the last gap.

    Attributes:
        differences: of order 0, 1, …; empty before the first value.
    """

    differences: list[torch.Tensor] = field(default_factory=list)

    def observe(self, value: torch.Tensor, gap: int, order: int) -> None:
        """Take in a computed value, `gap` ≥ 1 steps behind the last one, and keep differences up to this order."""
        found = [value]
        for older in self.differences[:order]:
            found.append((found[-1] - older) / gap)
        self.differences = found

    def after(self, steps: int) -> torch.Tensor:
        """The value so many steps behind the last computed one."""
        return combine([steps**i / math.factorial(i) for i in range(len(self.differences))], self.differences)


@dataclass
class _DraftedBranch:
    """What one branch of guidance remembers: the last computed step, whether the last draft was rejected, and for each
    stream the residual up to the last block and that behind it."""

    computed: int = -1
    rejected: bool = False
    up_to_last: list[Draft] = field(default_factory=list)
    behind: list[Draft] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Speculation(StackCache[_DraftedBranch]):
    """The method on one denoiser.

    Args:
        threshold: τ₀, ≥ 0: the relative error above which a draft would be rejected at the first step.
        order: of the Taylor series, ≥ 0.
        warmup: first steps that are computed, ≥ 1.
        redo: compute a rejected draft in the same step, and not the next step.
    """

    threshold: float
    order: int
    warmup: int
    redo: bool

    def begin(self) -> _DraftedBranch:
        return _DraftedBranch()

    def call(self, run: Run) -> Any:
        branch, since = self.branch, self.step - self.branch.computed
        self.skips = self.warmup <= self.step < self.steps - 1 and since <= MOST and not branch.rejected
        result = run()
        # An error that is not a number rejects, too.
        branch.rejected = self.skips and not self._error <= self.threshold * DECAY ** (self.step / self.steps)
        if branch.rejected and self.redo:
            self.skips = branch.rejected = False
            result = run()
        return result

    def last(self, block: Block, run: Run, arguments: Arguments) -> Any:
        """The streams behind the stack: computed and remembered, or drafted and checked."""
        branch, entry = self.branch, self.entry
        ahead = self.step - branch.computed
        if self.skips:
            handed, drafted = (
                [before + draft.after(ahead) for before, draft in zip(entry, drafts, strict=True)]
                for drafts in (branch.up_to_last, branch.behind)
            )
            streams = [torch.cat(handed, dim=1)] if block.is_joined else handed
            checked = run.func(**{**arguments, **dict(zip(block.streams, streams, strict=True))})
            self._error = _relative(drafted[self.main], self.left(block, checked)[self.main])
            return block.returned(drafted)
        entering = block.entering(arguments)
        up_to_last = self.left(block, entering[0]) if block.is_joined else entering
        residuals = [after - before for after, before in zip(up_to_last, entry, strict=True)]
        result = run()
        branch.up_to_last = branch.up_to_last or [Draft() for _ in entry]
        branch.behind = branch.behind or [Draft() for _ in entry]
        for draft, residual in zip(branch.up_to_last, residuals, strict=True):
            draft.observe(residual, ahead, self.order)
        for draft, before, after in zip(branch.behind, entry, self.left(block, result), strict=True):
            draft.observe(after - before, ahead, self.order)
        branch.computed = self.step
        return result


def _relative(drafted: torch.Tensor, true: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(drafted - true) / torch.linalg.vector_norm(true))


def _grid(subject: Subject) -> Iterator[Setting]:
    # Of the public code: order 2 behind three steps. Beside it order 1 behind six, where TaylorSeer begins here.
    for order, warmup in ((2, 3), (1, 6)):
        for redo in (True, False):
            for threshold in (0.05, 0.1, 0.2, 0.5):
                settings = {"threshold": threshold, "order": order, "warmup": warmup, "redo": redo}
                options = {**settings, "steps": subject.workload.steps, "count": subject.calls_per_step}
                enable = partial(stack_caches, kind=Speculation, **options)
                yield Setting(settings=settings, call=call_text("SpeCa", **settings), enable=enable)


SPECA = Method(key="speca", name="SpeCa", family="peer", grid=_grid)
