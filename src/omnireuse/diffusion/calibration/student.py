"""Student's t."""

from __future__ import annotations

from statistics import NormalDist

__all__ = ["student"]


def student(freedom: int) -> float:
    """The 95 % quantile of Student's t for at least two degrees of freedom, within 2 %.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    z = NormalDist().inv_cdf(0.95)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
