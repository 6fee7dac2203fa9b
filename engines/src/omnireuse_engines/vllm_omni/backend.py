"""The cache backend that vllm-omni's selector returns: whole requests through `enable`, waves through `Waves`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from omnireuse.diffusion.cache.prompt_embed_cache import PromptEmbedCache, bump_epoch, install_prompt_embed_cache
from omnireuse.errors import ConfigError, OmniReuseError
from omnireuse.prompts.cache import PromptCacheOptions
from omnireuse.stores.redis import RedisTier
from omnireuse.tuning.loops import OFF, RequestPlan
from omnireuse_engines.ranks import has_ranks
from omnireuse_engines.request import PROMPTS, figures_of, work_figures
from omnireuse_engines.settings import KEY, RequestSettings
from omnireuse_engines.vllm_omni.admission import (
    PLACE,
    OmniSettings,
    group_of,
    refuse_mixed_precision,
    refuse_pipeline,
    refuse_plan,
    refuse_ranks,
)
from omnireuse_engines.vllm_omni.calls import RequestCalls, RequestLoop, is_warm_up
from omnireuse_engines.waves import Waves, WaveTuner
from omnireuse_engines.whole import WholeRequests

__all__ = ["Backend"]

logger = logging.getLogger("omnireuse")


class Backend:
    """Step reuse on one of vllm-omni's pipelines."""

    def __init__(self, cache_config: object) -> None:
        self.config = cache_config
        self.enabled = False
        with _said_first():
            self.settings = OmniSettings(cache_config)
        self.waves: Waves | None = None
        self.prompts: PromptEmbedCache | None = None
        """The cache of prompt embeddings, if the server asked for one."""
        self._told: Counter[str] = Counter()
        self._pipeline: Any = None
        self._whole = WholeRequests(self.settings)
        self._off: set[int | None] = set()
        """Numbers of steps that the requests of the latest batch name, if it computes every step."""
        self._tunes = True
        self._tuner: WaveTuner | None = None

    def is_enabled(self) -> bool:
        """Whether `enable` ran."""
        return self.enabled

    def enable(self, pipeline: object) -> None:
        """Serve this pipeline; called once after loading."""
        with _said_first():
            self._enable(pipeline)

    def _enable(self, pipeline: object) -> None:
        self._pipeline = _denoising_pipeline(pipeline)
        refuse_ranks(self._pipeline, shares_prompts=self.settings.prompt_store is not None)
        refuse_mixed_precision(pipeline)
        if self._pipeline is pipeline:
            self._whole = WholeRequests(self.settings, RequestCalls())
        if has_ranks() and self.settings.tune is not False:
            self._tunes = False
            logger.info("tuning is off: ranks share the forward pass")
        plan = self._plan(RequestSettings())
        if getattr(getattr(pipeline, "od_config", None), "step_execution", False):
            refuse_pipeline(pipeline)
        self._cache_prompts()
        self.settings.modulation.install(self._pipeline)
        self.enabled = True
        self.settings.announce(self._pipeline, plan.name, asked_in=f"extra_args[{KEY!r}]")

    def refresh(self, pipeline: object, num_inference_steps: int, verbose: bool = True) -> None:
        """Nothing to do: a run begins when the pipeline sets its timesteps."""

    def _cache_prompts(self) -> None:
        if self.settings.prompt_cache is None:
            return
        store = self.settings.prompt_store
        self.prompts = install_prompt_embed_cache(
            self._pipeline,
            max_size=self.settings.prompt_cache,
            model_tag=type(self._pipeline).__name__,
            options=PromptCacheOptions(outside=None if store is None else RedisTier(store)),
        )
        if self.prompts is None:
            raise ConfigError(
                f"{PLACE}(prompt_cache={self.settings.prompt_cache!r}): {type(self._pipeline).__name__} has no "
                "encode_prompt to cache; leave prompt_cache out"
            )
        beside = "" if store is None else ", and shares them in Redis"
        logger.info("omnireuse keeps the embeddings of %d prompts%s", self.settings.prompt_cache, beside)

    def begin(self, requests: Sequence[Any]) -> None:
        """Prepare for a batch of whole requests, which share every step.

        Requests that ask for different reuse compute every step, since one of them would get what another asked for.
        So does the engine's own request that warms the model up.
        """
        if all(is_warm_up(request.request_id) for request in requests):
            self._whole.end()
            return
        asked = {self.settings.wanted(request.sampling_params.extra_args) for request in requests}
        wanted = asked.pop() if len(asked) == 1 else RequestSettings(off=True)
        if asked:
            logger.warning(
                "a batch of %d requests asks for different reuse, and computes every step; batch requests with the "
                "same extra_args[%r] to reuse",
                len(requests),
                KEY,
            )
        self._off = {request.sampling_params.num_inference_steps for request in requests} if wanted.off else set()
        self._whole.begin(self._pipeline, wanted, group=self._plan(wanted).group, tunes=self._tunes)

    def figures(self) -> dict[str, Any]:
        """Figures of the last batch of whole requests, for their responses' metrics.

        If every step was computed, the number of steps is told if the pipeline and the request name the same.
        """
        if not self._off:
            return self._whole.figures()
        steps = getattr(self._pipeline, "num_timesteps", None)
        return figures_of(OFF.name, None, steps if self._off == {steps} else None, 0)

    def forget(self, method: str) -> None:
        """Ask anew for all that depends on weights: the engine has called a method of its worker that may have written
        them."""
        if not self.enabled:
            return
        self.settings.forget()
        self._whole.forget()
        if self.waves is not None:
            self.waves.forget()
        if self.prompts is not None:
            bump_epoch(self._pipeline)
        logger.info("omnireuse looks for plans and prompts anew: %s may have written weights", method)

    def cache_figures(self) -> dict[str, float]:
        """What the caches of prompts and of modulation have done since this was last asked for, for the server's
        counters."""
        now: Counter[str] = Counter()
        if self.prompts is not None:
            done = {"computed": self.prompts.misses, "reused": self.prompts.hits, "bypassed": self.prompts.bypassed}
            now.update({f"{PROMPTS}_{action}": number for action, number in done.items()})
        new, self._told = now - self._told, now
        return {name: float(number) for name, number in new.items()} | self.settings.modulation.figures()

    def serve_waves(self, pipeline: Any, sub_batch: Any) -> None:
        """Stand before the pipeline's `denoise_step`. Idempotent."""
        self._whole.end()
        if self.waves is None:
            refuse_pipeline(pipeline)
            refuse_plan(self._plan(RequestSettings()))
            denoise = pipeline.denoise_step
            registry = self.settings.registry("vllm-omni's step mode with omnireuse") if self._tunes else None
            if registry is not None:
                self._tuner = WaveTuner(registry, lambda state: denoise(sub_batch([state]), states=[state]))
            self.waves = Waves(denoise, sub_batch, self._plan_of, self._tuner)
            pipeline.denoise_step = self.waves.denoise_step

    def _plan_of(self, state: Any) -> RequestPlan:
        counted = self.cache_figures()
        if is_warm_up(state.request_id):
            return OFF
        state.stage_durations.update(counted | work_figures(self._tuner))
        wanted = self.settings.wanted(state.sampling.extra_args)
        plan = self._plan(wanted)
        refuse_plan(plan)
        if wanted.target or self._tuner is None:
            return plan
        return self._tuner.plan(plan, RequestLoop(state, self._pipeline))

    def _plan(self, wanted: RequestSettings) -> RequestPlan:
        plan = self.settings.plan(wanted, self._pipeline)
        is_native = type(self._pipeline).__module__.startswith("vllm_omni.")
        if is_native and plan.strategy is not None and plan.strategy.chosen_signal == "modulated_input":
            raise ConfigError(
                f"{PLACE}: {plan.name} watches the modulated input of the first block, which vllm-omni's "
                f"{type(self._pipeline).__name__} computes in its own way; use easy_cache, db_cache or a target like "
                "speedup=, or the diffusers format"
            )
        return replace(plan, group=group_of(plan))


@contextmanager
def _said_first() -> Iterator[None]:
    """Log what keeps a server from starting before its engine does, in hundreds of lines of tracebacks."""
    try:
        yield
    except OmniReuseError as error:
        logger.error("the server cannot start with omnireuse: %s", error)
        raise


def _denoising_pipeline(pipeline: object) -> Any:
    """The diffusers pipeline within the adapter for the diffusers format, or the engine's own."""
    inner = getattr(pipeline, "_pipeline", None)
    return pipeline if inner is None else inner
