"""Check the arguments of `enable` before anything happens. An error names the argument and says what to write."""

from __future__ import annotations

import numbers
import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, get_args

from omnireuse import messages
from omnireuse.arguments.choices import BackendName, CacheOptions, StrategyOptions
from omnireuse.arguments.tune import Audited, TuneOptions, check_tune
from omnireuse.base.validation import check_value, field_error, kind_error, kind_of
from omnireuse.errors import ConfigError, OmniReuseError, UnknownNameError, WrongTypeError
from omnireuse.forecasters import FORECASTERS, Forecaster
from omnireuse.loop.strategy import Region, Strategy
from omnireuse.policies import POLICIES, EveryNth, MagCache, Spread, Steps
from omnireuse.policies.base import Policy
from omnireuse.profiles.profile import Profile
from omnireuse.profiles.target import TARGETS, Target

__all__ = ["check_arguments"]


def check_arguments(
    pipeline: object,
    target: Target,
    ways: Mapping[str, Any],
    *,
    profile: object,
    tune: bool | int | TuneOptions | None,
    audit: object,
    options: Mapping[str, Any],
) -> None:
    """Refuse arguments of the wrong kind or range, unknown names and options, and two ways of choosing at once.

    The options of a backend are left to it, and a profile to what reads it.

    Args:
        target: what the result should reach.
        ways: backend, policy, forecaster and axes, by parameter; None is left out.
        options: keywords that are no parameter of `enable`.

    Raises:
        WrongTypeError: a value is of the wrong kind.
        UnknownNameError: a name or an option does not exist.
        ConfigError: a value is out of range, an option belongs somewhere else, or two ways of choosing are given.
    """
    backend, region = ways["backend"], ways["region"]
    if isinstance(pipeline, (str, os.PathLike)):
        do = "load it first: pipeline = DiffusionPipeline.from_pretrained(…)"
        raise kind_error("enable", "pipeline", "be a loaded pipeline", pipeline, do=do)
    if isinstance(backend, str) and backend.endswith(".json"):
        raise ConfigError(messages.FILE_AS_BACKEND, file=backend)
    if not (backend is None or isinstance(backend, str) or _opens(backend)):
        raise _no_backend(backend)
    check_value("enable", "region", region, Region | None)
    for kind in KINDS:
        _check_name(kind, ways[kind])
    if options and not isinstance(backend, str):
        others = ("profile", "group", "tune", "audit", "references")
        raise _misplaced(*next(iter(options.items())), ways, [*TARGETS, *ways, *others])
    check_tune(tune)
    check_value("enable", "audit", audit, Audited)
    given = {name: value for name, value in ways.items() if value is not None}
    aims = target.keywords
    whole = next((name for name in ("backend", "policy") if name in given), None)
    if audit and whole is not None:
        raise ConfigError(messages.AUDIT_BESIDE, audit=audit, given=whole)
    fixed = whole or (None if profile is None else "profile")
    if tune not in (None, False) and fixed is not None:
        raise ConfigError(messages.TUNE_BESIDE, tune=tune, given=fixed)
    if profile is not None and not isinstance(backend, str):
        aims["profile"] = profile
    _check_ways(given, aims)


def _opens(value: object) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "open", None)) and not isinstance(value, os.PathLike)


UNNAMED = {Spread: "speedup=2.0", Steps: "steps=(0, 2, 5)", MagCache: "ratios=…"}
"""Policies without a name, and an argument that each needs."""
KINDS = {"backend": "cache backend", "policy": "policy", "forecaster": "forecaster"}
"""Parameters that take a name, and the noun for each."""
NAMES: dict[str, Collection[str]] = {"backend": get_args(BackendName), "policy": POLICIES, "forecaster": FORECASTERS}


def _check_name(kind: str, value: object) -> None:
    if isinstance(value, type):
        raise kind_error("enable", kind, f"be a {kind}", value, do=f"write {kind}={value.__name__}()")
    if not isinstance(value, str) or value in NAMES[kind]:
        return
    elsewhere = [other for other in KINDS if value in NAMES[other]]
    if elsewhere:
        is_one = " or a ".join(KINDS[other] for other in elsewhere)
        write = " or ".join(f"{other}={value!r}" for other in elsewhere)
        raise ConfigError(f"enable({kind}={value!r}): {value!r} is a {is_one}, no {KINDS[kind]}; write {write}")
    unnamed = next((each for each in UNNAMED if each.__name__.lower() == value.replace("_", "").lower()), None)
    if kind == "policy" and unnamed is not None:
        raise ConfigError(messages.POLICY_WITHOUT_NAME, policy=value, kind=unnamed.__name__, argument=UNNAMED[unnamed])
    hint = "combinations go through policy=, forecaster=, region=" if kind == "backend" else ""
    raise UnknownNameError(KINDS[kind], value, NAMES[kind], hint=hint)


