"""What a fitted forecast is worth: a policy with it against the same policy holding, at equal computed steps.

Expected: at least 5 dB more without guidance, and never more than 0.5 dB less with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench._choices import FITTED, HOLDS

GAIN_UNGUIDED, LOSS_GUIDED = 5.0, 0.5
GRID, RESAMPLES = 9, 400
Rows = Sequence[dict[str, Any]]


def verdicts(rows: Rows) -> list[dict[str, Any]]:
    """One entry a case, step count, guidance, policy and forecast; margins in dB, None without a common range."""
    found = []
    for group in grouped(rows, "case", "steps", "guided", "strategy"):
        curves = {line[0]["forecaster"]: line for line in grouped(group, "forecaster")}
        holds = [curves[name] for name in HOLDS if name in curves]
        for forecaster in ("polynomial", *FITTED):
            if forecaster not in curves or not holds:
                continue
            entry = {key: group[0][key] for key in ("case", "steps", "guided", "strategy")}
            entry |= {"forecaster": forecaster, "margin": margin(curves[forecaster], holds)}
            if len(holds) > 1:
                entry |= {f"over {name}": margin(curves[forecaster], [curves[name]]) for name in HOLDS}
            least = GAIN_UNGUIDED if not entry["guided"] else -LOSS_GUIDED
            entry["holds"] = None if entry["margin"] is None else entry["margin"]["lowest"] >= least
            found.append(entry)
    return found


def margin(curve: Rows, others: Sequence[Rows]) -> dict[str, float] | None:
    """By how much `curve` is above the best of `others` over the computed steps that all of them reach.

    The mean and the lowest over that range, of the mean PSNR over prompts; `low` and `high` are the 10 % and 90 %
    quantiles of the mean margin over draws of as many prompts.
    """
    spans = [sorted(row["computed"] for row in each) for each in (curve, *others)]
    start, end = max(span[0] for span in spans), min(span[-1] for span in spans)
    if start > end:
        return None
    at = np.linspace(start, end, GRID)
    ours, theirs = _at(curve, at), [_at(other, at) for other in others]

    def above(prompts: np.ndarray) -> np.ndarray:
        best = np.max([other[:, prompts].mean(1) for other in theirs], axis=0)
        return ours[:, prompts].mean(1) - best

    num = ours.shape[1]
    rng = np.random.default_rng(0)
    drawn = [above(rng.integers(num, size=num)).mean() for _ in range(RESAMPLES)]
    margins = above(np.arange(num))
    low, high = np.quantile(drawn, (0.1, 0.9))
    figures = {"mean": margins.mean(), "lowest": margins.min(), "low": low, "high": high, "from": start, "to": end}
    return {name: round(float(value), 2) for name, value in figures.items()}


def _at(curve: Rows, computed: np.ndarray) -> np.ndarray:
    """PSNR of every prompt at these computed steps, between the settings in straight lines: (computed, prompts)."""
    points = sorted(curve, key=lambda row: row["computed"])
    known = np.array([row["computed"] for row in points])
    columns = np.array([row["psnr"] for row in points]).T
    return np.stack([np.interp(computed, known, column) for column in columns], axis=1)


def grouped(rows: Rows, *keys: str) -> list[list[dict[str, Any]]]:
    """Rows that agree on `keys`, in the order of their first."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.values())
