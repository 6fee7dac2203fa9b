"""The caches of diffusers, enabled as it documents them: ``pipe.transformer.enable_cache(config)``."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from omnireuse.errors import StateError, UnsupportedModelError
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse_lab.compare.memory import bytes_of, hook_states
from omnireuse_lab.compare.methods.base import Kept, Method, Setting, Subject, call_text
from omnireuse_lab.compare.workload import Workload

__all__ = ["DIFFUSERS", "diffusers_setting"]


@contextmanager
def _enabled(pipeline: Any, make: Callable[[Any], Any]) -> Iterator[Kept]:
    denoisers = denoisers_of(pipeline)
    for denoiser in denoisers:
        denoiser.enable_cache(make(pipeline))  # type: ignore[operator]  # nn.Module: of any attribute
    try:
        yield lambda: bytes_of(state for denoiser in denoisers for state in hook_states(denoiser))
    finally:
        for denoiser in denoisers:
            denoiser.disable_cache()  # type: ignore[operator]  # as above


def diffusers_setting(config: str, options: dict[str, Any], **late: Callable[[], Any]) -> Setting:
    """A setting of one of the library's configs; `late` are arguments that are made when the cache is enabled."""

    def make(pipeline: Any) -> Any:
        import diffusers.hooks

        kind = getattr(diffusers.hooks, config)
        given = {**options, **{name: value() for name, value in late.items()}}
        if "current_timestep_callback" in kind.__dataclass_fields__:
            given["current_timestep_callback"] = lambda: pipeline.current_timestep
        return kind(**given)

    shown = call_text(config, **options, **dict.fromkeys(late, "…"))
    return Setting(
        settings={k: value if isinstance(value, (int, float, str)) else str(value) for k, value in options.items()},
        call=f"pipe.transformer.enable_cache({shown})",
        enable=partial(_enabled, make=make),
    )


def _first_block(_: Subject) -> Iterator[Setting]:
    for threshold in (0.06, 0.1, 0.14, 0.2, 0.3, 0.45):
        yield diffusers_setting("FirstBlockCacheConfig", {"threshold": threshold})


def _mag_cache(subject: Subject) -> Iterator[Setting]:
    workload = subject.workload
    ratios = cache(lambda: measured_ratios(workload))
    for retention, thresholds in ((0.25, (0.03, 0.06, 0.12, 0.24, 0.5)), (0.1, (0.12, 0.24, 0.5))):
        for threshold in thresholds:
            options = {"threshold": threshold, "max_skip_steps": 4, "retention_ratio": retention}
            options["num_inference_steps"] = workload.steps
            yield diffusers_setting("MagCacheConfig", options, mag_ratios=lambda: list(ratios()))


def measured_ratios(workload: Workload) -> list[float]:
    """Ratios as the library's calibration run prints them; the mean over its branches, as it takes one list for all."""
    from diffusers.hooks import MagCacheConfig

    def make(_: Any) -> Any:
        return MagCacheConfig(calibrate=True, num_inference_steps=workload.steps)

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), _enabled(workload.pipeline, make):
        workload.pictures([0], workload.steps)
    found = [ast.literal_eval(line) for line in re.findall(r"^\[[-\d.e, ]+\]$", printed.getvalue(), re.MULTILINE)]
    if not found:
        raise StateError("the calibration run of MagCache printed no ratios")
    return [float(ratio) for ratio in np.mean(found, axis=0)]


def _taylorseer(subject: Subject) -> Iterator[Setting]:
    chosen = {(0, 6): (3, 4, 5, 7), (1, 6): (2, 3, 4, 5, 7), (1, 3): (3,), (2, 6): (2, 3), (2, 3): (2, 3, 4, 5, 6)}
    for (order, before), intervals in chosen.items():
        for interval in intervals:
            options = {
                "cache_interval": interval,
                "max_order": order,
                "disable_cache_before_step": before,
                # Both serve the library: it keeps bfloat16 otherwise, and ends on a forecast.
                "disable_cache_after_step": subject.workload.steps - 1,
                "taylor_factors_dtype": torch.float32,
                "use_lite_mode": True,
            }
            yield diffusers_setting("TaylorSeerCacheConfig", options)


def _sea_cache(subject: Subject) -> Iterator[Setting]:
    names = {type(denoiser).__name__ for denoiser in denoisers_of(subject.workload.pipeline)}
    if not names & {"WanTransformer3DModel", "Cosmos3OmniTransformer"}:
        raise UnsupportedModelError(
            f"SeaCache of diffusers serves Wan and Cosmos 3; a {' and '.join(sorted(names))} it runs in full"
        )
    for order in (0, 1):
        for threshold in (0.05, 0.1, 0.2, 0.4):
            options = {"threshold": threshold, "residual_order": order, "max_consecutive_cached": 4}
            yield diffusers_setting("SeaCacheConfig", options)


DIFFUSERS = tuple(
    Method(key=key, name=f"diffusers {name}", family="peer", grid=grid)
    for key, name, grid in (
        ("first-block-cache", "FirstBlockCache", _first_block),
        ("mag-cache", "MagCache", _mag_cache),
        ("taylorseer", "TaylorSeer", _taylorseer),
        ("diffusers-sea-cache", "SeaCache", _sea_cache),
    )
)
