"""Check the arguments of `enable` before anything happens. An error names the argument and says what to write."""

from __future__ import annotations

import numbers
import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from omnireuse.diffusion.cache.base import CacheBackend
from omnireuse.diffusion.cache.step_caches import STEP_CACHES, config_of
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.diffusion.reuse.forecasters import FORECASTERS, Forecaster
from omnireuse.diffusion.reuse.policies import POLICIES, FixedSchedule, MagCache
from omnireuse.diffusion.reuse.policy import Policy
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.validation import kind_of
from omnireuse.diffusion.targets import check_targets
from omnireuse.diffusion.tuning.audit import check_audit
from omnireuse.diffusion.tuning.switch import check_tune
from omnireuse.errors import ConfigError, OmniReuseError, UnknownNameError, WrongTypeError

__all__ = ["check_arguments"]

_CACHE_OPTIONS = tuple(field.name for field in fields(DiffusionCacheConfig))
_NAMES: dict[str, Mapping[str, Any]] = {"backend": STEP_CACHES, "policy": POLICIES, "forecaster": FORECASTERS}
_TYPES: dict[str, tuple[Any, ...]] = {
    "policy": (*POLICIES.builtin.values(), MagCache),
    "forecaster": tuple(dict.fromkeys(FORECASTERS.builtin.values())),
}


def check_arguments(
    pipeline: object,
    *,
    backend: Any,
    policy: object,
    forecaster: object,
    profile: object,
    targets: Mapping[str, Any],
    axes: Mapping[str, Any],
    options: Mapping[str, Any],
    tune: object,
    audit: object,
    parameters: Collection[str],
) -> None:
    """Refuse arguments of the wrong kind or range, unknown names and options, and two ways of choosing at once.

    Args:
        targets: what the result should reach, by parameter, without those left out.
        axes: fields of a strategy, likewise.
        options: keywords that are no parameter of `enable`.
        tune: whether the first pictures are measured; None where it was left out.
        audit: share of the calls that are made again in full.
        parameters: the parameters of `enable`.

    Raises:
        WrongTypeError: a value is of the wrong kind.
        UnknownNameError: a name or an option does not exist.
        ConfigError: a value is out of range, an option belongs somewhere else, or two ways of choosing are given.
    """
    _check_positional(pipeline, backend)
    check_targets(**targets)
    for argument, value in (("backend", backend), ("policy", policy), ("forecaster", forecaster)):
        _check_name(argument, value)
    if profile is not None and not isinstance(profile, (Profile, str, os.PathLike)):
        raise WrongTypeError(
            f"enable(profile={profile!r:.60}): profile must be what omnireuse.calibrate returned, or its file or id, "
            f"got {kind_of(profile)}"
        )
    if backend is not None:
        config_of(backend, options)
    else:
        for name, value in options.items():
            raise _misplaced(name, value, {"policy": policy, "forecaster": forecaster}, parameters)
    given = {
        name: value
        for name, value in {"backend": backend, "policy": policy, "forecaster": forecaster, **axes}.items()
        if value is not None
    }
    aims = {**targets, **({} if profile is None or backend is not None else {"profile": profile})}
    check_tune(tune)
    check_audit(audit)
    if audit and (backend is not None or policy is not None):
        chosen = "backend" if backend is not None else "policy"
        raise ConfigError(
            f"enable(audit={audit!r}): audits go with the default, its targets and a profile, and a {chosen} is given; "
            "leave one of the two out"
        )
    fixed = next((name for name in ("backend", "policy", "profile") if {**given, "profile": profile}.get(name)), None)
    if tune not in (None, False) and fixed is not None:
        raise ConfigError(
            f"enable(tune={tune!r}): tuning chooses the plan of the default, speedup=, computed_steps= and tolerance=, "
            f"and {fixed} has chosen one; leave one of the two out"
        )
    _check_ways(given, aims)


def _check_positional(pipeline: object, backend: object) -> None:
    if isinstance(pipeline, (str, os.PathLike)):
        raise WrongTypeError(
            f"enable({os.fspath(pipeline)!r}): pipeline must be a loaded pipeline, got a name or path; load it first: "
            "pipeline = DiffusionPipeline.from_pretrained(…)"
        )
    if isinstance(backend, str) and backend.endswith(".json"):
        raise ConfigError(
            f"enable(pipeline, {backend!r}): the second argument names a cache backend, got a file; "
            f"write profile={backend!r}"
        )
    if backend is None or isinstance(backend, str):
        return
    remedies = {
        numbers.Real: f"to ask for a number of computed steps write speedup={backend!r}",
        Profile: "write profile=",
        os.PathLike: f"write profile={str(backend)!r}",
        Policy: f"write policy={backend!r}",
        Strategy: "give its fields: policy=, forecaster=, region=",
        Mapping: "write the backend's name and then its options as keywords",
        CacheBackend: "call its own enable(pipeline), or give its name",
        Forecaster: f"write forecaster={backend!r}",
    }
    is_object = not isinstance(backend, (bool, type))
    known = f"known: {', '.join(sorted(STEP_CACHES))}"
    do = next((do for kind, do in remedies.items() if is_object and isinstance(backend, kind)), known)
    raise WrongTypeError(
        f"enable(pipeline, {backend!r:.60}): the second argument must be the name of a cache backend, "
        f"got {kind_of(backend)}; {do}"
    )


