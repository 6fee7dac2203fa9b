"""What the full runs of a calibration show for TeaCache and MagCache."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence

from omnireuse.calibration.runner import RunInFull
from omnireuse.named.measuring import FEWEST_PAIRS, fit_polynomial, share_explained
from omnireuse.profiles.measurements import Measurements, TeaCacheFit

__all__ = ["measured"]

logger = logging.getLogger("omnireuse")


def measured(searched: Sequence[RunInFull], held_out: Sequence[RunInFull], blocks_unseen: str) -> Measurements:
    """Means over all runs, and fits to the runs for the search, judged on the others; at least one of each.

    Args:
        blocks_unseen: as `PipelineRunner.blocks_unseen`.
    """
    runs = [*searched, *held_out]
    unmeasured = {"blocks": blocks_unseen} if blocks_unseen else {}
    tea_cache = mag_ratios = None
    if not blocks_unseen:
        changes, judged = ([pair for run in those for pair in run.changes] for those in (searched, held_out))
        if len(changes) < FEWEST_PAIRS:
            unmeasured["tea_cache"] = f"{len(changes)} steps were seen, and {FEWEST_PAIRS} are needed to fit it"
        else:
            coefficients = fit_polynomial(changes)
            r2, r2_held_out = (share_explained(coefficients, pairs) for pairs in (changes, judged))
            tea_cache = TeaCacheFit(
                coefficients=coefficients,
                pairs=len(changes),
                r2=None if r2 is None else _short(r2, 4),
                r2_held_out=None if r2_held_out is None else _short(r2_held_out, 4),
            )
        ratios = [run.ratios for run in runs if run.ratios is not None]
        if len(ratios) < len(runs):
            unmeasured["mag_cache"] = "a branch was not called at every step"
        else:
            branches = zip(*ratios, strict=True)
            mag_ratios = tuple(
                tuple(_short(statistics.fmean(step), 5) for step in zip(*each, strict=True)) for each in branches
            )
        for name, why in unmeasured.items():
            logger.info("%s is not measured: %s", name, why)
    return Measurements(tea_cache=tea_cache, mag_ratios=mag_ratios, unmeasured=unmeasured)


def _short(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
