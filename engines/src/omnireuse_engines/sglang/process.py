"""Reuse in one process of SGLang: its settings, the requests that want it, and its results."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from omnireuse.base.environment import switch_of
from omnireuse.errors import ConfigError
from omnireuse.tuning.loops import OFF, LoopTuner, RequestPlan
from omnireuse_engines.host import check_host, warn_once
from omnireuse_engines.ranks import has_ranks, measures
from omnireuse_engines.request import (
    COUNTED,
    STRATEGY,
    RequestReuse,
    count_request,
    figures_of,
    work_figures,
)
from omnireuse_engines.settings import KEY, RequestSettings, ServerSettings, options_in
from omnireuse_engines.sglang.loop import StageLoop
from omnireuse_engines.whole import WholeRequests

__all__ = ["FIELD", "TESTED", "VARIABLE", "Process"]

logger = logging.getLogger("omnireuse")

VARIABLE = "OMNIREUSE_SGLANG"
"""The environment variable with the server's settings (`options_in`): every process of the server inherits it."""

FIELD = "diffusers_kwargs"
"""The request's field with its settings. SGLang takes it from its HTTP API, its command line and Python, hands it to
the workers, and batches only requests in which it is equal."""


def _extras_of(request: object) -> Mapping[str, Any]:
    """The extra arguments of SGLang's sampling parameters or of its request."""
    extra = getattr(request, "extra", None)
    given = extra.get(FIELD) if isinstance(extra, Mapping) else None
    given = given if given is not None else getattr(request, FIELD, None)
    return given if isinstance(given, Mapping) else {}


_OTHER_CACHES = ("enable_teacache", "enable_spectrum", "enable_cache_dit")

TESTED = ("0.5.23",)
"""Releases of SGLang that the tests run in."""


class _Parts:
    """What the cache of modulation asks of a native pipeline."""

    def __init__(self, transformer: object, transformer_2: object) -> None:
        self.transformer, self.transformer_2 = transformer, transformer_2
        self.scheduler: object = None


