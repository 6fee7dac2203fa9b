"""The strategies of `bench strategies`, one line each: a policy with its forecasters, or a cache by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench._cases import Tuning
from omnireuse import Blend, EasyCache, ErrorControl, Hold, Polynomial, SeaCache, Spread
from omnireuse.arguments.targets import strategy_of
from omnireuse.policies import MagCache, ResidualDiff, StepMask, TeaCache

Choice = dict[str, Any]
"""What `omnireuse.enable` is called with beside the pipeline: axes, or `backend` with its options."""

FORECASTERS: dict[str, Choice] = {
    "hold": {"forecaster": Hold()},
    "hold on output": {"forecaster": Hold(), "prediction_target": "output"},
    "polynomial": {"forecaster": Polynomial()},
    "polynomial 2": {"forecaster": Polynomial(order=2)},
    "blend": {"forecaster": Blend()},
}
BY_DEFAULT = {name: FORECASTERS[name] for name in ("hold", "polynomial", "blend")}

SHARES = (0.64, 0.5, 0.36, 0.25)
"""Of the steps that compute, for schedules and for fewer steps."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A choice for each setting of a dial, from careful to bold, and what each forecaster adds to it.

    A library that decides for a whole batch takes its prompts one by one (`alone`).
    """

    dial: tuple[Any, ...]
    at: Callable[[Any, Tuning], Choice]
    forecasters: Mapping[str, Choice] = field(default_factory=lambda: BY_DEFAULT)
    alone: bool = False


#: One line each. Two of the forecasters are tried on even steps alone, which suit them best. Under Euler's method
#: holding x0 is holding the output, so the second is tried there, and with EasyCache, which watches what is held.
STRATEGIES: dict[str, Strategy] = {
    "fixed, even": Strategy(
        dial=SHARES,
        at=lambda share, _: {"policy": Spread(speedup=1 / share, by_noise=False, power=1.0)},
        forecasters=FORECASTERS,
    ),
    "by number": Strategy(dial=SHARES, at=lambda share, _: {"policy": Spread(speedup=1 / share, by_noise=False)}),
    "scm": Strategy(dial=("slow", "medium", "fast", "ultra"), at=lambda mask, _: {"policy": StepMask(mask=mask)}),
    "error_control": Strategy(
        dial=(0.01, 0.03, 0.07, 0.2), at=lambda tolerance, _: {"policy": ErrorControl(tolerance=tolerance)}
    ),
    "easy_cache": Strategy(
        dial=(0.015, 0.03, 0.06, 0.12),
        at=lambda threshold, _: {"policy": EasyCache(threshold=threshold)},
        forecasters={name: FORECASTERS[name] for name in ("hold", "hold on output", "polynomial", "blend")},
    ),
    "sea_cache": Strategy(
        dial=(0.08, 0.15, 0.25, 0.5), at=lambda threshold, _: {"policy": SeaCache(threshold=threshold)}
    ),
    "tea_cache": Strategy(
        dial=(0.05, 0.1, 0.2),
        at=lambda threshold, tuning: {
            "policy": TeaCache(rel_l1_thresh=threshold, coefficients=tuning.coefficients),
            "region": "blocks",
        },
        forecasters=BY_DEFAULT,
    ),
    "mag_cache": Strategy(
        dial=(0.005, 0.02, 0.06),
        at=lambda threshold, tuning: {
            "policy": MagCache(threshold=threshold, ratios=tuning.ratios, compute_last=True),
            "region": "blocks",
        },
        forecasters=BY_DEFAULT,
    ),
    "db_cache": Strategy(
        dial=(0.08, 0.12, 0.3), at=lambda threshold, _: _tail(threshold, first_blocks=2), forecasters=BY_DEFAULT
    ),
    "first_block_cache": Strategy(
        dial=(0.08, 0.12, 0.3), at=lambda threshold, _: _tail(threshold, first_blocks=1), forecasters=BY_DEFAULT
    ),
    "cache_dit": Strategy(
        dial=(0.08, 0.12, 0.3),
        at=lambda threshold, _: {"backend": "cache_dit", "residual_diff_threshold": threshold},
        forecasters={"hold": {}, "polynomial": {"enable_taylorseer": True}},
        alone=True,
    ),
    "taylorseer": Strategy(
        dial=(2, 3, 4),
        at=lambda gap, _: {"backend": "taylorseer", "taylorseer_interval": gap},
        forecasters={"polynomial": {}},
    ),
}


def _tail(threshold: float, *, first_blocks: int) -> Choice:
    return {
        "policy": ResidualDiff(residual_diff_threshold=threshold),
        "region": "tail",
        "first_blocks": first_blocks,
        "shared_cfg_decision": True,
    }


def choice(name: str, forecaster: str, setting: Any, tuning: Tuning) -> Choice:
    """What to call `omnireuse.enable` with."""
    strategy = STRATEGIES[name]
    options = strategy.at(setting, tuning) | strategy.forecasters[forecaster]
    return {"backend": strategy_of(**options)} if "policy" in options else options


def settings(name: str, num: int) -> tuple[Any, ...]:
    """At most `num` settings of the dial, its ends among them."""
    dial = STRATEGIES[name].dial
    if num >= len(dial):
        return dial
    return tuple(dial[round(i * (len(dial) - 1) / max(num - 1, 1))] for i in range(num))
