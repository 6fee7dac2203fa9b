"""TeaCache's polynomial, fitted to a model's own steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from omnireuse.errors import ConfigError
from omnireuse.loop.events import Decision

__all__ = ["FEWEST_PAIRS", "fit_polynomial", "fit_tea_cache", "share_explained"]

DEGREE = 4
FEWEST_PAIRS = 2 * (DEGREE + 1)


def fit_tea_cache(events: Iterable[Decision]) -> tuple[float, ...]:
    """Coefficients from signal change to output change, highest power first.

    The events are those of full runs with `policy="never", region="blocks", signal="modulated_input"` and the
    forecaster "hold". There `drift` is the change of the signal, and `error` the change of the stack's residual, over
    the same step.

    Source: arXiv 2411.19108, section 3.3 (a least-squares polynomial of degree 4).

    Raises:
        ConfigError: fewer than ten steps with both figures.
    """
    pairs = [(e.drift, e.error) for e in events if e.drift is not None and e.error is not None]
    if len(pairs) < FEWEST_PAIRS:
        raise ConfigError(
            f"fit_tea_cache needs at least {FEWEST_PAIRS} steps with drift and error, got {len(pairs)}; "
            "run a whole generation with Strategy(policy=Never(), region='blocks', signal='modulated_input', "
            "measure_errors=True)"
        )
    return fit_polynomial(pairs)


def fit_polynomial(pairs: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """The least-squares polynomial from signal change to output change, highest power first."""
    drifts, changes = np.array(pairs).T
    # Fitted in units of the largest drift, for conditioning, and scaled back.
    unit = max(float(drifts.max()), 1e-12)
    fitted = np.polyfit(drifts / unit, changes, DEGREE)
    return tuple(float(c / unit**power) for c, power in zip(fitted, range(DEGREE, -1, -1), strict=True))


def share_explained(coefficients: Sequence[float], pairs: Sequence[tuple[float, float]]) -> float | None:
    """R² of a polynomial on such pairs; None without pairs, or where the output does not vary."""
    if not pairs:
        return None
    drifts, changes = np.array(pairs).T
    spread = float(np.square(changes - changes.mean()).sum())
    return 1 - float(np.square(changes - np.polyval(coefficients, drifts)).sum()) / spread if spread else None
