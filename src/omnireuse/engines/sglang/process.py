"""Reuse in one process of SGLang: its permission, the requests that want it, and its results."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from omnireuse.engines.host import check_host
from omnireuse.engines.request import STRATEGY, count_request
from omnireuse.engines.settings import KEY, RequestPlan, RequestSettings, ServerSettings
from omnireuse.engines.sglang.tuning import RequestTuner
from omnireuse.engines.whole import WholeRequests
from omnireuse.errors import ConfigError

__all__ = ["FIELD", "TESTED", "VARIABLE", "Process", "SGLangSettings", "extras_of"]

logger = logging.getLogger("omnireuse")

VARIABLE = "OMNIREUSE_SGLANG"
"""The environment variable with the server's settings: every process of the server inherits it."""

FIELD = "diffusers_kwargs"
"""The request's field with its settings. SGLang takes it from its HTTP API, its command line and Python, hands it to
the workers, and batches only requests in which it is equal."""


class SGLangSettings(ServerSettings):
    """The settings of a server.

    Args:
        text: of the environment variable: "on" for the default, a JSON object with one target of `omnireuse.enable` and
            `profile`, or nothing or "off" for a server in which only those requests reuse that ask for it.

    Attributes:
        is_set: whether the server was asked to serve reuse.
    """

    def __init__(self, text: str | None) -> None:
        word = (text or "off").strip()
        self.is_set = word != "off"
        super().__init__({"default": word} if word in ("on", "off") else _decoded(word), place=VARIABLE)
        self.check(RequestSettings())

    def wanted(self, extras: Mapping[str, Any] | None) -> RequestSettings:
        """The settings of a request; without a word of its own, those of the server."""
        request = super().wanted(extras)
        self.check(request)
        return request

    def check(self, request: RequestSettings) -> None:
        """Refuse a target that nothing can reach. What a profile can reach shows with its pipeline."""
        if "profile" not in self.options:
            self.plan(request, None, region="step")


def extras_of(request: Any) -> Mapping[str, Any]:
    """The extra arguments of SGLang's sampling parameters or of its request."""
    extra = getattr(request, "extra", None)
    given = extra.get(FIELD) if isinstance(extra, Mapping) else None
    given = given if given is not None else getattr(request, FIELD, None)
    return given if isinstance(given, Mapping) else {}


