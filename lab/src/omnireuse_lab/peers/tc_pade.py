"""TC-Padé: a rational function of the stack's last two residuals stands in for the next one, by stages of the run.

Source: "TC-Padé: Trajectory-Consistent Padé Approximation for Diffusion Acceleration", arXiv 2603.02943, and its public
code (https://github.com/Alibaba-VELLDEPTH/TC_Pade, FLUX), which has the constants. The coefficients are set and not
solved: with s = exp(−5 |last − before| / magnitude) of each element, the quotient is (2s · last − s · before) over
(1 − 0.1 s), held near the mean of both. What stands still comes out a tenth larger. Behind a warm-up a step is computed
once in an interval, and where the path of the residuals, forecast ones among them, bends too much. Ours: stages by
the share of the run, while the code counts 20 steps; every stream of the stack; no way out for values that are not
finite. A prompt runs alone, as one decision serves a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from omnireuse.hooks.regions.stack import Arguments, Block
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, call_text
from omnireuse_lab.peers.stack_cache import Run, StackCache, stack_caches

__all__ = ["TC_PADE", "PadeResiduals", "bend", "pade", "staged"]

WARMUP = 5
"""First steps that are computed. The path is not known to bend before five residuals."""
EARLY, LATE = 0.3, 0.8
FOLLOWS = 0.2
"""Share of the change of the stack's input that is added to what leaves it."""


def pade(before: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The next residual, from the last two."""
    change, magnitude = (last - before).abs(), (last.abs() + before.abs()) / 2
    steady = (-5.0 * change / (magnitude + 1e-7)).exp()
    mean = 0.6 * last + 0.4 * before
    most = torch.maximum(0.5 * change, 0.1 * magnitude)
    away = (steady * (2 * last - before) / (1 - 0.1 * steady) - mean).clamp(-most, most)
    return mean + (0.7 * steady + 0.3) * away


def staged(before: torch.Tensor, last: torch.Tensor, share: float) -> torch.Tensor:
    """The next residual, by stages.

    Args:
        share: of the run that is behind, 0…1.
    """
    if share <= EARLY:
        return 0.9 * last + 0.1 * before
    forecast = pade(before, last)
    return forecast + 0.3 * (last - before) if share > LATE else forecast


def bend(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> float:
    """How much a path turns at its second point: 0 straight on, 1 back."""
    before, after = ((b - a) / (torch.linalg.vector_norm(b - a) + 1e-12) for a, b in ((first, second), (second, third)))
    return 0.5 * float(torch.linalg.vector_norm(before - after))


@dataclass
class _PadeBranch:
    """What one branch of guidance remembers: the last step's input of the stack, and residuals of the last steps."""

    before: list[torch.Tensor] = field(default_factory=list)
    residuals: list[list[torch.Tensor]] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class PadeResiduals(StackCache[_PadeBranch]):
    """The method on one denoiser.

    Args:
        interval: steps whose number it divides compute, ≥ 1.
        threshold: bend from which a step is computed; above 1 none does for that reason.
    """

    interval: int
    threshold: float

    def begin(self) -> _PadeBranch:
        return _PadeBranch()

    def call(self, run: Run) -> Any:
        may_skip = WARMUP <= self.step < self.steps - 1 and self.step % self.interval != 0
        self.skips = may_skip and bend(*(each[self.main] for each in self.branch.residuals)) < self.threshold
        return run()

    def last(self, block: Block, run: Run, arguments: Arguments) -> Any:
        """The streams behind the stack, computed or forecast; both are remembered."""
        branch, entry = self.branch, self.entry
        if self.skips:
            share = self.step / self.steps
            forecast = [staged(a, b, share) for a, b in zip(*branch.residuals[-2:], strict=True)]
            moved = [FOLLOWS * (now - then) for now, then in zip(entry, branch.before, strict=True)]
            residual = [a + b for a, b in zip(forecast, moved, strict=True)]
            result = block.returned([a + b for a, b in zip(entry, residual, strict=True)])
        else:
            result = run()
            residual = [after - before for after, before in zip(self.left(block, result), entry, strict=True)]
        branch.before, branch.residuals = entry, [*branch.residuals[-2:], residual]
        return result


def _grid(subject: Subject) -> Iterator[Setting]:
    for interval in (2, 3, 4, 6, 8):
        for threshold in (1.4, 0.7):
            settings = {"interval": interval, "threshold": threshold}
            options = {**settings, "steps": subject.workload.steps, "count": subject.calls_per_step}
            enable = partial(stack_caches, kind=PadeResiduals, **options)
            yield Setting(settings=settings, call=call_text("TC-Padé", **settings), enable=enable)


TC_PADE = Method(key="tc-pade", name="TC-Padé", family="peer", grid=_grid)
