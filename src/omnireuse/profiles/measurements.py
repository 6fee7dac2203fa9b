"""What full runs of a pipeline have shown of it, beside the schedules that were searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnireuse import messages
from omnireuse.base.records import Record
from omnireuse.errors import ConfigError

__all__ = ["Measurements", "TeaCacheFit"]


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
        tea_cache: None if it could not be fitted.
        mag_ratios: MagCache's ratios for each branch and step, the first 1.0; None if they could not be measured.
        unmeasured: what the model does not show, and why.
    """

    tea_cache: TeaCacheFit | None
    mag_ratios: tuple[tuple[float, ...], ...] | None
    unmeasured: Mapping[str, str]

    def options_for(self, backend: str) -> dict[str, Any]:
        """The measured options of a cache backend.

        Raises:
            ConfigError: a backend without such options, or one that could not be measured on this model.
        """
        if backend not in ("tea_cache", "mag_cache"):
            raise ConfigError(messages.NOT_MEASURED_FOR, backend=backend)
        if backend == "tea_cache" and self.tea_cache is not None:
            return {"coefficients": self.tea_cache.coefficients}
        if backend == "mag_cache" and self.mag_ratios is not None:
            return {"mag_ratios": self.mag_ratios}
        reason = self.unmeasured.get(backend) or self.unmeasured.get("blocks") or "its runs were too few"
        raise ConfigError(f"profile(backend={backend!r}): nothing was measured for it: {reason}")
