"""Errors for wrong arguments of `enable`, with the likely intention and the right way to write it."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from omnireuse.arguments.choices import BackendName, CacheOptions, StrategyOptions
from omnireuse.base.validation import kind_of
from omnireuse.errors import ConfigError, OmniReuseError, UnknownNameError, WrongTypeError
from omnireuse.forecasters import FORECASTERS, Forecaster
from omnireuse.loop.strategy import Strategy
from omnireuse.named.step_caches import STEP_CACHES
from omnireuse.policies import POLICIES, EveryNth, MagCache, Spread, Steps
from omnireuse.policies.base import Policy
from omnireuse.profiles.profile import Profile

__all__ = ["aim_beside", "misplaced", "no_backend"]

_NAMES: dict[str, Mapping[str, Any]] = {"policy": POLICIES, "forecaster": FORECASTERS}
_TYPES: dict[str, tuple[Any, ...]] = {
    "policy": (*POLICIES.builtin.values(), MagCache, Spread, Steps),
    "forecaster": tuple(dict.fromkeys(FORECASTERS.builtin.values())),
}
_ON_STRATEGY = {field.name for field in fields(Strategy)} - StrategyOptions.__annotations__.keys()


def no_backend(given: object) -> WrongTypeError:
    """The error for a second argument that is neither the name of a backend nor a strategy."""
    remedies = {
        numbers.Real: f"to ask for a number of computed steps write speedup={given!r}",
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


def aim_beside(clash: str, aim: str, value: object, policy: object) -> ConfigError:
    """The error for a target beside a backend, or beside a policy or what goes with one."""
    in_schedule = {"speedup": "speedup", "computed_steps": "num_computed"}
    do = f"leave one of the two out; enable(pipeline, {aim}=…) is enough"
    if aim in in_schedule and (policy == "fixed" or isinstance(policy, (EveryNth, Spread, Steps))):
        do = f"put it into the schedule: policy=Spread({in_schedule[aim]}={value!r})"
    elif aim == "tolerance" and policy == "error_control":
        do = f"put it into the policy: policy=ErrorControl(tolerance={value!r})"
    clash = "a backend" if clash == "backend" else clash
    return ConfigError(f"enable({aim}=…): it chooses the whole strategy, so {clash} cannot be given with it; {do}")


def misplaced(name: str, value: object, ways: Mapping[str, object], parameters: list[str]) -> OmniReuseError:
    """The error for a keyword that is no parameter of `enable`, without a backend."""
    shown = f"enable({name}={value!r:.60})"
    if name == "num_inference_steps":
        return ConfigError(f"{shown}: a pipeline is told its number of steps when it is called, not here")
    if name in _ON_STRATEGY:
        return ConfigError(
            f"{shown}: {name} is a field of Strategy; write enable(pipeline, Strategy(policy=…, {name}={value!r:.60}))"
        )
    for kind, types in _TYPES.items():
        choice = ways[kind]
        meant = _NAMES[kind].get(choice) if isinstance(choice, str) else type(choice)
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
    readers = [known for known, cache in STEP_CACHES.items() if name in cache.options]
    if readers:
        return ConfigError(
            f"{shown}: {name} is an option of the cache backend {' or '.join(map(repr, readers))}; "
            f"write enable(pipeline, {readers[0]!r}, {name}={value!r:.60})"
        )
    listed = [each for each in parameters if each != "backend"]
    return UnknownNameError("option of enable", name, (*listed, *CacheOptions.__annotations__), listed=listed)
