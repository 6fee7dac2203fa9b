"""The settings of reuse in an engine: what a server was started with, and what one request asks for, checked first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch.distributed as dist

from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.diffusion.pipelines import DEFAULT, enable
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Promise
from omnireuse.diffusion.targets import check_targets, strategy_for
from omnireuse.errors import ConfigError, UnknownNameError, WrongTypeError

__all__ = ["KEY", "OFF", "TARGETS", "Plan", "RequestSettings", "ServerSettings"]

KEY = "omnireuse"
"""Name of a request's settings among its extra arguments, and of the backend where an engine names one."""

CACHE_OPTIONS = tuple(field.name for field in fields(DiffusionCacheConfig))
"""What may stand beside ``"backend"``: the options of the named caches."""
TARGETS = ("speedup", "computed_steps", "quality", "tolerance")


@dataclass(frozen=True)
class Plan:
    """The strategy that one request follows.

    Attributes:
        strategy: None where the request computes every step.
        name: for logs and metrics.
        promise: what the profile says of its quality, if it has one.
        group: the ranks that decide together; None where each decides alone.
    """

    strategy: Strategy | None
    name: str
    promise: Promise | None = None
    group: dist.ProcessGroup | None = None


OFF = Plan(strategy=None, name="off")


@dataclass(frozen=True)
class RequestSettings:
    """What one request asks for in ``{"omnireuse": …}`` among its extra arguments.

    Attributes:
        off: compute every step.
        targets: replaces the server's target: one of speedup, computed_steps, quality and tolerance. Empty: the
            server's own.
    """

    off: bool = False
    targets: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, extras: Mapping[str, Any] | None, *, field: str = "extra_args") -> RequestSettings:
        """The settings in a request's extra arguments.

        Args:
            extras: the extra arguments.
            field: the request's field that holds them, for errors.

        Raises:
            ConfigError: a value out of range, or more than one target.
            UnknownNameError: a key that is no setting.
            WrongTypeError: settings of another kind.
        """
        given = (extras or {}).get(KEY)
        if given is None or given is True or given == "on":
            return cls()
        if given is False or given == "off":
            return cls(off=True)
        if not isinstance(given, Mapping):
            raise WrongTypeError(
                f'{field}({KEY}={given!r:.60}): {KEY} must be "on", "off" or a mapping with one of '
                f"{', '.join(TARGETS)}, got {type(given).__name__}"
            )
        for name in given:
            if name not in TARGETS:
                raise UnknownNameError(f"setting of {field}[{KEY!r}]", name, TARGETS)
        check_targets(**given)
        if len(given) > 1:
            raise ConfigError(f"{field}({KEY}={dict(given)!r}): {KEY} must have one target, got {len(given)}")
        return cls(targets=tuple(given.items()))


class ServerSettings:
    """What a server was started with: a target, a profile, a named cache with its options, or none for the default.

    Args:
        options: by name.
        place: where they were written down, for errors.
        further: names of options that the engine's own integration reads from `options`.

    Raises:
        ConfigError: a value out of range.
        UnknownNameError: a key that is no option.
    """

    def __init__(self, options: Mapping[str, Any], *, place: str, further: tuple[str, ...] = ()) -> None:
        cache = ("backend", *CACHE_OPTIONS) if "backend" in options else ("backend",)
        known = (*TARGETS, "profile", *cache, *further)
        for name in options:
            if name not in known:
                raise UnknownNameError(f"option of {place} for omnireuse", name, known)
        self.options, self.place = dict(options), place
        check_targets(**{name: self.options.get(name) for name in TARGETS})
        self._plans: dict[tuple[tuple[str, float], ...], Plan] = {}

    def plan(self, request: RequestSettings, pipeline: Any, *, region: str | None = None) -> Plan:
        """What a request follows; the plans are kept, since many requests ask for the same.

        Args:
            request: its settings.
            pipeline: that serves it; unused without a profile where the region is given.
            region: "step" or "call"; None for the one that serves the pipeline.

        Raises:
            ConfigError: a target that cannot be reached; it says what can be had.
            StateError: a profile of another pipeline.
        """
        if request.off:
            return OFF
        if request.targets not in self._plans:
            self._plans[request.targets] = self._made(request, pipeline, region)
        return self._plans[request.targets]

    def enable_arguments(self, request: RequestSettings) -> dict[str, Any]:
        """The same as arguments of `omnireuse.enable`."""
        if not request.targets:
            return dict(self.options)
        kept = {name: value for name, value in self.options.items() if name == "profile"}
        return {**kept, **dict(request.targets)}

    def _made(self, request: RequestSettings, pipeline: Any, region: str | None) -> Plan:
        arguments = self.enable_arguments(request)
        if not arguments:
            return Plan(DEFAULT, "default")
        if "backend" in arguments:
            with enable(pipeline, **arguments) as handle:
                return Plan(handle.strategy, handle.name)
        wanted = {name: arguments.get(name) for name in (*TARGETS, "profile")}
        chosen = strategy_for(pipeline, region=region, **wanted)
        return Plan(chosen.strategy, chosen.name, chosen.promise)
