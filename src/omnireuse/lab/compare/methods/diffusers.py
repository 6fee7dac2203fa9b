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
from omnireuse.lab.compare.memory import bytes_of, hook_states
from omnireuse.lab.compare.methods.base import Kept, Method, Setting, Subject, call_text
from omnireuse.lab.compare.workload import Workload, is_distilled

__all__ = ["DIFFUSERS"]

ATTENTION_AND_FEED_FORWARD = (r".*blocks\.\d+\.(attn\w*|ff\w*|proj_mlp|proj_out)",)
"""TaylorSeer's modules by its paper; the default patterns of diffusers miss feed-forwards and Wan's attention."""


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


def _setting(config: str, options: dict[str, Any], *, alone: bool = False, **late: Callable[[], Any]) -> Setting:
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
        alone=alone,
    )


def _first_block(_: Subject) -> Iterator[Setting]:
    for threshold in (0.06, 0.1, 0.14, 0.2, 0.3, 0.45):
        yield _setting("FirstBlockCacheConfig", {"threshold": threshold}, alone=True)


def _mag_cache(subject: Subject) -> Iterator[Setting]:
    workload = subject.workload
    ratios = cache(lambda: measured_ratios(workload))
    for retention, thresholds in ((0.25, (0.03, 0.06, 0.12, 0.24, 0.5)), (0.1, (0.12, 0.24, 0.5))):
        for threshold in thresholds:
            options = {"threshold": threshold, "max_skip_steps": 4, "retention_ratio": retention}
            options["num_inference_steps"] = workload.steps
            yield _setting("MagCacheConfig", options, mag_ratios=lambda: list(ratios()))


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
            yield _taylor(subject, interval, order, before, {"use_lite_mode": True})


def _taylorseer_parts(subject: Subject) -> Iterator[Setting]:
    for order, interval in ((1, 2), (1, 3), (0, 3)):
        yield _taylor(subject, interval, order, 6, {"cache_identifiers": list(ATTENTION_AND_FEED_FORWARD)})


def _taylor(subject: Subject, interval: int, order: int, before: int, what: dict[str, Any]) -> Setting:
    options = {
        "cache_interval": interval,
        "max_order": order,
        "disable_cache_before_step": before,
        # Both serve the library: it keeps bfloat16 otherwise, and ends on a forecast.
        "disable_cache_after_step": subject.workload.steps - 1,
        "taylor_factors_dtype": torch.float32,
        **what,
    }
    return _setting("TaylorSeerCacheConfig", options)


def _sea_cache(subject: Subject) -> Iterator[Setting]:
    names = {type(denoiser).__name__ for denoiser in denoisers_of(subject.workload.pipeline)}
    if not names & {"WanTransformer3DModel", "Cosmos3OmniTransformer"}:
        raise UnsupportedModelError(
            f"SeaCache of diffusers serves Wan and Cosmos 3; a {' and '.join(sorted(names))} it runs in full"
        )
    for order in (0, 1):
        for threshold in (0.05, 0.1, 0.2, 0.4):
            options = {"threshold": threshold, "residual_order": order, "max_consecutive_cached": 4}
            yield _setting("SeaCacheConfig", options, alone=True)


def _faster_cache(subject: Subject) -> Iterator[Setting]:
    # Its guess at the unconditional branch wants both branches in one batch; otherwise its attention cache is left.
    workload = subject.workload
    is_guided = workload.guidance > 1.0 and not is_distilled(workload.pipeline)
    is_in_one_batch = is_guided and subject.calls_per_step == 1
    for skip, bound in ((2, 681), (3, 901)):
        options = {
            "spatial_attention_block_skip_range": skip,
            "spatial_attention_timestep_skip_range": (-1, bound),
            "is_guidance_distilled": not is_in_one_batch,
            "tensor_format": "BCFHW" if subject.full[0].ndim == 4 else "BCHW",
        }
        yield _setting("FasterCacheConfig", options)


def _pyramid(_: Subject) -> Iterator[Setting]:
    for skip, bounds in ((2, (100, 800)), (3, (100, 950))):
        options: dict[str, Any] = {}
        for kind, every in (("spatial", skip), ("cross", skip + 1)):
            options |= {f"{kind}_attention_block_skip_range": every, f"{kind}_attention_timestep_skip_range": bounds}
        yield _setting("PyramidAttentionBroadcastConfig", options)


DIFFUSERS = tuple(
    Method(key=key, name=f"diffusers {name}", family="peer", grid=grid)
    for key, name, grid in (
        ("first-block-cache", "FirstBlockCache", _first_block),
        ("mag-cache", "MagCache", _mag_cache),
        ("taylorseer", "TaylorSeer", _taylorseer),
        ("taylorseer-parts", "TaylorSeer, by parts", _taylorseer_parts),
        ("diffusers-sea-cache", "SeaCache", _sea_cache),
        ("faster-cache", "FasterCache", _faster_cache),
        ("pyramid", "Pyramid Attention Broadcast", _pyramid),
    )
)