class Process:
    """Reuse in one process of SGLang.

    Attributes:
        missing: hooks that SGLang could not apply.
        served: requests whose steps were decided on.
    """

    def __init__(self) -> None:
        self.missing: tuple[str, ...] = ()
        self.served = 0
        self._settings: ServerSettings | None = None
        self._replicas = 1
        self._whole: WeakKeyDictionary[Any, WholeRequests] = WeakKeyDictionary()
        self._tuner: LoopTuner | None = None
        self._parts: _Parts | None = None

    @property
    def settings(self) -> ServerSettings:
        """Of the server, from the environment."""
        if self._settings is None:
            self._settings = ServerSettings(options_in(os.environ.get(VARIABLE), place=VARIABLE), place=VARIABLE)
        return self._settings

    @property
    def is_inert(self) -> bool:
        """Whether the server was started without reuse, so that only requests that ask for it get it."""
        return switch_of(os.environ.get(VARIABLE, "").strip() or "off") is False

    def start(self, server_args: Any, *, cache_dit: bool) -> None:
        """Read the settings of a server that starts, and refuse those that cannot work in it.

        Args:
            cache_dit: whether every request of the server uses cache-dit.
        """
        for whole in self._whole.values():
            whole.end()
        self._whole.clear()
        self._settings, self._replicas, self._tuner = None, server_args.dp_size, None
        if self.is_inert:
            if self.missing:
                logger.error("omnireuse cannot get into this SGLang; not hooked: %s", ", ".join(self.missing))
            return
        check_host("sglang", TESTED, self.missing, asked=VARIABLE)
        if cache_dit:
            raise ConfigError(
                f"{VARIABLE} is set, and the server uses cache-dit, too: one cache would reuse forecasts of the other; "
                f"unset {VARIABLE}, or --cache-dit-config and SGLANG_CACHE_DIT_ENABLED"
            )
        if "profile" not in self.settings.options:
            self.plan(RequestSettings())

    def forget(self) -> None:
        """Ask anew for all that depends on weights, which SGLang has replaced."""
        self.settings.forget()
        for whole in self._whole.values():
            whole.forget()
        if self._tuner is not None:
            self._tuner.forget()
        logger.info("omnireuse looks for plans anew: weights were replaced")

    def announce(self, pipeline: Any, *, is_native: bool, moves_layers: bool) -> None:
        """Say once which pipeline is served, and keep its modulation if the server was asked to.

        Args:
            moves_layers: whether SGLang moves the weights of each layer by itself.
        """
        if is_native and "profile" in self.settings.options:
            raise ConfigError(
                f"{VARIABLE}(profile=…): a profile is made of a pipeline of diffusers, and {type(pipeline).__name__} "
                "is SGLang's own; start the server with --backend diffusers, or give speedup= or computed_steps="
            )
        said = ", ".join(f"{name}={value}" for name, value in self.settings.options.items()) or "default"
        self.settings.announce(pipeline, said, asked_in=FIELD)
        if self.settings.modulation.is_asked and moves_layers:
            raise ConfigError(
                f"{VARIABLE}(modulation=…): --dit-layerwise-offload moves the same weights; leave one of the two out"
            )
        self._parts = _Parts(*map(pipeline.get_module, ("transformer", "transformer_2"))) if is_native else None
        self.settings.modulation.install(self._parts or pipeline.diffusers_pipe)

    def follow(self, scheduler: object) -> None:
        """A loop of a native pipeline begins with this scheduler."""
        if self._parts is not None:
            self._parts.scheduler = scheduler

    def admit(self, params: object) -> None:
        """Refuse the settings of a request that cannot be met."""
        self.wanted(params)
        region = None if "profile" in self.settings.options else "step"
        self.settings.admit(_extras_of(params), steps=getattr(params, "num_inference_steps", None), region=region)

    def wanted(self, request: object, *, cache_dit: bool = False) -> RequestSettings:
        """A request's wishes, checked.

        Args:
            cache_dit: whether it gets cache-dit, by its own word or the server's.
        """
        wanted = self.settings.wanted(_extras_of(request))
        if wanted.off:
            return wanted
        check_host("sglang", TESTED, self.missing, asked=f"{FIELD}({KEY}=…)")
        others = [name for name in _OTHER_CACHES if getattr(request, name, None)]
        if cache_dit and "enable_cache_dit" not in others:
            others.append("cache-dit")
        if others:
            raise ConfigError(
                f"{others[0]}: the request gets omnireuse, too, and one cache would reuse forecasts of the other; "
                f'leave {others[0]} out, or ask for {FIELD}={{"{KEY}": "off"}}'
            )
        return wanted

    def plan(self, wanted: RequestSettings) -> RequestPlan:
        """The plan of a request on one of SGLang's own pipelines."""
        plan = self.settings.plan(wanted, None, region="step")
        if plan.strategy is None or not measures(plan.strategy):
            return plan
        if self._replicas > 1:
            raise ConfigError(
                f"omnireuse in SGLang: {plan.name} measures at each step, and the ranks of one of {self._replicas} "
                "replicas are no group of their own; give speedup= or computed_steps=, whose steps are known ahead"
            )
        return replace(plan, group=dist.group.WORLD) if has_ranks() else plan

    def denoise(self, wanted: RequestSettings, loop: StageLoop, **kwargs: object) -> Any:
        """Make the loop of a request that gets reuse; report it if its steps were asked for.

        Requests that have a target of their own are not measured: the wish of one client would cost the others the time
        of its trial runs.
        """
        plan, tuner = self.plan(wanted), None if wanted.target else self._of_server()
        if tuner is not None:
            plan = tuner.choose(plan, loop)
        request = RequestReuse(plan, getattr(loop.batch, "request_id", None))
        with nullcontext() if tuner is None else tuner.measuring(plan):
            result = loop.serve(request, **kwargs)
        if request.computed or request.reused:
            self.report(loop.batch, wanted, request.figures() | work_figures(tuner))
        return result

    def _of_server(self) -> LoopTuner | None:
        """Tuning of requests that follow the server's own settings; None if it is off."""
        if self._tuner is None and (registry := self.settings.registry("SGLang with omnireuse")) is not None:
            self._tuner = LoopTuner(registry)
        return self._tuner

    def whole(self, stage: object) -> WholeRequests:
        """Reuse on the diffusers pipeline of a stage."""
        if stage not in self._whole:
            self._whole[stage] = WholeRequests(self.settings)
        return self._whole[stage]

    def report(self, request: Any, wanted: RequestSettings, figures: dict[str, Any]) -> None:
        """Report the reuse of a request: in the log, in its metrics, and among the counters of a server that
        exposes them (``--enable-metrics``), if SGLang has made those of this rank."""
        self.served += 1
        figures = figures | self.settings.modulation.figures()
        if import_module("sglang.multimodal_gen.runtime.observability.metrics").get_metrics() is not None:
            count_request(figures, wanted.kind)
        computed, reused = (int(figures[f"{KEY}_steps_{did}"]) for did in ("computed", "reused"))
        if request.metrics is not None:
            shown = {name: figure for name, figure in figures.items() if not name.startswith(COUNTED)}
            setattr(request.metrics, KEY, shown)
        if not request.suppress_logs and not (dist.is_initialized() and dist.get_rank()):
            logger.info("omnireuse computed %d of %d steps: %s", computed, computed + reused, figures[STRATEGY])

    def computed(self, request: object, steps: int) -> None:
        """Report a request that is off, in a server whose others are not."""
        if not self.is_inert:
            self.report(request, RequestSettings(off=True), figures_of(OFF.name, None, steps, 0))

    def warn_unserved(self, pipeline: object) -> None:
        """Warn of a request that asked for reuse and got none, once for each kind of pipeline."""
        name = type(pipeline).__name__
        warn_once(f"omnireuse cannot serve {name}, which denoises in its own loop: every step is computed")