def _decoded(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ConfigError(
            f'{VARIABLE}={text!r:.60}: the variable must be "on", "off" or a JSON object such as {{"speedup": 2}}'
        )
    return options


_OTHER_CACHES = ("enable_teacache", "enable_spectrum", "enable_cache_dit")

TESTED = ("0.5.23",)
"""Releases of SGLang that the tests run in."""


class Process:
    """Reuse in one process of SGLang.

    Attributes:
        missing: hooks that SGLang could not apply.
        served: requests whose steps were decided on.
        not_served: requests that asked for reuse from a pipeline that denoises in a loop of its own.
    """

    def __init__(self) -> None:
        self.missing: tuple[str, ...] = ()
        self.served = 0
        self.not_served = 0
        self._settings: SGLangSettings | None = None
        self._replicas = 1
        self._whole: WeakKeyDictionary[Any, WholeRequests] = WeakKeyDictionary()
        self._tuner: RequestTuner | None = None
        self._warned: set[str] = set()

    @property
    def settings(self) -> SGLangSettings:
        """Of the server, from the environment."""
        if self._settings is None:
            self._settings = SGLangSettings(os.environ.get(VARIABLE))
        return self._settings

    def start(self, server_args: Any, *, cache_dit: bool) -> None:
        """Read the settings of a server that starts, and refuse those that cannot work in it.

        Args:
            cache_dit: whether every request of the server uses cache-dit.
        """
        for whole in self._whole.values():
            whole.end()
        self._whole.clear()
        self._settings, self._replicas, self._tuner = None, server_args.dp_size, None
        if not self.settings.is_set:
            if self.missing:
                logger.error("omnireuse cannot get into this SGLang; not hooked: %s", ", ".join(self.missing))
            return
        check_host("sglang", TESTED, self.missing, asked=VARIABLE)
        if cache_dit:
            raise ConfigError(
                f"{VARIABLE} is set, and the server uses cache-dit, too: one cache would reuse what the other made up; "
                f"unset {VARIABLE}, or --cache-dit-config and SGLANG_CACHE_DIT_ENABLED"
            )
        if "profile" not in self.settings.options:
            self.plan(RequestSettings())

    def announce(self, pipeline: Any, *, is_native: bool) -> None:
        """Say once which pipeline is served."""
        if is_native and "profile" in self.settings.options:
            raise ConfigError(
                f"{VARIABLE}(profile=…): a profile is made of a pipeline of diffusers, and {type(pipeline).__name__} "
                "is SGLang's own; start the server with --backend diffusers, or give speedup= or computed_steps="
            )
        if self.settings.default != "off":
            said = ", ".join(f"{name}={value}" for name, value in self.settings.options.items()) or "default"
            logger.info("omnireuse serves every request of %s: %s", type(pipeline).__name__, said)
        else:
            logger.info("omnireuse serves the requests of %s that ask for it in %s", type(pipeline).__name__, FIELD)

    def admit(self, params: Any) -> None:
        """Refuse the settings of a request that cannot be met."""
        wanted = self.wanted(params)
        self.settings.check_limits(wanted, steps=getattr(params, "num_inference_steps", None))

    def wanted(self, request: Any, *, cache_dit: bool = False) -> RequestSettings:
        """A request's wishes, checked.

        Args:
            cache_dit: whether it gets cache-dit, by its own word or the server's.
        """
        wanted = self.settings.wanted(extras_of(request))
        if wanted.off:
            return wanted
        check_host("sglang", TESTED, self.missing, asked=f"{FIELD}({KEY}=…)")
        others = [name for name in _OTHER_CACHES if getattr(request, name, None)]
        if cache_dit and "enable_cache_dit" not in others:
            others.append("cache-dit")
        if others:
            raise ConfigError(
                f"{others[0]}: the request gets omnireuse, too, and one cache would reuse what the other made up; "
                f'leave {others[0]} out, or ask for {FIELD}={{"{KEY}": "off"}}'
            )
        return wanted

    def plan(self, wanted: RequestSettings) -> RequestPlan:
        """The plan of a request on one of SGLang's own pipelines."""
        plan = self.settings.plan(wanted, None, region="step")
        policy = None if plan.strategy is None else plan.strategy.policy
        if policy is None or not (policy.needs_drift or policy.needs_error):
            return plan
        if self._replicas > 1:
            raise ConfigError(
                f"omnireuse in SGLang: {plan.name} measures at each step, and the ranks of one of {self._replicas} "
                "replicas are no group of their own; give speedup= or computed_steps=, whose steps are known ahead"
            )
        return replace(plan, group=dist.group.WORLD) if dist.is_initialized() and dist.get_world_size() > 1 else plan

    def tuner(self, wanted: RequestSettings) -> RequestTuner | None:
        """Tuning of SGLang's own pipelines, for requests that follow the server's own settings; None if it is off.

        Requests that ask for something else are not measured: the wish of one client would cost the others the time of
        its shadows.
        """
        if wanted.target or not self.settings.pictures:
            return None
        if self._tuner is None:
            self._tuner = RequestTuner(self.settings.pictures)
        return self._tuner

    def whole(self, stage: Any) -> WholeRequests:
        """Reuse on the diffusers pipeline of a stage."""
        if stage not in self._whole:
            self._whole[stage] = WholeRequests(self.settings)
        return self._whole[stage]

    def report(self, request: Any, wanted: RequestSettings, figures: dict[str, Any]) -> None:
        """Report the reuse of a request: in the log, in its metrics, and among the counters of a server that
        exposes them (``--enable-metrics``), if SGLang has made those of this rank."""
        self.served += 1
        if import_module("sglang.multimodal_gen.runtime.observability.metrics").get_metrics() is not None:
            count_request(figures, wanted.kind)
        computed, reused = (int(figures[f"{KEY}_steps_{did}"]) for did in ("computed", "reused"))
        if request.metrics is not None:
            setattr(request.metrics, KEY, figures)
        if not request.suppress_logs and not (dist.is_initialized() and dist.get_rank()):
            logger.info("omnireuse computed %d of %d steps: %s", computed, computed + reused, figures[STRATEGY])

    def pass_by(self, pipeline: Any) -> None:
        """Count a request that asked for reuse and got none; warn once for each kind of pipeline."""
        self.not_served += 1
        name = type(pipeline).__name__
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("omnireuse cannot serve %s, which denoises in its own loop: every step is computed", name)
