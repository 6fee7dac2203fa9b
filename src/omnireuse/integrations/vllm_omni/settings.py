"""The settings of reuse: a server's ``--cache-config`` and a request's ``extra_args``, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from omnireuse.diffusion.pipelines import DEFAULT
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Promise
from omnireuse.diffusion.targets import check_targets, strategy_for
from omnireuse.errors import ConfigError, UnknownNameError, WrongTypeError

__all__ = ["KEY", "Plan", "RequestSettings", "ServerSettings"]

KEY = "omnireuse"
"""Name of the backend, and of a request's settings in its ``extra_args``."""

_TARGETS = ("speedup", "computed_steps", "quality", "tolerance")
_SERVER_OPTIONS = (*_TARGETS, "profile", "align")


@dataclass(frozen=True)
class Plan:
    """The strategy that one request follows.

    Attributes:
        strategy: None where the request computes every step.
        name: for logs and metrics.
        promise: what the profile says of its quality, if it has one.
    """

    strategy: Strategy | None
    name: str
    promise: Promise | None = None


OFF = Plan(strategy=None, name="off")


@dataclass(frozen=True)
class RequestSettings:
    """What one request asks for in ``extra_args={"omnireuse": …}``.

    Attributes:
        off: compute every step.
        targets: replaces the server's target: one of speedup, computed_steps, quality and tolerance. Empty: the
            server's own.
    """

    off: bool = False
    targets: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> RequestSettings:
        """The settings in a request's extra arguments.

        Raises:
            ConfigError: a value out of range, or more than one target.
            UnknownNameError: a key that is no setting.
            WrongTypeError: settings of another kind.
        """
        given = (extra_args or {}).get(KEY)
        if given is None:
            return cls()
        if given in ("off", False):
            return cls(off=True)
        if not isinstance(given, Mapping):
            raise WrongTypeError(
                f'extra_args({KEY}={given!r:.60}): {KEY} must be "off" or a mapping with one of {", ".join(_TARGETS)}, '
                f"got {type(given).__name__}"
            )
        for name in given:
            if name not in _TARGETS:
                raise UnknownNameError(f"setting of extra_args[{KEY!r}]", name, _TARGETS)
        check_targets(**given)
        if len(given) > 1:
            raise ConfigError(f"extra_args({KEY}={dict(given)!r}): {KEY} must have one target, got {len(given)}")
        return cls(targets=tuple(given.items()))


class ServerSettings:
    """What the server was started with: a target, a profile, or neither for the default.

    With ``"align": true`` the computed steps of a request may move by one step, so that requests of a continuous batch
    compute in the same waves. A picture then depends a little on the requests beside it.

    Args:
        cache_config: a mapping, or vllm-omni's `DiffusionCacheConfig`.

    Raises:
        ConfigError: a value out of range.
        UnknownNameError: a key that is no option.
    """

    def __init__(self, cache_config: Any) -> None:
        self.options = _given(cache_config)
        for name in self.options:
            if name not in _SERVER_OPTIONS:
                raise UnknownNameError(
                    "option of --cache-config for the cache backend omnireuse", name, _SERVER_OPTIONS
                )
        self.align = self.options.pop("align", False)
        if not isinstance(self.align, bool):
            raise WrongTypeError(f"--cache-config(align={self.align!r:.60}): align must be true or false")
        check_targets(**{name: self.options.get(name) for name in _TARGETS})
        self._plans: dict[tuple[tuple[str, float], ...], Plan] = {}

    def plan(self, request: RequestSettings, pipeline: Any) -> Plan:
        """What a request follows; the plans are kept, since many requests ask for the same.

        Args:
            request: its settings.
            pipeline: that serves it.

        Raises:
            ConfigError: a target that cannot be reached; it says what can be had.
            StateError: a profile of another pipeline.
        """
        if request.off:
            return OFF
        if request.targets not in self._plans:
            self._plans[request.targets] = self._made(request, pipeline)
        return self._plans[request.targets]

    def enable_arguments(self, request: RequestSettings) -> dict[str, Any]:
        """The same as arguments of `omnireuse.enable`."""
        if not request.targets:
            return dict(self.options)
        kept = {name: value for name, value in self.options.items() if name not in _TARGETS}
        return {**kept, **dict(request.targets)}

    def _made(self, request: RequestSettings, pipeline: Any) -> Plan:
        arguments = self.enable_arguments(request)
        if not arguments:
            return Plan(DEFAULT, "default")
        wanted = {name: arguments.get(name) for name in (*_TARGETS, "profile")}
        strategy, name, promise = strategy_for(pipeline, **wanted)
        return Plan(strategy, name, promise)


def _given(cache_config: Any) -> dict[str, Any]:
    """The options that somebody wrote down. vllm-omni turns a mapping into a dataclass with the options of its own
    backends, and keeps the rest beside them."""
    if cache_config is None:
        return {}
    if isinstance(cache_config, Mapping):
        return dict(cache_config)
    if not is_dataclass(cache_config) or isinstance(cache_config, type):
        raise WrongTypeError(f"--cache-config must be a mapping, got {type(cache_config).__name__}")
    default = type(cache_config)()
    own = {
        field.name: getattr(cache_config, field.name)
        for field in fields(cache_config)
        if not field.name.startswith("_") and getattr(cache_config, field.name) != getattr(default, field.name)
    }
    return {**own, **getattr(cache_config, "_extra_params", {})}
