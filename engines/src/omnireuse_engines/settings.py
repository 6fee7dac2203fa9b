"""The settings of reuse in an engine: those of the server, and the wishes of one request. Both are checked first."""

from __future__ import annotations

import json
import logging
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from omnireuse import Profile, Strategy, enable
from omnireuse.arguments.targets import strategy_for
from omnireuse.arguments.tune import check_tune, is_off_by_environment
from omnireuse.base.environment import switch_of
from omnireuse.base.validation import is_number
from omnireuse.errors import ConfigError, UnknownNameError, WrongTypeError
from omnireuse.named.options import DiffusionCacheConfig
from omnireuse.policies.spread import nearest
from omnireuse.profiles.conditions import read_weights_anew
from omnireuse.profiles.target import TARGETS, Target
from omnireuse.tuning.loops import OFF, RequestPlan
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.store import Store
from omnireuse_engines.host import is_switched_off
from omnireuse_engines.modulation import Modulation

__all__ = ["KEY", "RequestSettings", "ServerSettings", "options_in"]

logger = logging.getLogger("omnireuse")

KEY = "omnireuse"
"""Name of a request's settings among its extra arguments, and of the backend if an engine names one."""

CACHE_OPTIONS = tuple(each.name for each in fields(DiffusionCacheConfig))
"""The keys beside ``"backend"``: the options of the named caches."""
LIMITS = ("default", "max_speedup", "request_targets")
"""An operator's rules for requests."""
FEWEST = 2
"""Computed steps of any run with reuse: one shows nothing to forecast from."""
NEAR = 0.8
"""Likeness of a name to `KEY`, in [0, 1], from which it is taken for a slip of the pen: "omni_reuse" has 0.95, and
"reuse" 0.71."""
MOST_PLANS = 256
"""Plans that a server keeps. Requests may ask for more numbers than memory holds."""


@dataclass(frozen=True)
class RequestSettings:
    """One request's wishes in ``{"omnireuse": …}`` among its extra arguments.

    Attributes:
        off: compute every step.
        target: replaces the server's target, if it is given.
    """

    off: bool = False
    target: Target = field(default_factory=Target)

    @property
    def kind(self) -> str:
        """For counters: "off", "server" for the server's own target, or one of `TARGETS`."""
        return "off" if self.off else self.target.name or "server"

    @classmethod
    def of(cls, extras: Mapping[str, Any] | None) -> RequestSettings:
        """The settings in a request's extra arguments. Engines and their APIs have several names for those, so errors
        name the key alone.
        """
        if extras is not None and not isinstance(extras, Mapping):
            raise WrongTypeError(f"a request's extra arguments must be a mapping, got {type(extras).__name__}")
        _refuse_misspelt(extras or ())
        given = (extras or {}).get(KEY)
        if given is None:
            return cls()
        if (switch := switch_of(given)) is not None:
            return cls(off=not switch)
        if not isinstance(given, Mapping):
            raise WrongTypeError(
                f'{KEY}={given!r:.60}: {KEY} must be "on", "off" or a mapping with one of '
                f"{', '.join(TARGETS)}, got {type(given).__name__}"
            )
        for name in given:
            if name not in TARGETS:
                raise UnknownNameError(f"setting of a request's {KEY!r}:", str(name)[:60], TARGETS)
        _refuse_null(given, place=KEY)
        if len(given) > 1:
            raise ConfigError(f"{KEY}={dict(given)!r:.120}: {KEY} must have one target, got {len(given)}")
        return cls(target=Target.of(KEY, **given))


def options_in(text: str | None, *, place: str) -> dict[str, Any]:
    """The options of a server in an environment variable: "on" for the default, a JSON object, or nothing or "off" for
    a server in which only those requests reuse that ask for it."""
    word = (text or "").strip() or "off"
    if (switch := switch_of(word)) is not None:
        return {"default": "on" if switch else "off"}
    try:
        options = json.loads(word)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ConfigError(
            f'{place}={word!r:.60}: the variable must be "on", "off" or a JSON object such as {{"speedup": 2}}'
        )
    return options


