"""The `cache-dit` library through its own front door: ``cache_dit.enable_cache(pipe, cache_config=…)``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from omnireuse.errors import MissingExtraError
from omnireuse.evaluation.compare.methods import Kept, Method, Setting, call_text
from omnireuse.evaluation.compare.retained import bytes_of
from omnireuse.evaluation.compare.run import FullRun
from omnireuse.evaluation.compare.subject import Subject

__all__ = ["CACHE_DIT"]

ANY_DRIFT = 1.0
"""The library takes this threshold for "reuse whatever the drift": caps and masks alone decide then."""


def _library() -> Any:
    try:
        import cache_dit
    except ImportError as error:
        raise MissingExtraError("the comparison with cache-dit", "cache-dit") from error
    return cache_dit


@contextmanager
def _enabled(pipeline: Any, config: dict[str, Any], order: int | None) -> Iterator[Kept]:
    library = _library()
    with _quiet():
        library.enable_cache(
            pipeline,
            cache_config=library.DBCacheConfig(**config),
            calibrator_config=None if order is None else library.TaylorSeerCalibratorConfig(taylorseer_order=order),
        )
        manager = pipeline._context_manager
        yield lambda: bytes_of([manager._cached_context_manager])
        library.disable_cache(pipeline)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's words about every configuration; its errors remain."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("cache_dit")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _setting(
    subject: Subject, full: FullRun, options: dict[str, Any], *, order: int | None, alone: bool, **shown: Any
) -> Setting:
    # Without this word the library takes the second branch of a step for a step of its own.
    config = {
        **options,
        "num_inference_steps": subject.steps,
        "enable_separate_cfg": full.calls_per_step == 2,
    }
    forecast = {} if order is None else {"taylorseer_order": order}
    call = call_text("DBCacheConfig", **config)
    calibrator = "" if order is None else f", calibrator_config={call_text('TaylorSeerCalibratorConfig', **forecast)}"
    settings = {name: value for name, value in options.items() if isinstance(value, (int, float, str))}
    return Setting(
        settings={**settings, **forecast, **shown},
        call=f"cache_dit.enable_cache(pipe, cache_config={call}{calibrator})",
        enable=partial(_enabled, config=config, order=order),
        alone=alone,
    )


def _blocks(first: int, last: int, warmup: int, consecutive: int, threshold: float) -> dict[str, Any]:
    return {
        "Fn_compute_blocks": first,
        "Bn_compute_blocks": last,
        "max_warmup_steps": warmup,
        "max_continuous_cached_steps": consecutive,
        "residual_diff_threshold": threshold,
    }


def _db_cache(subject: Subject, full: FullRun, *, orders: tuple[int | None, ...]) -> Iterator[Setting]:
    for order in orders:
        # Beyond the first order the library's own measure decides no better than its caps.
        for threshold in (0.06, 0.1, 0.15) if order != 2 else ():
            yield _setting(subject, full, _blocks(1, 0, 4, 3, threshold), order=order, alone=True)
        # The caps alone: computed every second, third, … step behind the warm-up.
        for warmup, consecutives in ((3, (1, 2)), (6, (1, 2, 3, 5))):
            for consecutive in consecutives:
                blocks = _blocks(1, 0, warmup, consecutive, ANY_DRIFT)
                yield _setting(subject, full, blocks, order=order, alone=False)


def _step_masks(subject: Subject, full: FullRun, *, orders: tuple[int | None, ...]) -> Iterator[Setting]:
    library = _library()
    for order in orders:
        for name in ("slow", "medium", "fast", "ultra"):
            mask = library.steps_mask(total_steps=subject.steps, mask_policy=name)
            options = {
                **_blocks(1, 0, subject.steps, -1, ANY_DRIFT),
                "steps_computation_mask": mask,
                "steps_computation_policy": "static",
            }
            yield _setting(subject, full, options, order=order, alone=False, mask_policy=name)


def _method(key: str, name: str, grid: Any, orders: tuple[int | None, ...]) -> Method:
    return Method(key=key, name=f"cache-dit {name}", family="peer", grid=partial(grid, orders=orders))


CACHE_DIT = (
    _method("db-cache", "DBCache", _db_cache, (None,)),
    _method("db-cache-taylor", "DBCache + TaylorSeer", _db_cache, (1, 2)),
    _method("scm", "SCM", _step_masks, (None,)),
    _method("scm-taylor", "SCM + TaylorSeer", _step_masks, (1, 2)),
)
