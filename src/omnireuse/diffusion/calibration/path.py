"""The path of a full run: its latents, and how alike its outputs are. Fits and plans need no more of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse.diffusion.calibration.branches import Shares, branch_outputs
from omnireuse.diffusion.calibration.solver import Arithmetic, arguments_by_name, next_latents
from omnireuse.diffusion.reuse.runtime.interception import intercept
from omnireuse.errors import UnsupportedModelError

__all__ = ["OutputProducts", "Path", "recorded_path"]

logger = logging.getLogger("omnireuse")

CHUNK = 1 << 20
"""Elements of a latent that are in float64 at a time."""


@dataclass(frozen=True, kw_only=True)
class OutputProducts:
    """How alike the outputs of full runs are.

    Attributes:
        products: (samples, branches, steps, branches, steps) inner products of what each branch of guidance adds to
            what the scheduler gets, as a share of the squared norm of the final latents.
        effects: (steps,) how far an output of 1 at each step moves the final latents by the scheduler's arithmetic
            alone, with all other outputs unchanged.
    """

    products: NDArray[np.float64]
    effects: NDArray[np.float64]

    @classmethod
    def joined(cls, runs: Sequence[OutputProducts]) -> OutputProducts:
        """The samples of all runs together, at least one. Branches that one run cannot tell apart are added up."""
        products = [run.products for run in runs]
        if len({each.shape[1] for each in products}) > 1:
            products = [each.sum((1, 3), keepdims=True) for each in products]
        return cls(products=np.concatenate(products), effects=runs[0].effects)


@dataclass
class Path:
    """The path of a full run.

    Attributes:
        latents: before the first step, then after each step; empty where no weights can be fitted for the scheduler.
        shares: of each branch of guidance in what the scheduler gets; (1.0,) where they cannot be told apart.
        calls: for each of the first steps, what the denoisers returned, in the order of the calls.
    """

    latents: list[torch.Tensor] = field(default_factory=list)
    shares: tuple[float, ...] = (1.0,)
    calls: list[list[Any]] = field(default_factory=list)
    _outputs: list[list[torch.Tensor]] = field(default_factory=list)
    _effects: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def keep(
        self,
        shares: Shares,
        outputs: Sequence[torch.Tensor],
        by_branch: Sequence[list[torch.Tensor] | None],
        effects: NDArray[np.float64],
    ) -> None:
        """Note the outputs of all steps, for `take_products`.

        Args:
            shares: has seen every step.
            outputs: what the scheduler got at each step.
            by_branch: the outputs of its branches; None where they are not known.
            effects: as in `OutputProducts`.
        """
        self.shares, self._effects = shares.found(), effects
        apart = [made for made in by_branch if made is not None] if len(self.shares) > 1 else []
        self._outputs = apart or [[output] for output in outputs]

    def take_products(self) -> OutputProducts | None:
        """The inner products of the outputs, which are dropped; None where no weights can be fitted."""
        outputs, self._outputs = self._outputs, []
        if not self.latents:
            return None
        # (samples, branches, steps, elements); float64 by parts: neighbours differ in the last digits.
        parts = torch.stack([torch.stack([each.flatten(1) for each in made], 1) for made in outputs], 2)
        samples, branches, count, _ = parts.shape
        products = torch.zeros(samples, branches * count, branches * count, dtype=torch.float64)
        for chunk in parts.flatten(1, 2).split(CHUNK, dim=2):
            values = chunk.double()
            products += values @ values.transpose(1, 2)
        shares = torch.tensor(self.shares, dtype=torch.float64)
        products = products.view(samples, branches, count, branches, count) * shares[:, None, None, None]
        products = products * shares[:, None]
        size = self.latents[-1].cpu().double().flatten(1).square().sum(1).clamp_min(1e-12)
        return OutputProducts(products=(products / size[:, None, None, None, None]).numpy(), effects=self._effects)


@contextmanager
def recorded_path(pipeline: Any, *, calls_of: int = 0) -> Iterator[Path]:
    """Record the path of the one run that is made meanwhile.

    Args:
        calls_of: number of first steps whose calls are kept.
    """
    path, shares, scheduler = Path(), Shares(), pipeline.scheduler
    handed: list[torch.Tensor] = []
    by_branch: list[list[torch.Tensor] | None] = []
    factors: list[float] = []
    carried: list[float] = []
    can_be_fitted = True

    def stepped(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal can_be_fitted
        given = arguments_by_name(args, kwargs)
        output = given["model_output"]
        path.calls += [outputs.results()] if len(path.calls) < calls_of else []
        made = outputs.take(output)
        if can_be_fitted:
            shares.see(made, output)
            if not path.latents:
                path.latents.append(given["sample"].clone())
            try:
                arithmetic = Arithmetic.of(scheduler, given)
                factors.append(arithmetic.factor)
                carried.append(arithmetic.carried)
            except UnsupportedModelError as error:
                logger.warning("%s", error)
                can_be_fitted = False
                path.latents.clear()
            handed.append(output.float().cpu().clone())
            by_branch.append(None if made is None else [each.float().cpu() for each in made])
        result = proceed(*args, **kwargs)
        if can_be_fitted:
            path.latents.append(next_latents(result).clone())
        return result

    with branch_outputs(pipeline) as outputs:
        interception = intercept(scheduler, path, {"step": stepped})
        try:
            yield path
        finally:
            interception.undo()
    if can_be_fitted:
        later = np.cumprod([1.0, *reversed(carried[1:])])[::-1]
        path.keep(shares, handed, by_branch, np.array(factors) * later)
