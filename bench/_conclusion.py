"""What a fitted forecast is worth: a policy with it against the same policy holding, at equal computed steps.

Expected: at least 5 dB more without guidance, and never more than 0.5 dB less with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

GAIN_UNGUIDED, LOSS_GUIDED = 5.0, 0.5
GRID, RESAMPLES = 41, 400
MOST_COMPUTED = 0.8
"""Share of the steps beyond which a setting does not count: little is forecast there, and PSNR runs off to infinity."""
Rows = Sequence[dict[str, Any]]


def conclusions(rows: Rows) -> list[dict[str, Any]]:
    """One entry a case, step count, guidance, policy and forecast; margins in dB, None without a common range."""
    found = []
    for group in grouped(rows, "case", "steps", "guided", "strategy"):
        counted = [row for row in group if row["computed"] <= MOST_COMPUTED * row["steps"]]
        curves = {line[0]["forecaster"]: line for line in grouped(counted, "forecaster")}
        for forecaster in ("polynomial", "blend"):
            if forecaster not in curves or "hold" not in curves:
                continue
            entry = {key: group[0][key] for key in ("case", "steps", "guided", "strategy")}
            least = -LOSS_GUIDED if entry["guided"] else GAIN_UNGUIDED
            entry |= {"forecaster": forecaster, "margin": margin(curves[forecaster], curves["hold"], least)}
            entry["holds"] = None if entry["margin"] is None else entry["margin"]["lowest"] >= least
            found.append(entry)
    return found


def margin(curve: Rows, other: Rows, least: float) -> dict[str, float | None] | None:
    """By how much `curve` is above `other` over the computed steps that both reach.

    The mean and the lowest over that range, of the mean PSNR over prompts; `low` and `high` are the 10 % and 90 %
    quantiles of the mean margin over draws of as many prompts. From `least_from` on it is nowhere below `least`; None
    where it is below at the end.
    """
    spans = [sorted(row["computed"] for row in each) for each in (curve, other)]
    start, end = max(span[0] for span in spans), min(span[-1] for span in spans)
    if start > end:
        return None
    at = np.linspace(start, end, GRID)
    margins = _at(curve, at) - _at(other, at)
    num = margins.shape[1]
    rng = np.random.default_rng(0)
    drawn = [margins[:, rng.integers(num, size=num)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, (0.1, 0.9))
    by_count = margins.mean(1)
    figures = {"mean": by_count.mean(), "lowest": by_count.min(), "low": low, "high": high, "from": start, "to": end}
    behind = int(np.flatnonzero(np.append(True, by_count < least))[-1])  # first count from which on none is below
    figures["least_from"] = at[behind] if behind < GRID else None
    return {name: None if value is None else round(float(value), 2) for name, value in figures.items()}


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
