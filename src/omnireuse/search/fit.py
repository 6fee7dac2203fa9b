"""Weights for one schedule, fitted step by step on runs that follow it."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from omnireuse.diffusion.reuse.forecasters import combine
from omnireuse.diffusion.reuse.runtime.interception import intercept
from omnireuse.diffusion.reuse.runtime.session import previous_sample
from omnireuse.errors import UnsupportedModelError

__all__ = ["WeightFit", "recorded_path"]

logger = logging.getLogger("omnireuse")

KEPT = 4
"""Computed outputs that a weighted sum takes, and that a run therefore keeps."""
RIDGE = 1e-9
"""Share of the trace that is added to the diagonal: outputs of neighbouring steps are nearly the same."""
DIGITS = 6
"""Of a weight, so that what is written down is what was judged."""

Path = list[torch.Tensor]
"""The latents that a full run goes through: what its first step starts from, then what each step arrives at."""


@contextmanager
def recorded_path(scheduler: Any) -> Iterator[Path]:
    """Note the latents of the one run that is made meanwhile; none of them where the scheduler cannot be fitted."""
    path: Path = []
    can_be_fitted = True

    def stepped(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal can_be_fitted
        given = _named(args, kwargs)
        if can_be_fitted:
            if not path:
                path.append(given["sample"].clone())
            try:
                _output_to(scheduler, given, given["sample"])
            except UnsupportedModelError as error:
                logger.warning("%s", error)
                can_be_fitted = False
                path.clear()
        result = proceed(*args, **kwargs)
        if can_be_fitted:
            path.append(_next(result).clone())
        return result

    interception = intercept(scheduler, path, {"step": stepped})
    try:
        yield path
    finally:
        interception.undo()


class WeightFit:
    """For each step that follows a gap, or lies in one, the weights of the last computed outputs that lead the run back
    to where the full run was.

    The runs that it is fitted on follow the schedule themselves: at each step the output is found that would make the
    scheduler arrive at the full run's latents, the weights are solved for it by least squares, and the run goes on
    with what they give. So they know the errors that earlier steps have left, and the first computed step after a gap
    makes good what the forecasts in it got wrong. Prompts may come in any number of runs; each adds its own sums, and
    steps of a later run are led by the weights of all runs so far. Every sample counts by its relative error, as in
    PSNR, not by its square.

    Source: fitting a solver's coefficients to its own fine runs, as in "Bespoke Solvers", arXiv 2310.19075; correcting
    a past step with an output that is computed anyway, as UniPC does, arXiv 2302.04867.

    Args:
        computed: the steps that compute.
        total: steps of a run.
        kept: outputs that a sum takes.
    """

    def __init__(self, computed: Sequence[int], total: int, *, kept: int = KEPT) -> None:
        self._computed = frozenset(computed)
        self._kept = kept
        self._sums: list[list[_Sums]] = [[] for _ in range(total)]
        self.weights: list[tuple[float, ...]] = [() for _ in range(total)]
        """Of each step so far, the newest output first; empty where the computed output is handed on as it is."""

    @contextmanager
    def led_along(self, path: Path, scheduler: Any) -> Iterator[None]:
        """Lead the one run that is made meanwhile, whose full run went along `path`.

        Reuse must be enabled after this, so that the outputs seen here are what it hands on.

        Raises:
            UnsupportedModelError: a scheduler whose steps do not depend on the output by one factor.
        """
        known: deque[torch.Tensor] = deque(maxlen=self._kept)
        step = 0
        led_astray = False

        def stepped(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal step, led_astray
            here, step = step, step + 1
            given = _named(args, kwargs)
            output = given["model_output"]
            if here in self._computed:
                known.appendleft(output.clone())
            if here not in self._computed or led_astray:
                aim = _output_to(scheduler, given, path[here + 1])
                self._sums[here] += _sums(known, aim)
                self.weights[here] = _solve(self._sums[here])
                given["model_output"] = combine(self.weights[here], list(known))
                led_astray = here not in self._computed
            return proceed(**given)

        interception = intercept(scheduler, self, {"step": stepped})
        try:
            yield
        finally:
            interception.undo()


_Sums = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""⟨basis, basis⟩ (k, k), ⟨basis, aim⟩ (k,) and ⟨aim, aim⟩ () of one sample, float64."""


def _sums(known: Sequence[torch.Tensor], aim: torch.Tensor) -> list[_Sums]:
    # Seen from the newest output: neighbours differ in the last digits of their inner products.
    values = torch.stack([value.to("cpu", torch.float64).flatten(1) for value in known], dim=1)
    newest = values[:, :1]
    basis = torch.cat([newest, values[:, 1:] - newest], dim=1)
    left = aim.to("cpu", torch.float64).flatten(1)[:, :, None] - newest.transpose(1, 2)
    products, towards = basis @ basis.transpose(1, 2), (basis @ left)[..., 0]
    return list(zip(products, towards, left.square().sum((1, 2)), strict=True))


def _solve(sums: Sequence[_Sums]) -> tuple[float, ...]:
    products, towards, sizes = (torch.stack(each) for each in zip(*sums, strict=True))
    share = torch.ones(len(sums), dtype=torch.float64)
    for _ in range(4):
        matrix = torch.einsum("n,nij->ij", share, products)
        matrix += RIDGE * matrix.trace() * torch.eye(len(matrix), dtype=torch.float64)
        found = torch.linalg.solve(matrix, torch.einsum("n,ni->i", share, towards))
        errors = sizes - 2 * towards @ found + torch.einsum("nij,i,j->n", products, found, found)
        # Each sample by its relative error, but none without bound.
        share = 1 / (errors.clamp_min(0) + 0.1 * errors.mean().clamp_min(1e-12))
    weights = torch.cat([1 + found[:1] - found[1:].sum(), found[1:]])
    return tuple(round(weight, DIGITS) for weight in weights.tolist())


def _output_to(scheduler: Any, given: Mapping[str, Any], wanted: torch.Tensor) -> torch.Tensor:
    """The model output with which the scheduler's step arrives at `wanted`."""
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
    return (wanted.float() - without) / factor


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(("model_output", "timestep", "sample"), args, strict=False)), **kwargs}


def _next(result: Any) -> torch.Tensor:
    sample = previous_sample(result)
    if sample is None:
        raise UnsupportedModelError("the scheduler's step returns no sample")
    return sample


def _generators(given: Any) -> list[torch.Generator]:
    return [given] if isinstance(given, torch.Generator) else list(given or [])