def _check_name(argument: str, value: object) -> None:
    word = "cache backend" if argument == "backend" else argument
    if isinstance(value, type) and argument != "backend":
        raise WrongTypeError(
            f"enable({argument}={value.__name__}): {argument} must be a {argument}, got the class; "
            f"write {argument}={value.__name__}()"
        )
    if not isinstance(value, str) or value in _NAMES[argument]:
        return
    elsewhere = [other for other, known in _NAMES.items() if value in known]
    if elsewhere:
        is_one = " or a ".join("cache backend" if other == "backend" else other for other in elsewhere)
        write = " or ".join(f"{other}={value!r}" for other in elsewhere)
        raise ConfigError(f"enable({argument}={value!r}): {value!r} is a {is_one}, no {word}; write {write}")
    hint = "combinations go through policy=, forecaster=, region=" if argument == "backend" else ""
    raise UnknownNameError(word, value, _NAMES[argument], hint=hint)


def _check_ways(given: Mapping[str, Any], aims: Mapping[str, Any]) -> None:
    """Refuse two ways of choosing: a backend, a policy with its axes, and targets exclude each other."""
    backend, policy = given.get("backend"), given.get("policy")
    others = [name for name in given if name not in ("backend", "region")]
    if backend is not None and ("policy" in given or "forecaster" in given):
        raise ConfigError(
            f"enable(backend={backend!r}): give either a backend or a policy with its forecaster, not both"
        )
    if backend is not None and len(given) > 1:
        name = [*given][1]
        raise ConfigError(
            f"enable({name}={given[name]!r:.60}): the backend {backend!r} chooses its {name} itself; leave it out, "
            "or choose all yourself: combinations go through policy=, forecaster=, region="
        )
    if not aims:
        if given and backend is None and policy is None:
            raise ConfigError(
                f"enable({next(iter(given))}=…): a policy or a backend must be given with it; policy='fixed' is the "
                "simplest"
            )
        return
    aim = next(iter(aims))
    if backend is not None or others:
        in_schedule = {"speedup": "speedup", "computed_steps": "num_computed"}
        do = f"leave one of the two out; enable(pipeline, {aim}=…) is enough"
        if aim in in_schedule and (policy == "fixed" or isinstance(policy, FixedSchedule)):
            do = f"put it into the schedule: policy=FixedSchedule({in_schedule[aim]}={aims[aim]!r})"
        elif aim == "tolerance" and policy == "error_control":
            do = f"put it into the policy: policy=ErrorControl(tolerance={aims[aim]!r})"
        clash = "a backend" if backend is not None else others[0]
        raise ConfigError(f"enable({aim}=…): it chooses the whole strategy, so {clash} cannot be given with it; {do}")
    if given.get("region", "step") not in ("step", "call"):
        raise ConfigError(
            f"enable(region={given['region']!r}): region must be 'step' or 'call' beside a target, "
            f"got {given['region']!r}"
        )


def _misplaced(name: str, value: object, chosen: Mapping[str, object], parameters: Collection[str]) -> OmniReuseError:
    """The error for a keyword that is no parameter of `enable`, without a backend."""
    shown = f"enable({name}={value!r:.60})"
    if name == "num_inference_steps":
        return ConfigError(f"{shown}: a pipeline is told its number of steps when it is called, not here")
    for kind, types in _TYPES.items():
        choice = chosen[kind]
        meant = _NAMES[kind].get(choice) if isinstance(choice, str) else type(choice)
        having = [each for each in types if name in {field.name for field in fields(each)}]
        if meant in having:
            having = [meant]
        elif choice is not None or name in _CACHE_OPTIONS:
            continue
        if having:
            names = [each.__name__ for each in having]
            return ConfigError(
                f"{shown}: {name} is a field of the {kind} {' or '.join(names)}; "
                f"write {kind}={names[0]}({name}={value!r:.60})"
            )
    readers = [known for known, cache in STEP_CACHES.items() if name in cache.options]
    if readers:
        return ConfigError(
            f"{shown}: {name} is an option of the cache backend {' or '.join(map(repr, readers))}; "
            f"write enable(pipeline, {readers[0]!r}, {name}={value!r:.60})"
        )
    listed = [each for each in parameters if each not in ("pipeline", "backend", "options")]
    return UnknownNameError("option of enable", name, (*listed, *_CACHE_OPTIONS), listed=listed)
