"""The measurements of a profile, from what was seen of full runs."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from omnireuse.diffusion.calibration.distances import Distances
from omnireuse.diffusion.calibration.measurements import Measurements, Steps, TeaCacheFit
from omnireuse.diffusion.calibration.observer import Observations, Series
from omnireuse.diffusion.calibration.tea_cache import FEWEST_PAIRS, fit_polynomial, share_explained
from omnireuse.diffusion.reuse.forecasters.base import lagrange_weights

__all__ = ["forecast_errors", "measured"]

logger = logging.getLogger("omnireuse")

ORDERS = range(4)
GAPS = range(1, 9)
SIGNALS = ("latents", "filtered_latents", "remembered", "modulated_input", "first_residual")


def measured(searched: Sequence[Observations], held_out: Sequence[Observations], distances: Distances) -> Measurements:
    """Means over all runs, and fits to the runs for the search, evaluated on the others.

    Args:
        searched, held_out: at least one of each.
        distances: of the runs for the search.
    """
    runs = [run for seen in (*searched, *held_out) for run in seen.runs]
    unmeasured = dict(searched[0].unmeasured)
    steps = len(distances.coordinates)
    changes = {name: _mean(_of(runs, name), steps) for name in SIGNALS}
    changes["expected_output"] = _mean((_expected(run) for run in runs), steps)
    tea_cache = mag_ratios = None
    if "blocks" not in unmeasured:
        tea_cache = _tea_cache(_pairs(searched), _pairs(held_out), unmeasured)
        mag_ratios = _mag_ratios(runs, steps, unmeasured)
    return Measurements(
        quantity=searched[0].quantity or "",
        changes={name: series for name, series in changes.items() if any(series)},
        forecast_errors=forecast_errors(distances),
        tea_cache=tea_cache,
        mag_ratios=mag_ratios,
        unmeasured=unmeasured,
    )


def forecast_errors(distances: Distances) -> dict[int, dict[int, Steps]]:
    """The mean error of the forecast for each step, by order and by gap, from values `gap` steps apart.

    The weights w of a polynomial's nodes add up to 1, so the squared error is −½ cᵀ D c, with c = (w, −1) and D the
    squared distances between the nodes and the true value.
    """
    return {order: {gap: _errors(distances, order, gap) for gap in GAPS} for order in ORDERS}


def _errors(distances: Distances, order: int, gap: int) -> Steps:
    coordinates = distances.coordinates.tolist()
    errors: list[float | None] = []
    for step in range(len(coordinates)):
        nodes = [step - gap * back for back in range(order + 1, 0, -1)]
        if nodes[0] < 0:
            errors.append(None)
            continue
        weights = lagrange_weights(
            [float(distances.coordinates[node]) for node in nodes], float(distances.coordinates[step])
        )
        share: NDArray[np.float64] = np.array([*weights, -1.0])
        among = distances.squared[:, [*nodes, step]][:, :, [*nodes, step]]
        squared = -0.5 * np.einsum("i,nij,j->n", share, among, share)
        errors.append(_short(float(np.sqrt(np.clip(squared, 0.0, None)).mean()), 3))
    return tuple(errors)


def _short(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _of(runs: Iterable[Series], name: str) -> Iterator[dict[int, float]]:
    return (series for run in runs for (each, _), series in run.items() if each == name)


def _mean(series: Iterable[dict[int, float]], steps: int, digits: int = 4) -> Steps:
    known = list(series)
    found = ([each[step] for each in known if step in each] for step in range(steps))
    return tuple(_short(statistics.fmean(values), digits) if values else None for values in found)


def _expected(run: Series) -> dict[int, float]:
    """EasyCache's expectation: the change of the latents, times the last ratio of the two changes."""
    moved, changed = run.get(("latents", "step"), {}), run.get(("remembered", "step"), {})
    return {
        step: change * changed[step - 1] / moved[step - 1]
        for step, change in moved.items()
        if step - 1 in changed and moved.get(step - 1)
    }


def _pairs(seen: Sequence[Observations]) -> list[tuple[float, float]]:
    """Changes of the modulated input and of what the blocks add, at each step of each run and branch."""
    pairs = []
    for run in (run for each in seen for run in each.runs):
        for (name, branch), drifts in run.items():
            if name == "modulated_input":
                added = run.get(("residual", branch), {})
                pairs += [(drift, added[step]) for step, drift in drifts.items() if step in added]
    return pairs


def _tea_cache(
    searched: list[tuple[float, float]], held_out: list[tuple[float, float]], unmeasured: dict[str, str]
) -> TeaCacheFit | None:
    if len(searched) < FEWEST_PAIRS:
        unmeasured["tea_cache"] = f"{len(searched)} steps were seen, and {FEWEST_PAIRS} are needed to fit it"
        logger.info("tea_cache is not fitted: %s", unmeasured["tea_cache"])
        return None
    coefficients = fit_polynomial(searched)
    r2, r2_held_out = share_explained(coefficients, searched), share_explained(coefficients, held_out)
    return TeaCacheFit(
        coefficients=coefficients,
        pairs=len(searched),
        r2=None if r2 is None else _short(r2, 4),
        r2_held_out=None if r2_held_out is None else _short(r2_held_out, 4),
    )


def _mag_ratios(runs: Sequence[Series], steps: int, unmeasured: dict[str, str]) -> tuple[tuple[float, ...], ...] | None:
    branches = dict.fromkeys(branch for run in runs for name, branch in run if name == "magnitude")
    found = []
    for branch in branches:
        ratios = _mean((run.get(("magnitude", branch), {}) for run in runs), steps, digits=5)[1:]
        whole = tuple(ratio for ratio in ratios if ratio is not None)
        if len(whole) < steps - 1:
            unmeasured["mag_cache"] = f"branch {branch} was not called at every step"
            logger.info("mag_cache is not measured: %s", unmeasured["mag_cache"])
            return None
        found.append((1.0, *whole))
    return tuple(found)
