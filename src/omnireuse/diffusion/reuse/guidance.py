"""What guidance a run has, and what it follows where that is far from the guidance of its plan's calibration."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Stats
from omnireuse.diffusion.reuse.validation import is_number

__all__ = ["CalibratedGuidance", "scales_of"]

logger = logging.getLogger("omnireuse")

STRONGER, WEAKER = 1.4, 0.5
"""At guidance so many times as strong or more, or less than so many times as strong, a calibrated plan may be worse
than the default. Chosen on reference pipelines for images, judged on that for clips (``python -m bench travel``)."""


def scales_of(pipeline: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
    """The guidance scales of a call of the pipeline, by argument, with its defaults; empty where it has none."""
    try:
        bound = inspect.signature(type(pipeline).__call__).bind_partial(pipeline, *args, **kwargs)
    except (TypeError, ValueError):
        return {}  # a call that the pipeline refuses itself, or one without a signature
    bound.apply_defaults()
    return {
        name: float(value)
        for name, value in {**bound.arguments, **kwargs}.items()
        if name.endswith("_scale") and ("guidance" in name or "cfg" in name) and is_number(value)
    }


@dataclass(kw_only=True, eq=False)
class CalibratedGuidance:
    """Chooses the strategy of a run by its guidance.

    Attributes:
        scales: the scales of the calibration, by argument. 1 and below is no guidance.
        default: what runs follow whose guidance is far from that.
        stats: counts them, and promises nothing of runs with other scales.
    """

    scales: Mapping[str, float]
    default: Strategy
    stats: Stats
    _said: set[str] = field(default_factory=set)

    def strategy(self, calibrated: Strategy, here: Mapping[str, float]) -> Strategy:
        """That of a run with the scales `here`; the calibrated one where they are not known."""
        unlike = {name: here[name] for name in self.scales if here.get(name, self.scales[name]) != self.scales[name]}
        if not unlike:
            return calibrated
        ratios = [max(now, 1.0) / max(self.scales[name], 1.0) for name, now in unlike.items()]
        is_far = any(ratio >= STRONGER or ratio < WEAKER for ratio in ratios)
        made = ", ".join(f"{name}={now:g} in place of {self.scales[name]:g}" for name, now in unlike.items())
        goes_on = "with the default's schedule and forecaster" if is_far else "with the profile's"
        if made not in self._said:
            self._said.add(made)
            logger.warning(
                "%s: the profile was not calibrated for this guidance, so this run goes on %s, and its quality is not "
                "promised",
                made,
                goes_on,
            )
        self.stats.break_promise()
        if not is_far:
            return calibrated
        self.stats.fell_back("the default's plan")
        return self.default
