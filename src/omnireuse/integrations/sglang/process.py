"""Reuse in one process of SGLang: whether it may work there, which requests want it, and what it did."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from omnireuse.errors import ConfigError
from omnireuse.integrations.host import check_host
from omnireuse.integrations.settings import KEY, Plan, RequestSettings
from omnireuse.integrations.sglang.settings import FIELD, VARIABLE, SGLangSettings, extras_of
from omnireuse.integrations.whole import WholeRequests

__all__ = ["TESTED", "Reuse"]

logger = logging.getLogger("omnireuse")

_OTHER_CACHES = ("enable_teacache", "enable_spectrum", "enable_cache_dit")

TESTED = ("0.5.23",)
"""Releases of SGLang that the tests run in."""


class Reuse:
    """What one process knows.

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
        self._warned: set[str] = set()

    @property
    def settings(self) -> SGLangSettings:
        """Of the server, from the environment.

        Raises:
            ConfigError: a value out of range, or no JSON object.
            UnknownNameError: a key that is no option.
        """
        if self._settings is None:
            self._settings = SGLangSettings(os.environ.get(VARIABLE))
        return self._settings

    def start(self, server_args: Any, *, cache_dit: bool) -> None:
        """Read the settings of a server that starts, and refuse those that cannot work in it.

        Args:
            server_args: SGLang's.
            cache_dit: whether every request of the server uses cache-dit.

        Raises:
            ConfigError: a setting that cannot work, an untested SGLang, a hook that was not applied.
            UnknownNameError: a key that is no option.
        """
        for whole in self._whole.values():
            whole.end()
        self._whole.clear()
        self._settings, self._replicas = None, server_args.dp_size
        if not self.settings.is_on:
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
        """Say once which pipeline is served.

        Raises:
            ConfigError: a profile, which is made of a diffusers pipeline, on one of SGLang's own.
        """
        if is_native and "profile" in self.settings.options:
            raise ConfigError(
                f"{VARIABLE}(profile=…): a profile is made of a pipeline of diffusers, and {type(pipeline).__name__} "
                "is SGLang's own; start the server with --backend diffusers, or give speedup= or computed_steps="
            )
        if self.settings.is_on:
            said = ", ".join(f"{name}={value}" for name, value in self.settings.options.items()) or "default"
            logger.info("omnireuse serves every request of %s: %s", type(pipeline).__name__, said)
        else:
            logger.info("omnireuse serves the requests of %s that ask for it in %s", type(pipeline).__name__, FIELD)

    def admit(self, params: Any) -> None:
        """Refuse the settings of a request that cannot be met.

        Args:
            params: its sampling parameters.

        Raises:
            ConfigError: as `wanted`, and what is beyond the operator's limits.
        """
        wanted = self.wanted(params)
        self.settings.check_limits(wanted, steps=getattr(params, "num_inference_steps", None), field=FIELD)

    def wanted(self, request: Any, *, cache_dit: bool = False) -> RequestSettings:
        """What a request asks for, checked.

        Args:
            request: SGLang's request, or its sampling parameters.
            cache_dit: whether it gets cache-dit, by its own word or the server's.

        Raises:
            ConfigError: settings that cannot be met, another cache beside them, an untested SGLang.
            UnknownNameError: a key that is no setting.
            WrongTypeError: settings of another kind.
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

    def plan(self, wanted: RequestSettings) -> Plan:
        """What a request follows on one of SGLang's own pipelines.

        Raises:
            ConfigError: a target that cannot be reached, or a policy that measures beside data parallelism.
        """
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

    def whole(self, stage: Any) -> WholeRequests:
        """Reuse on the diffusers pipeline of a stage."""
        if stage not in self._whole:
            self._whole[stage] = WholeRequests(self.settings)
        return self._whole[stage]

    def report(self, request: Any, figures: dict[str, float]) -> None:
        """Say what was reused for a request, in the log and in its metrics."""
        self.served += 1
        computed, reused = (int(figures[f"{KEY}_steps_{did}"]) for did in ("computed", "reused"))
        if request.metrics is not None:
            setattr(request.metrics, KEY, figures)
        if not request.suppress_logs and not (dist.is_initialized() and dist.get_rank()):
            logger.info("omnireuse computed %d of %d steps", computed, computed + reused)

    def pass_by(self, pipeline: Any) -> None:
        """Count a request that asked for reuse and got none; warn once for each kind of pipeline."""
        self.not_served += 1
        name = type(pipeline).__name__
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("omnireuse cannot serve %s, which denoises in a loop of its own: every step computes", name)
