"""This library's own strategies, with and without a profile of the pipeline, and its named caches."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import omnireuse
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, call_text, reuse
from omnireuse_lab.compare.workload import GUIDANCE, Workload

__all__ = ["NAMED", "OURS", "part_method", "profile_method"]

logger = logging.getLogger("omnireuse")


SPEEDUPS = (1.4, 1.6, 2.5, 3.0, 4.0)
"""Of the default, beside 2."""


def _setting(options: dict[str, Any], **settings: Any) -> Setting:
    return reuse("", options, call=call_text("omnireuse.enable", "pipe", **options), **settings)


def _policy(policy: omnireuse.Policy, forecaster: str, **settings: Any) -> Setting:
    return _setting({"policy": policy, "forecaster": forecaster}, **settings, forecaster=forecaster)


_GRIDS: dict[str, tuple[str, Callable[[Subject], Iterable[Setting]]]] = {
    "default": (", default", lambda _: [_setting({"tune": False})]),
    "default-call": (
        ", default by call",
        lambda _: [_setting({"speedup": 2.0, "region": "call", "tune": False}, region="call")],
    ),
    "speedup": (
        ", speedup=…",
        lambda _: [_setting({"speedup": n, "tune": False}, speedup=n) for n in SPEEDUPS],
    ),
    "error-control": (
        " ErrorControl",
        lambda _: [
            _policy(omnireuse.ErrorControl(tolerance=tolerance), "blend", tolerance=tolerance)
            for tolerance in (0.01, 0.02, 0.05, 0.1, 0.2)
        ],
    ),
    "sea-cache": (
        " SeaCache",
        lambda _: [
            _policy(omnireuse.SeaCache(threshold=threshold), "blend", threshold=threshold)
            for threshold in (0.05, 0.1, 0.2, 0.4)
        ],
    ),
}
OURS = tuple(Method(key=key, name=f"omnireuse{name}", family="ours", grid=grid) for key, (name, grid) in _GRIDS.items())


def part_method(part: omnireuse.Forecaster | omnireuse.Policy) -> Method:
    """A forecaster or a policy in the default's place, so that it alone differs. A forecaster has the default's
    schedule at every speed-up of the methods "default" and "speedup"; a policy chooses the steps itself."""
    name, field = type(part).__name__, "policy" if isinstance(part, omnireuse.Policy) else "forecaster"

    def grid(_: Subject) -> Iterator[Setting]:
        chosen: list[dict[str, Any]] = [{}] if field == "policy" else [{"speedup": n} for n in (2.0, *SPEEDUPS)]
        for given in chosen:
            default = call_text("Strategy.default", **given)
            changed: dict[str, Any] = {field: part}
            strategy = replace(omnireuse.Strategy.default(**given), **changed)
            call = f"omnireuse.enable(pipe, replace({default}, {field}={part!r}))"
            yield reuse("", {"backend": strategy}, call=call, **given, **{field: repr(part)})

    return Method(key=name, name=f"{part!r} in the default's place", family="ours", grid=grid)


def profile_method(places: Sequence[str | os.PathLike[str]]) -> Method:
    """Every plan of the profiles that were searched at the steps and guidance of the case."""
    # A file or folder is named by its last part, an id on the hub in full.
    names = [Path(place).name if Path(place).exists() else str(place) for place in places]
    profiles = dict(zip(names, map(omnireuse.Profile.from_pretrained, places), strict=True))

    def grid(subject: Subject) -> Iterator[Setting]:
        fitting = {name: profile for name, profile in profiles.items() if _fits(profile, subject.workload)}
        if left_out := ", ".join(profiles.keys() - fitting.keys()):
            logger.warning("%s: searched at other steps or guidance than %s", left_out, subject.workload.name)
        for name, profile in fitting.items():
            for count in sorted(profile.plans, reverse=True):
                chosen: dict[str, Any] = {"profile": name, "computed_steps": count}
                call = call_text("omnireuse.enable", "pipe", **chosen)
                setting = reuse("", {**chosen, "profile": profile}, call=call, **chosen)
                yield replace(setting, version=hashlib.sha256(profile.as_text().encode()).hexdigest())

    return Method(key="profile", name="omnireuse, calibrated", family="ours", grid=grid)


def _fits(profile: omnireuse.Profile, workload: Workload) -> bool:
    own, searched = ({k: float(v) for k, v in each.call.items() if k in GUIDANCE} for each in (workload, profile))
    is_guided_alike = all(own[key] == searched.get(key, own[key]) for key in own)
    return profile.num_inference_steps == workload.steps and is_guided_alike


_DECIDING: dict[str, tuple[str, tuple[float, ...]]] = {
    "cache_dit": ("residual_diff_threshold", (0.06, 0.12, 0.24)),
    "db_cache": ("residual_diff_threshold", (0.06, 0.12, 0.24)),
    "easy_cache": ("easy_thresh", (0.02, 0.05, 0.1, 0.2)),
    "error_control": ("error_tolerance", (0.02, 0.05, 0.1, 0.2)),
    "first_block_cache": ("residual_diff_threshold", (0.06, 0.12, 0.24)),
    "mag_cache": ("mag_threshold", (0.06, 0.12, 0.24)),
    "sea_cache": ("sea_thresh", (0.05, 0.1, 0.2, 0.4)),
    "taylorseer": ("taylorseer_interval", (2, 3, 4)),
    "tea_cache": ("rel_l1_thresh", (0.1, 0.2, 0.4, 0.6)),
}
"""Of each backend that `omnireuse.enable` takes, the option that decides between speed and quality, and its values."""


def _named(name: str, _: Subject) -> Iterator[Setting]:
    option, values = _DECIDING[name]
    for options in [{option: value} for value in values]:
        call = call_text("omnireuse.enable", "pipe", repr(name), **options)
        yield reuse("", {"backend": name, **options}, call=call, **options)


NAMED = {
    name: Method(
        key=name,
        name=f"omnireuse, {name}",
        family="peer",
        grid=partial(_named, name),
        extra="cache-dit" if name == "cache_dit" else "",
    )
    for name in _DECIDING
}
"""By the name of the backend."""