def _check_ways(given: Mapping[str, Any], aims: Mapping[str, Any]) -> None:
    """Refuse two ways of choosing: a backend, a policy with its axes, and targets exclude each other."""
    backend, policy = given.get("backend"), given.get("policy")
    if backend is not None and len(given) > 1:
        if {"policy", "forecaster"} & {*given}:
            raise ConfigError(messages.BACKEND_BESIDE_POLICY, backend=backend)
        name, what = [*given][1], "Strategy" if isinstance(backend, Strategy) else f"backend {backend!r}"
        raise ConfigError(messages.CHOICE_OF_BACKEND, name=name, value=given[name], backend=what)
    if not aims:
        if given and backend is None and policy is None:
            name = next(iter(given))
            is_region, default = name == "region", "Strategy.default(speedup=2)"
            write = f"speedup=2, region={given[name]!r}" if is_region else f"dataclasses.replace({default}, {name}=…)"
            raise ConfigError(messages.CHOICE_ALONE, name=name, write=write)
        return
    clash, aim = next((name for name in given if name != "region"), None), next(iter(aims))
    if clash is not None:
        raise _aim_beside(clash, aim, aims[aim], policy)
    if given.get("region", "step") not in ("step", "call"):
        raise field_error("enable", "region", "be 'step' or 'call' beside a target", repr(given["region"]))


_TYPES: dict[str, tuple[Mapping[str, Any], tuple[Any, ...]]] = {
    "policy": (POLICIES, (*POLICIES.builtin.values(), *UNNAMED)),
    "forecaster": (FORECASTERS, tuple(dict.fromkeys(FORECASTERS.builtin.values()))),
}
_ON_STRATEGY = {field.name for field in fields(Strategy)} - StrategyOptions.__annotations__.keys()


def _no_backend(given: object) -> WrongTypeError:
    """The error for a second argument that is neither the name of a backend nor a strategy."""
    remedies = {
        numbers.Real: f"for {given!r} times fewer steps write speedup={given!r}, for a number of steps computed_steps=",
        Profile: "write profile=",
        os.PathLike: f"write profile={str(given)!r}",
        Policy: f"write policy={given!r}",
        Mapping: "write the backend's name and then its options as keywords",
        Forecaster: f"write forecaster={given!r}",
    }
    is_object = not isinstance(given, (bool, type))
    known = f"known: {', '.join(sorted(get_args(BackendName)))}"
    if is_object and callable(getattr(given, "refresh", None)):
        known = "call its own enable(pipeline), or give its name"
    do = next((do for kind, do in remedies.items() if is_object and isinstance(given, kind)), known)
    return WrongTypeError(
        f"enable(pipeline, {given!r:.60}): the second argument must be the name of a cache backend or a Strategy, "
        f"got {kind_of(given)}; {do}"
    )


def _aim_beside(clash: str, aim: str, value: object, policy: object) -> ConfigError:
    """The error for a target beside a backend, or beside a policy or what goes with one."""
    in_schedule = {"speedup": "speedup", "computed_steps": "num_computed"}
    do = f"leave one of the two out; enable(pipeline, {aim}=…) is enough"
    if aim in in_schedule and (policy == "fixed" or isinstance(policy, (EveryNth, Spread, Steps))):
        do = f"put it into the schedule: policy=Spread({in_schedule[aim]}={value!r})"
    elif aim == "tolerance" and policy == "error_control":
        do = f"put it into the policy: policy=ErrorControl(tolerance={value!r})"
    clash = "a backend" if clash == "backend" else clash
    return ConfigError(f"enable({aim}=…): it chooses the whole strategy, so {clash} cannot be given with it; {do}")


def _misplaced(name: str, value: object, ways: Mapping[str, object], parameters: list[str]) -> OmniReuseError:
    """The error for a keyword that is no parameter of `enable`, without a backend."""
    shown = f"enable({name}={value!r:.60})"
    if name == "num_inference_steps":
        return ConfigError(f"{shown}: a pipeline is told its number of steps when it is called, not here")
    if name == "steps" and isinstance(value, numbers.Integral) and ways["policy"] is None:
        return ConfigError(
            f"{shown}: a pipeline is told its number of steps when it is called; to compute that many of them, write "
            f"computed_steps={value!r}"
        )
    if name in _ON_STRATEGY:
        return ConfigError(
            f"{shown}: {name} is a field of Strategy; write enable(pipeline, Strategy(policy=…, {name}={value!r:.60}))"
        )
    for kind, (registry, types) in _TYPES.items():
        choice = ways[kind]
        meant = registry.get(choice) if isinstance(choice, str) else type(choice)
        having = [each for each in types if name in {field.name for field in fields(each)}]
        if meant in having:
            having = [meant]
        elif choice is not None or name in CacheOptions.__annotations__:
            continue
        if having:
            names = [each.__name__ for each in having]
            return ConfigError(
                f"{shown}: {name} is a field of the {kind} {' or '.join(names)}; "
                f"write {kind}={names[0]}({name}={value!r:.60})"
            )
    from omnireuse.named.step_caches import STEP_CACHES  # who makes no mistake does not load the named caches

    readers = [known for known, cache in STEP_CACHES.items() if name in cache.options]
    if readers:
        return ConfigError(
            f"{shown}: {name} is an option of the cache backend {' or '.join(map(repr, readers))}; "
            f"write enable(pipeline, {readers[0]!r}, {name}={value!r:.60})"
        )
    listed = [each for each in parameters if each != "backend"]
    return UnknownNameError("option of enable", name, (*listed, *CacheOptions.__annotations__), listed=listed)