class ServerSettings:
    """The settings of a server: a target, a profile, a named cache with its options, or none for the default.

    ``"default": "off"`` serves a request without a word of its own as "off"; its "on" means the server's settings.
    ``"max_speedup": 4`` is the most that a request may ask for, as `speedup` or as `computed_steps`.
    ``"request_targets": ["speedup"]`` are the targets that requests may name. Without them requests are free.

    ``"tune": false`` measures nothing, and a number is how many pictures are measured at most (`enable`).
    ``"modulation": true`` computes what sees only the timestep once; with "cpu" or "disk" its weights leave the device.

    Args:
        place: where they were written down, for errors.
        further: names of options that the engine's own integration reads from `options`.
    """

    def __init__(self, options: Mapping[str, Any], *, place: str, further: tuple[str, ...] = ()) -> None:
        cache = ("backend", *CACHE_OPTIONS) if "backend" in options else ("backend",)
        known = (*TARGETS, "profile", "tune", "modulation", *LIMITS, *cache, *further)
        for name in options:
            if name not in known:
                raise UnknownNameError(f"option of {place} for omnireuse", name, known)
        _refuse_null({name: value for name, value in options.items() if name not in cache}, place=place)
        is_switched_off()  # refuses a switch that cannot work
        self.options, self.place = dict(options), place
        self._target = Target.of(place, **{name: self.options.get(name) for name in TARGETS})
        self.default, self._max_speedup, self._targets = (self.options.pop(name, None) for name in LIMITS)
        self._check_limits()
        self.tune: bool | int | None = self.options.pop("tune", None)
        self._check_tune()
        self.modulation = Modulation(self.options.pop("modulation", False), place=place)
        self._profile: Profile | None = None
        self._plans: OrderedDict[Target, RequestPlan] = OrderedDict()

    def wanted(self, extras: Mapping[str, Any] | None) -> RequestSettings:
        """The settings in a request's extra arguments; without a word of its own, those of the server."""
        wanted = RequestSettings.of(extras)
        is_off = is_switched_off() or (self.default == "off" and (extras or {}).get(KEY) is None)
        return RequestSettings(off=True) if is_off else wanted

    def admit(
        self, extras: Mapping[str, Any] | None, *, steps: int | None, region: str | None = None
    ) -> tuple[RequestSettings, RequestPlan]:
        """A request's settings, and the plan of its target, made without the pipeline, which may be in another process;
        `OFF` if it has no target of its own.

        Args:
            extras: its extra arguments.
            steps: its number of steps; None if it names none.
            region: as of `plan`.

        Raises:
            ConfigError: the operator does not allow them, a run of so many steps cannot give it, or nothing reaches it.
        """
        wanted = self.wanted(extras)
        self._check_request(wanted, steps)
        return wanted, self.plan(wanted, None, region=region) if wanted.target else OFF

    def _check_request(self, request: RequestSettings, steps: int | None) -> None:
        name, value = request.target.name, request.target.value
        if not name:
            return
        asked = f"{KEY}({name}={value!r})"
        if self._targets is not None and name not in self._targets:
            allowed = " or ".join(self._targets) or '"on" or "off"'
            raise ConfigError(f"{asked}: {KEY} must be {allowed} on this server (request_targets), got {name}")
        if self._max_speedup is not None and not request.target.is_of_results:
            if name == "computed_steps" and steps is None:
                raise ConfigError(
                    f"{asked}: num_inference_steps must be given with computed_steps on this server, which limits "
                    "speed-ups (max_speedup)"
                )
            speedup = value if steps is None or name == "speedup" else steps / value
            if speedup > self._max_speedup:
                raise ConfigError(
                    f"{asked}: the speed-up must be at most {self._max_speedup:g} on this server (max_speedup), got "
                    f"{speedup:g}"
                )
        if steps is not None:
            _refuse_unreachable(name, value, steps)

    def registry(self, command: str) -> PlanRegistry | None:
        """A registry of tuned plans for requests that follow the server's own settings; None if nothing is tuned.

        Args:
            command: what makes the plans, for their files.
        """
        options = None if is_off_by_environment() else check_tune(self.tune)
        return None if options is None else PlanRegistry(pictures=options.pictures, store=Store(), command=command)

    def _check_tune(self) -> None:
        check_tune(self.tune)
        fixed = [name for name in ("backend", "profile", "quality", "tolerance") if name in self.options]
        if fixed and self.tune not in (None, False):
            raise ConfigError(
                f"{self.place}(tune={self.tune!r}): tuning chooses the plan of the default, speedup= and "
                f"computed_steps=, and {fixed[0]} has chosen one; leave one of the two out"
            )
        if fixed:
            self.tune = False

    def _check_limits(self) -> None:
        most, targets = self._max_speedup, self._targets
        if self.default is not None:
            if (switch := switch_of(self.default)) is None:
                raise ConfigError(
                    f'{self.place}(default={self.default!r:.60}): default must be "on" or "off", got '
                    f"{self.default!r:.60}"
                )
            self.default = "on" if switch else "off"
        if most is not None and not (is_number(most) and most >= 1):
            raise ConfigError(
                f"{self.place}(max_speedup={most!r:.60}): max_speedup must be a finite number of at least 1, got "
                f"{most!r:.60}"
            )
        if targets is None:
            return
        if not isinstance(targets, (list, tuple)):
            raise WrongTypeError(
                f"{self.place}(request_targets={targets!r:.60}): request_targets must be a list of {', '.join(TARGETS)}"
            )
        for name in targets:
            if name not in TARGETS:
                raise UnknownNameError(f"target in request_targets of {self.place}", name, TARGETS)

    def plan(self, request: RequestSettings, pipeline: object, *, region: str | None = None) -> RequestPlan:
        """The plan of a request. Plans are kept, since many requests ask for the same.

        Args:
            pipeline: that serves it; None if it is elsewhere: a profile is then not checked against it.
            region: "step" or "call"; None for the one that serves the pipeline.
        """
        if request.off:
            return OFF
        plan = self._plans.pop(request.target, None)
        if plan is None:
            plan = self._made(request, pipeline, region)
        self._plans[request.target] = plan
        if len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)
        return plan

    def forget(self) -> None:
        """Ask anew for all that depends on weights: they were changed in a way that torch knows nothing of."""
        read_weights_anew()
        self._plans.clear()
        self.modulation.forget()

    def enable_arguments(self, request: RequestSettings) -> dict[str, Any]:
        """The same as arguments of `omnireuse.enable`."""
        profile = {} if (known := self.profile) is None else {"profile": known}
        return {**profile, **request.target.keywords} if request.target else {**self.options, **profile}

    @property
    def profile(self) -> Profile | None:
        """The server's profile, read once."""
        given = self.options.get("profile")
        if self._profile is None and given is not None:
            self._profile = given if isinstance(given, Profile) else Profile.from_pretrained(given)
        return self._profile

    def announce(self, pipeline: object, plan: str, *, asked_in: str) -> None:
        """Say once whom the server serves.

        Args:
            plan: name of the server's own.
            asked_in: where a request asks for reuse.
        """
        whom = f" for requests that ask for it in {asked_in}" if self.default == "off" else ""
        logger.info("omnireuse serves %s: %s%s", type(pipeline).__name__, plan, whom)

    def _made(self, request: RequestSettings, pipeline: object, region: str | None) -> RequestPlan:
        arguments, target = self.enable_arguments(request), request.target or self._target
        if not arguments:
            return RequestPlan(Strategy.default(), "default")
        if request.target.quality is not None and self.profile is None:
            raise ConfigError(
                f"{KEY}(quality={target.value!r}): a quality can only be promised by a profile, and this server has "
                "none; ask for tolerance, speedup or computed_steps"
            )
        if "backend" in arguments:
            with enable(pipeline, **arguments) as handle:
                return RequestPlan(handle.strategy, handle.name)
        place = KEY if request.target else self.place
        chosen = strategy_for(pipeline, target, profile=arguments.get("profile"), region=region, place=place)
        return RequestPlan(chosen.strategy, chosen.name, chosen.promise)


