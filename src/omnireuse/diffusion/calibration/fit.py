"""Weights for one schedule, fitted step by step on runs that follow it."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from omnireuse.diffusion.calibration.branches import Shares, branch_outputs
from omnireuse.diffusion.reuse.forecasters import combine
from omnireuse.diffusion.reuse.runtime.interception import intercept
from omnireuse.diffusion.reuse.runtime.session import previous_sample
from omnireuse.errors import UnsupportedModelError

__all__ = ["Path", "WeightFit", "recorded_path"]

logger = logging.getLogger("omnireuse")

KEPT = 4
"""Computed outputs that a weighted sum takes, and that a run therefore keeps."""
RIDGE = 1e-9
"""Share of the trace that is added to the diagonal: outputs of neighbouring steps are nearly the same."""
DIGITS = 6
"""Of a weight, so that what is written down is what was judged."""


@dataclass
class Path:
    """The path of a full run.

    Attributes:
        latents: before the first step, then after each step; empty where no weights can be fitted for the scheduler.
        shares: of each branch of guidance in what the scheduler gets; (1.0,) where they cannot be told apart.
    """

    latents: list[torch.Tensor] = field(default_factory=list)
    shares: tuple[float, ...] = (1.0,)


@contextmanager
def recorded_path(pipeline: Any) -> Iterator[Path]:
    """Record the path of the one run that is made meanwhile."""
    path, shares, scheduler = Path(), Shares(), pipeline.scheduler
    can_be_fitted = True

    def stepped(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal can_be_fitted
        given = _named(args, kwargs)
        made = outputs.take(given["model_output"])
        if can_be_fitted:
            shares.see(made, given["model_output"])
            if not path.latents:
                path.latents.append(given["sample"].clone())
            try:
                _output_to(scheduler, given, given["sample"])
            except UnsupportedModelError as error:
                logger.warning("%s", error)
                can_be_fitted = False
                path.latents.clear()
        result = proceed(*args, **kwargs)
        if can_be_fitted:
            path.latents.append(_next(result).clone())
        return result

    with branch_outputs(pipeline) as outputs:
        interception = intercept(scheduler, path, {"step": stepped})
        try:
            yield path
        finally:
            interception.undo()
    if can_be_fitted:
        path.shares = shares.found()


class WeightFit:
    """Fits weights of the last computed outputs for each reused step, and for the first computed step after a gap.

    The runs that it is fitted on follow the schedule themselves. At each step the target is the output with which the
    scheduler would arrive at the full run's latents. The weights are solved for it by least squares, and the run goes
    on with what they give, so later steps know the errors of earlier ones. Each further run adds its sums. Every sample
    counts by its relative error, as in PSNR. Branches of guidance have weights of their own where guidance sums them
    with the same shares at every step.

    Source: fitting a solver's coefficients to its own fine runs, as in "Bespoke Solvers", arXiv 2310.19075; correcting
    a past step with an output that is computed anyway, as UniPC does, arXiv 2302.04867.

    Args:
        computed: the steps that compute.
        total: steps of a run.
        kept: number of outputs of each branch in a sum.
    """

    def __init__(self, computed: Sequence[int], total: int, *, kept: int = KEPT) -> None:
        self._computed = frozenset(computed)
        self._kept = kept
        self._sums: list[list[_Sums]] = [[] for _ in range(total)]
        self._weights: list[tuple[tuple[float, ...], ...]] = [() for _ in range(total)]
        self._branches = 1

    @property
    def weights(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """For each branch and each step so far, the newest output first; empty where the computed output is used."""
        return tuple(tuple(sets[branch] if sets else () for sets in self._weights) for branch in range(self._branches))

    @contextmanager
    def led_along(self, path: Path, pipeline: Any) -> Iterator[None]:
        """Lead the one run that is made meanwhile, whose full run took `path`. Enable reuse after this.

        Raises:
            UnsupportedModelError: a scheduler whose steps do not depend on the output by one factor.
        """
        known: deque[list[torch.Tensor]] = deque(maxlen=self._kept)
        scheduler, self._branches = pipeline.scheduler, len(path.shares)
        step = 0
        after_gap = False

        def stepped(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal step, after_gap
            here, step = step, step + 1
            given = _named(args, kwargs)
            output = given["model_output"]
            made = outputs.take(output)
            if here in self._computed:
                known.appendleft(_parts(made, path.shares, output))
            if here not in self._computed or after_gap:
                target = _output_to(scheduler, given, path.latents[here + 1])
                by_branch = list(zip(*known, strict=True))
                self._sums[here] += _sums(by_branch, target)
                self._weights[here] = _solve(self._sums[here], len(by_branch))
                given["model_output"] = torch.stack(
                    [combine(weights, each) for weights, each in zip(self._weights[here], by_branch, strict=True)]
                ).sum(0)
                after_gap = here not in self._computed
            return proceed(**given)

        with branch_outputs(pipeline) as outputs:
            interception = intercept(scheduler, self, {"step": stepped})
            try:
                yield
            finally:
                interception.undo()


def _parts(outputs: list[torch.Tensor] | None, shares: Sequence[float], handed: torch.Tensor) -> list[torch.Tensor]:
    """The part of each branch in what the scheduler gets."""
    if len(shares) == 1:
        return [handed.clone()]
    if outputs is None or len(outputs) != len(shares):
        raise UnsupportedModelError(
            f"no weights can be fitted: the full run has {len(shares)} branches a step, the run after it others"
        )
    return [output.mul_(share) for output, share in zip(outputs, shares, strict=True)]


_Sums = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""⟨basis, basis⟩ (k, k), ⟨basis, target⟩ (k,) and ⟨target, target⟩ () of one sample, float64."""


