"""The caches of the `cache-dit` library: ``cache_dit.enable_cache(pipe, cache_config=…)``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from omnireuse_lab.compare.memory import bytes_of
from omnireuse_lab.compare.methods.base import Kept, Method, Setting, Subject, call_text

__all__ = ["CACHE_DIT"]

Calibrator: TypeAlias = "tuple[str, dict[str, Any]] | None"
"""The residual's forecaster: the library's config class and its options; None holds it."""

HOLD: Calibrator = None
TAYLORSEER: tuple[Calibrator, ...] = tuple(("TaylorSeerCalibratorConfig", {"taylorseer_order": n}) for n in (1, 2))
# Dynamic mode decomposition: exponentials fitted to the last snapshots of equal spacing.
DMD: Calibrator = ("DMDCalibratorConfig", {"dmd_history": 6})
# Forecast then Calibrate, arXiv 2508.16211; it has no options.
FOCA: Calibrator = ("FoCaCalibratorConfig", {})

ANY_DRIFT = 1.0
"""The library takes this threshold for "reuse whatever the drift": caps and masks alone decide then."""


@contextmanager
def _enabled(pipeline: Any, config: dict[str, Any], calibrator: Calibrator) -> Iterator[Kept]:
    import cache_dit as library

    with _quiet():
        library.enable_cache(
            pipeline,
            cache_config=library.DBCacheConfig(**config),
            calibrator_config=None if calibrator is None else getattr(library, calibrator[0])(**calibrator[1]),
        )
        manager = pipeline._context_manager
        yield lambda: bytes_of([manager._cached_context_manager])
        library.disable_cache(pipeline)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the library's log of every configuration, except errors."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("cache_dit")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _setting(subject: Subject, options: dict[str, Any], *, calibrator: Calibrator, **shown: Any) -> Setting:
    # Without `enable_separate_cfg` the library counts the second branch of a step as a step of its own.
    config = {
        **options,
        "num_inference_steps": subject.workload.steps,
        "enable_separate_cfg": subject.calls_per_step == 2,
    }
    name, forecast = calibrator or ("", {})
    call = call_text("DBCacheConfig", **config)
    second = f", calibrator_config={call_text(name, **forecast)}" if name else ""
    settings = {name: value for name, value in options.items() if isinstance(value, (int, float, str))}
    return Setting(
        settings={**settings, **forecast, **shown},
        call=f"cache_dit.enable_cache(pipe, cache_config={call}{second})",
        enable=partial(_enabled, config=config, calibrator=calibrator),
    )


def _blocks(warmup: int, consecutive: int, threshold: float) -> dict[str, Any]:
    fixed = {"Fn_compute_blocks": 1, "Bn_compute_blocks": 0, "max_warmup_steps": warmup}
    return {**fixed, "max_continuous_cached_steps": consecutive, "residual_diff_threshold": threshold}


def _db_cache(subject: Subject, *, calibrators: tuple[Calibrator, ...]) -> Iterator[Setting]:
    for calibrator in calibrators:
        # Beyond the first order the library's own measure decides no better than its caps.
        for threshold in (0.06, 0.1, 0.15) if calibrator != TAYLORSEER[1] else ():
            yield _setting(subject, _blocks(4, 3, threshold), calibrator=calibrator)
        # The caps alone: computed every second, third, … step behind the warm-up.
        for warmup, consecutives in ((3, (1, 2)), (6, (1, 2, 3, 5))):
            for consecutive in consecutives:
                blocks = _blocks(warmup, consecutive, ANY_DRIFT)
                yield _setting(subject, blocks, calibrator=calibrator)


def _step_masks(subject: Subject, *, calibrators: tuple[Calibrator, ...]) -> Iterator[Setting]:
    import cache_dit

    for calibrator in calibrators:
        for name in ("slow", "medium", "fast", "ultra"):
            mask = cache_dit.steps_mask(total_steps=subject.workload.steps, mask_policy=name)
            options = {
                **_blocks(subject.workload.steps, -1, ANY_DRIFT),
                "steps_computation_mask": mask,
                "steps_computation_policy": "static",
            }
            yield _setting(subject, options, calibrator=calibrator, mask_policy=name)


CACHE_DIT = tuple(
    Method(
        key=key, name=f"cache-dit {name}", family="peer", grid=partial(grid, calibrators=calibrators), extra="cache-dit"
    )
    for key, name, grid, calibrators in (
        ("db-cache", "DBCache", _db_cache, (HOLD,)),
        ("db-cache-taylor", "DBCache + TaylorSeer", _db_cache, TAYLORSEER),
        ("db-cache-dmd", "DBCache + DMD", _db_cache, (DMD,)),
        ("db-cache-foca", "DBCache + FoCa", _db_cache, (FOCA,)),
        ("scm", "SCM", _step_masks, (HOLD,)),
        ("scm-taylor", "SCM + TaylorSeer", _step_masks, TAYLORSEER),
    )
)
