"""What `enable` was given, checked before anything happens. An error names the argument and says what to write."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from omnireuse.diffusion.cache.base import CacheBackend
from omnireuse.diffusion.cache.step_caches import STEP_CACHES
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.diffusion.reuse.forecasters import FORECASTERS, Forecaster
from omnireuse.diffusion.reuse.policies import POLICIES, FixedSchedule, MagCache
from omnireuse.diffusion.reuse.policy import Policy
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import ConfigError, OmniReuseError, UnknownNameError, WrongTypeError

__all__ = ["check_names", "check_options", "check_positional", "check_profile", "check_targets"]

_CACHE_OPTIONS = tuple(field.name for field in fields(DiffusionCacheConfig))
_POLICY_TYPES: tuple[Any, ...] = (*POLICIES.builtin.values(), MagCache)
_FORECASTER_TYPES: tuple[Any, ...] = tuple(dict.fromkeys(FORECASTERS.builtin.values()))
_TOLERANCE = "a relative error of the final latents above 0 and below 1, such as 0.05 for 5 %"
_IN_A_SCHEDULE = {"speedup": "speedup", "computed_steps": "num_computed"}


def check_positional(pipeline: object, backend: object) -> None:
    """Refuse what is no pipeline or no name of a backend, and say where it belongs.

    Raises:
        WrongTypeError: either is of another kind.
        ConfigError: a backend that looks like the file of a profile.
    """
    if isinstance(pipeline, (str, os.PathLike)):
        raise WrongTypeError(
            f"enable({os.fspath(pipeline)!r}): pipeline must be a loaded pipeline, got a name or path; load it first: "
            "pipeline = DiffusionPipeline.from_pretrained(…)"
        )
    if backend is None:
        return
    if isinstance(backend, str):
        if backend.endswith(".json"):
            raise ConfigError(
                f"enable(pipeline, {backend!r}): the second argument names a cache backend, got a file; "
                f"write profile={backend!r}"
            )
        return
    instead = {
        numbers.Real: f"to ask for a speed-up write speedup={backend!r}",
        Profile: "write profile=",
        os.PathLike: f"write profile={str(backend)!r}",
        Policy: f"write policy={backend!r}",
        Strategy: "give its fields: policy=, forecaster=, region=",
        Mapping: "write the backend's name and then its options as keywords",
        CacheBackend: "call its own enable(pipeline), or give its name",
        Forecaster: f"write forecaster={backend!r}",
    }
    is_object = not isinstance(backend, (bool, type))
    do = next((do for kind, do in instead.items() if is_object and isinstance(backend, kind)), _names(STEP_CACHES))
    raise WrongTypeError(
        f"enable(pipeline, {backend!r:.60}): the second argument must be the name of a cache backend, "
        f"got {_kind(backend)}; {do}"
    )


def check_profile(profile: object) -> None:
    """Raise a WrongTypeError unless this is a profile or a path."""
    if not isinstance(profile, (Profile, str, os.PathLike)):
        raise WrongTypeError(
            f"enable(profile={profile!r:.60}): profile must be what omnireuse.calibrate returned, or its file, "
            f"got {_kind(profile)}"
        )


def check_targets(
    speedup: object = None, computed_steps: object = None, quality: object = None, tolerance: object = None
) -> None:
    """Refuse what is no number, or one that means nothing.

    Raises:
        WrongTypeError: no number.
        ConfigError: a number out of range.
    """
    if speedup is not None:
        number = _number("speedup", speedup, "a number of at least 1: all steps divided by computed steps")
        if number < 1:
            raise ConfigError(
                f"enable(speedup={speedup!r}): speedup must be at least 1, got {speedup!r}; it is all steps divided by "
                "computed steps: 2 computes half of them"
            )
    if computed_steps is not None:
        number = _number("computed_steps", computed_steps, "a whole number of at least 1")
        if number != int(number):
            raise ConfigError(
                f"enable(computed_steps={computed_steps!r}): computed_steps must be a whole number, got "
                f"{computed_steps!r}; a ratio is given as speedup="
            )
        if number < 1:
            raise ConfigError(
                f"enable(computed_steps={computed_steps!r}): computed_steps must be at least 1, got "
                f"{computed_steps!r}; the first step of a run always computes"
            )
    if quality is not None and _number("quality", quality, "a PSNR in dB, such as 40") <= 0:
        raise ConfigError(f"enable(quality={quality!r}): quality must be a PSNR in dB above 0, such as 40")
    if tolerance is not None and not 0 < _number("tolerance", tolerance, _TOLERANCE) < 1:
        raise ConfigError(f"enable(tolerance={tolerance!r}): tolerance must be {_TOLERANCE}, got {tolerance!r}")


def _number(name: str, value: object, must: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise WrongTypeError(
            f"enable({name}={value!r:.60}): {name} must be {must}, got {_kind(value)}{_as_number(name, value)}"
        )
    if not math.isfinite(value):
        raise ConfigError(f"enable({name}={value!r}): {name} must be {must}, got {value!r}")
    return float(value)


def _as_number(name: str, value: object) -> str:
    if not isinstance(value, str):
        return ""
    text = value.strip().lower()
    try:
        number = float(text.removesuffix("x").removesuffix("db").removesuffix("%").strip())
    except ValueError:
        return ""
    number /= 100 if text.endswith("%") else 1
    return f"; write {name}={number:g}" if math.isfinite(number) else ""


def check_names(backend: str | None, policy: object, forecaster: object) -> None:
    """Refuse a name that is none of its kind, and say where it is one.

    Raises:
        UnknownNameError: such a name.
        WrongTypeError: a class in place of an object.
    """
    kinds: dict[str, tuple[str, Mapping[str, Any]]] = {
        "cache backend": ("backend={!r}", STEP_CACHES),
        "policy": ("policy={!r}", POLICIES),
        "forecaster": ("forecaster={!r}", FORECASTERS),
    }
    for kind, name in (("cache backend", backend), ("policy", policy), ("forecaster", forecaster)):
        if isinstance(name, type) and kind != "cache backend":
            raise WrongTypeError(
                f"enable({kind}={name.__name__}): {kind} must be a {kind}, got the class; "
                f"write {kind}={name.__name__}()"
            )
        if not isinstance(name, str) or name in kinds[kind][1]:
            continue
        elsewhere = [(other, how.format(name)) for other, (how, known) in kinds.items() if name in known]
        if elsewhere:
            is_one, write = (" and a ".join(others) for others in zip(*elsewhere, strict=True))
            write = write.replace(" and a ", " or ")
            raise ConfigError(
                f"enable({kinds[kind][0].format(name)}): {name!r} is a {is_one}, no {kind}; write {write}"
            )
        hint = "combinations go through policy=, forecaster=, region=" if kind == "cache backend" else ""
        raise UnknownNameError(kind, name, kinds[kind][1], hint=hint)


def check_options(
    options: Mapping[str, Any],
    *,
    own: Iterable[str],
    targets: Mapping[str, Any],
    choices: Mapping[str, Any],
    backend: str | None,
    policy: object,
    forecaster: object,
) -> None:
    """Refuse options that are unknown or belong somewhere else, and ways of choosing that exclude each other.

    Args:
        options: keywords that are no parameter of `enable`.
        own: the parameters of `enable`.
        targets: what is asked of the result, by parameter, without those that were left out.
        choices: fields of a strategy, likewise.

    Raises:
        UnknownNameError: a keyword that nothing answers to.
        ConfigError: one that belongs to a backend, a policy or a forecaster; two ways at once.
    """
    for name, value in options.items():
        if backend is None or name not in STEP_CACHES[backend].options:
            raise _misplaced(name, value, own, backend, policy, forecaster)
    if backend is not None and (policy is not None or forecaster is not None):
        raise ConfigError(
            f"enable(backend={backend!r}): give either a backend or a policy with its forecaster, not both"
        )
    if backend is not None and choices:
        name = next(iter(choices))
        raise ConfigError(
            f"enable({name}={choices[name]!r:.60}): the backend {backend!r} chooses its {name} itself; leave it out, "
            "or choose all yourself: combinations go through policy=, forecaster=, region="
        )
    wished = next(iter(targets), None)
    others = [name for name in choices if name != "region"]
    if wished is None or (backend is None and policy is None and forecaster is None and not others):
        return
    given = "a backend" if backend is not None else next(iter(others), "policy or forecaster")
    do = f"leave one of the two out; enable(pipeline, {wished}=…) says enough"
    if wished in _IN_A_SCHEDULE and (policy == "fixed" or isinstance(policy, FixedSchedule)):
        do = f"put it into the schedule: policy=FixedSchedule({_IN_A_SCHEDULE[wished]}={targets[wished]!r})"
    elif wished == "tolerance" and policy == "error_control":
        do = f"put it into the policy: policy=ErrorControl(tolerance={targets[wished]!r})"
    raise ConfigError(f"enable({wished}=…): it chooses the whole strategy, so {given} cannot be given with it; {do}")


def _misplaced(
    name: str, value: object, own: Iterable[str], backend: str | None, policy: object, forecaster: object
) -> OmniReuseError:
    shown = f"enable({name}={value!r:.60})"
    if backend is None and name == "num_inference_steps":
        return ConfigError(f"{shown}: a pipeline is told its number of steps when it is called, not here")
    for kind, chosen, registry, types in (
        ("policy", policy, POLICIES, _POLICY_TYPES),
        ("forecaster", forecaster, FORECASTERS, _FORECASTER_TYPES),
    ):
        meant = registry.get(chosen) if isinstance(chosen, str) else type(chosen)
        having: list[Any] = [each for each in types if name in {field.name for field in fields(each)}]
        is_open = backend is None and chosen is None and name not in _CACHE_OPTIONS
        having = [each for each in having if each is meant] or (having if is_open else [])
        if having:
            names = [each.__name__ for each in having]
            return ConfigError(
                f"{shown}: {name} is a field of the {kind} {' or '.join(names)}; "
                f"write {kind}={names[0]}({name}={value!r:.60})"
            )
    readers = [known for known, kind in STEP_CACHES.items() if name in kind.options]
    if backend is not None:
        known = (*STEP_CACHES[backend].options, "profile")
        hint = f"{' or '.join(map(repr, readers))} has it" if readers else ""
        return UnknownNameError(f"option of {backend!r}", name, known, hint=hint)
    if readers:
        return ConfigError(
            f"{shown}: {name} is an option of the cache backend {' or '.join(map(repr, readers))}; "
            f"write enable(pipeline, {readers[0]!r}, {name}={value!r:.60})"
        )
    every = [each for each in own if each not in ("pipeline", "backend", "options")]
    return UnknownNameError("option of enable", name, (*every, *_CACHE_OPTIONS), listed=every)


def _kind(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str):
        return f"the text {value!r:.60}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _names(names: Iterable[str]) -> str:
    return f"known: {', '.join(sorted(names))}"