def _sums(by_branch: Sequence[Sequence[torch.Tensor]], target: torch.Tensor) -> list[_Sums]:
    basis = []
    left = target.to("cpu", torch.float64).flatten(1)
    for known in by_branch:
        # Seen from the newest output: neighbours differ in the last digits of their inner products.
        newest, *others = (value.to("cpu", torch.float64).flatten(1) for value in known)
        basis += [newest, *(other - newest for other in others)]
        left = left - newest
    values = torch.stack(basis, dim=1)
    products, towards = values @ values.transpose(1, 2), (values @ left[:, :, None])[..., 0]
    return list(zip(products, towards, left.square().sum(1), strict=True))


def _solve(sums: Sequence[_Sums], branches: int) -> tuple[tuple[float, ...], ...]:
    products, towards, sizes = (torch.stack(each) for each in zip(*sums, strict=True))
    share = torch.ones(len(sums), dtype=torch.float64)
    for _ in range(4):
        matrix = torch.einsum("n,nij->ij", share, products)
        matrix += RIDGE * matrix.trace() * torch.eye(len(matrix), dtype=torch.float64)
        found = torch.linalg.solve(matrix, torch.einsum("n,ni->i", share, towards))
        errors = sizes - 2 * towards @ found + torch.einsum("nij,i,j->n", products, found, found)
        # Each sample by its relative error, but none without bound.
        share = 1 / (errors.clamp_min(0) + 0.1 * errors.mean().clamp_min(1e-12))
    return tuple(
        tuple(round(weight, DIGITS) for weight in (1 + float(newest - sum(others)), *others))
        for newest, *others in found.view(branches, -1).tolist()
    )


def _output_to(scheduler: Any, given: Mapping[str, Any], latents: torch.Tensor) -> torch.Tensor:
    """The model output with which the scheduler's step arrives at these latents."""
    output, sample = given["model_output"].float(), given["sample"].float()

    def arrived(with_output: torch.Tensor) -> torch.Tensor:
        # On a copy, with generators that are put back: the true step is still to come.
        states = [(each, each.get_state()) for each in _generators(given.get("generator"))]
        try:
            twin = copy.deepcopy(scheduler)
            return _next(twin.step(**{**given, "model_output": with_output, "sample": sample})).float()
        finally:
            for generator, state in states:
                generator.set_state(state)

    without = arrived(torch.zeros_like(output))
    moved = arrived(torch.ones_like(output)) - without
    factor = moved.mean()
    if not factor.abs() > 0 or (moved - factor).abs().max() > 1e-3 * factor.abs():
        raise UnsupportedModelError(
            f"{type(scheduler).__name__}: no weights can be fitted, for what its steps make of the output is not one "
            "factor of it"
        )
    return (latents.float() - without) / factor


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(("model_output", "timestep", "sample"), args, strict=False)), **kwargs}


def _next(result: Any) -> torch.Tensor:
    sample = previous_sample(result)
    if sample is None:
        raise UnsupportedModelError("the scheduler's step returns no sample")
    return sample


def _generators(given: Any) -> list[torch.Generator]:
    return [given] if isinstance(given, torch.Generator) else list(given or [])
