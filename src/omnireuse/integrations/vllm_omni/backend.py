"""The cache backend that vllm-omni's selector returns: whole requests through `enable`, waves through `Waves`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.pipelines import enable
from omnireuse.errors import ConfigError
from omnireuse.integrations.phases import WavePlanner, linear_cost
from omnireuse.integrations.vllm_omni.settings import KEY, Plan, RequestSettings, ServerSettings
from omnireuse.integrations.vllm_omni.waves import Waves

__all__ = ["Backend"]

logger = logging.getLogger("omnireuse")


class Backend:
    """Step reuse on one of vllm-omni's pipelines.

    Args:
        cache_config: of the server, see `ServerSettings`.

    Raises:
        ConfigError: an option out of range.
        UnknownNameError: a key that is no option.
    """

    def __init__(self, cache_config: Any) -> None:
        self.config = cache_config
        self.enabled = False
        self.settings = ServerSettings(cache_config)
        self.waves: Waves | None = None
        self.mixed_batches = 0
        """Batches of requests that ask for different reuse, and computed every step for that."""
        self._pipeline: Any = None
        self._handle: Handle | None = None
        self._active = RequestSettings()

    def is_enabled(self) -> bool:
        """Whether `enable` ran."""
        return self.enabled

    def enable(self, pipeline: Any) -> None:
        """Serve this pipeline; called once after loading.

        Raises:
            ConfigError: a target that cannot be reached.
            StateError: a profile of another pipeline.
        """
        self._pipeline = _denoising_pipeline(pipeline)
        plan = self._on_ranks(self.settings.plan(RequestSettings(), self._pipeline))
        self.enabled = True
        logger.info("omnireuse serves %s: %s", type(self._pipeline).__name__, plan.name)

    def refresh(self, pipeline: Any, num_inference_steps: int, verbose: bool = True) -> None:
        """Nothing to do: a run begins when the pipeline sets its timesteps."""

    # -- whole requests -----------------------------------------------------------------------------------------------

    def begin(self, requests: Sequence[Any]) -> None:
        """Prepare for a batch of whole requests, which share every step.

        Requests that ask for different reuse compute every step, since one of them would get what another asked for.
        """
        asked = {RequestSettings.of(request.sampling_params.extra_args) for request in requests}
        wanted = asked.pop() if len(asked) == 1 else RequestSettings(off=True)
        if asked:
            self.mixed_batches += 1
            logger.warning(
                "a batch of %d requests asks for different reuse, and computes every step; batch requests with the "
                "same extra_args[%r] to reuse",
                len(requests),
                KEY,
            )
        if self._handle is None or wanted != self._active:
            self.end()
            if not wanted.off:
                self._on_ranks(self.settings.plan(wanted, self._pipeline))
                self._handle = enable(self._pipeline, **self.settings.enable_arguments(wanted))
            self._active = wanted

    def end(self) -> None:
        """Leave the pipeline as it was."""
        if self._handle is not None:
            self._handle.disable()
            self._handle = None

    def figures(self) -> dict[str, float]:
        """What the last batch of whole requests did, for the metrics of their responses."""
        if self._handle is None:
            return {}
        return last_run(self._handle)

    # -- waves --------------------------------------------------------------------------------------------------------

    def serve_waves(self, pipeline: Any, sub_batch: Any) -> None:
        """Stand before the pipeline's `denoise_step`. Idempotent."""
        self.end()
        if self.waves is None:
            planner = WavePlanner(linear_cost()) if self.settings.align else None
            self.waves = Waves(pipeline.denoise_step, sub_batch, self._plan_of, planner)
            pipeline.denoise_step = self.waves.denoise_step

    def _plan_of(self, state: Any) -> Plan:
        plan = self._on_ranks(self.settings.plan(RequestSettings.of(state.sampling.extra_args), self._pipeline))
        if plan.strategy is not None and plan.strategy.region != "step":
            raise ConfigError(
                f"--cache-config: {plan.name} works in region {plan.strategy.region!r}, and a wave of requests is "
                "forecast after guidance, in region 'step'; run the server without step execution, or give speedup="
            )
        return plan

    @staticmethod
    def _on_ranks(plan: Plan) -> Plan:
        """Refuse a strategy that measures where several ranks run a request: their sums would differ."""
        policy = None if plan.strategy is None else plan.strategy.policy
        is_one_of_several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if policy is not None and (policy.needs_drift or policy.needs_error) and is_one_of_several:
            raise ConfigError(
                f"--cache-config: {plan.name} measures at each step, and {dist.get_world_size()} ranks might decide "
                "differently; give speedup=, computed_steps= or a profile, whose steps are known ahead"
            )
        return plan

    def __repr__(self) -> str:
        return f"Backend(config={self.settings.options!r})"


def last_run(handle: Handle) -> dict[str, float]:
    """Steps of the handle's last run."""
    events = handle.events
    if not events:
        return {}
    steps: dict[int, bool] = {}
    for event in reversed(events):
        if event.run != events[-1].run:
            break
        steps[event.step] = steps.get(event.step, True) and event.reused
    reused = sum(steps.values())
    return {f"{KEY}_steps_computed": float(len(steps) - reused), f"{KEY}_steps_reused": float(reused)}


def _denoising_pipeline(pipeline: Any) -> Any:
    """The diffusers pipeline within the adapter for the diffusers format, or the engine's own."""
    inner = getattr(pipeline, "_pipeline", None)
    return pipeline if inner is None else inner
