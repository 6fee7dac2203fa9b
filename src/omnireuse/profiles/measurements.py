"""What full runs of a pipeline have shown of it, beside the schedules that were searched."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from omnireuse.base.records import Record
from omnireuse.calibration.tea_cache import FEWEST_PAIRS, fit_polynomial, share_explained
from omnireuse.errors import ConfigError

if TYPE_CHECKING:
    from omnireuse.calibration.observer import Seen

__all__ = ["Measurements", "TeaCacheFit"]

logger = logging.getLogger("omnireuse")


class TeaCacheFit(Record, frozen=True, kw_only=True):
    """TeaCache's polynomial from the change of the modulated input to the change of what the blocks add.

    Attributes:
        coefficients: highest power first.
        pairs: number of steps that it was fitted to.
        r2: share of the variance that it explains on them.
        r2_held_out: the same on the steps of held-out prompts; below 0 it is worse there than a constant.
    """

    coefficients: tuple[float, ...]
    pairs: int
    r2: float | None
    r2_held_out: float | None


class Measurements(Record, frozen=True, kw_only=True):
    """Means over the full runs of a search.

    Attributes:
        prediction_target: what forecasts are of: "x0" after guidance, or "output".
        tea_cache: None where it could not be fitted.
        mag_ratios: MagCache's ratios for each branch and step, the first 1.0; None where they could not be measured.
        unmeasured: what the model does not show, and why.
    """

    prediction_target: str = msgspec.field(name="quantity")
    tea_cache: TeaCacheFit | None
    mag_ratios: tuple[tuple[float, ...], ...] | None
    unmeasured: Mapping[str, str]

    @classmethod
    def of(cls, searched: Sequence[Seen], held_out: Sequence[Seen]) -> Measurements:
        """Means over all runs, and fits to the runs for the search, evaluated on the others; at least one of each."""
        runs = [*searched, *held_out]
        unmeasured = {name: why for run in reversed(runs) for name, why in run.unmeasured.items()}
        tea_cache = mag_ratios = None
        if "blocks" not in unmeasured:
            pairs, judged = ([pair for run in those for pair in run.pairs] for those in (searched, held_out))
            tea_cache = _tea_cache(pairs, judged, unmeasured)
            if "mag_cache" not in unmeasured:
                branches = zip(*(run.ratios for run in runs), strict=True)
                mag_ratios = tuple(
                    tuple(_short(statistics.fmean(step), 5) for step in zip(*each, strict=True)) for each in branches
                )
        return cls(
            prediction_target=searched[0].target, tea_cache=tea_cache, mag_ratios=mag_ratios, unmeasured=unmeasured
        )

    def options_for(self, backend: str) -> dict[str, Any]:
        """The measured options of a cache backend.

        Raises:
            ConfigError: a backend without such options, or one that could not be measured on this model.
        """
        if backend not in ("tea_cache", "mag_cache"):
            raise ConfigError(
                f"profile(backend={backend!r}): backend must be 'tea_cache' or 'mag_cache' with a profile"
            )
        if backend == "tea_cache" and self.tea_cache is not None:
            return {"coefficients": self.tea_cache.coefficients}
        if backend == "mag_cache" and self.mag_ratios is not None:
            return {"mag_ratios": self.mag_ratios}
        reason = self.unmeasured.get(backend) or self.unmeasured.get("blocks") or "its runs were too few"
        raise ConfigError(f"profile(backend={backend!r}): nothing was measured for it: {reason}")


def _short(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


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