def _refuse_misspelt(names: Iterable[object]) -> None:
    """Refuse a name that is nearly `KEY`: an engine hands on what it does not know, and nobody would hear it."""
    for name in names:
        if isinstance(name, str) and name != KEY and get_close_matches(name.casefold(), [KEY], cutoff=NEAR):
            raise UnknownNameError("extra argument of a request", name[:60], [KEY])


def _refuse_null(options: Mapping[str, Any], *, place: str) -> None:
    for name, value in options.items():
        if value is None:
            what = "a number" if name in TARGETS else "a value"
            raise WrongTypeError(f"{place}({name}=None): {name} must be {what}, got None; or leave it out")


def _refuse_unreachable(name: str, value: float, steps: int) -> None:
    """Refuse fewer computed steps than a run needs, or more than it has."""
    if name == "speedup" and value > 1 and nearest(steps, value) < FEWEST:
        raise ConfigError(
            f"{KEY}(speedup={value!r}): speedup must leave at least {FEWEST} of the {steps} steps computed, got "
            f"{nearest(steps, value)}; ask for at most {math.floor(100 * steps / (FEWEST - 0.5)) / 100:g}"
        )
    if name == "computed_steps" and value > steps:
        raise ConfigError(
            f"{KEY}(computed_steps={value:g}): computed_steps must be at most the {steps} steps of the run, got "
            f"{value:g}; ask for fewer to reuse some"
        )
