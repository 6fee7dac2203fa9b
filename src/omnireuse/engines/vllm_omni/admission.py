"""The check of a request's settings, before the request waits for its turn.

The engine's scheduler may live in another process than the pipeline. So the plan is made here without it. A server
refuses at its start whatever its pipeline cannot serve.
"""

from __future__ import annotations

from typing import Any

from omnireuse.engines.settings import KEY, RequestPlan
from omnireuse.engines.vllm_omni.ranks import RankSizes, refuse_undecidable
from omnireuse.engines.vllm_omni.settings import OmniSettings
from omnireuse.errors import ConfigError, StateError

__all__ = ["SAFE", "UNSAFE", "Admission", "refuse_mixed_precision", "refuse_pipeline", "refuse_plan"]

SAFE = ("QwenImagePipeline",)
"""Classes whose `denoise_step` changes nothing and returns all that `step_scheduler` needs."""
UNSAFE = {
    "BagelPipeline": "it begins and ends guidance within a run",
    "HeliosPipeline": "it goes through several sizes in one chunk",
    "HunyuanImage3Pipeline": "it carries its inputs on from step to step",
    "LingBotWorldCausalDMDPipeline": "it may write its memory of frames in the last step",
    "MiniMaxH3Pipeline": "it leaves velocities of sound beside its output, for the scheduler",
    "OmniVoicePipeline": "it replaces tokens within the step",
}
"""The other classes of vllm-omni 0.30 with step execution, and what forbids it, as their source says."""
_METHODS = ("denoise_step", "step_scheduler")


def refuse_pipeline(pipeline: Any, *, place: str) -> None:
    """Raise a ConfigError for a pipeline whose steps are not known to be safe to leave out. A subclass of a safe one is
    safe as long as it steps in the same way.
    """
    for method in _METHODS:
        owner = next((cls for cls in type(pipeline).__mro__ if method in vars(cls)), None)
        if owner is None or owner.__name__ not in SAFE or not owner.__module__.startswith("vllm_omni."):
            why = UNSAFE.get("" if owner is None else owner.__name__, "it may do more than return its output")
            raise ConfigError(
                f"{place}: a step of {type(pipeline).__name__} is not known to be safe to leave out in step execution: "
                f"{why} ({method}); known to be safe: {', '.join(SAFE)}; run the server without step execution, or "
                "without --cache-backend omnireuse"
            )


def refuse_mixed_precision(pipeline: Any, *, place: str) -> None:
    """Raise a ConfigError if some steps compute in another precision than others: a forecast must not mix both.

    vllm-omni 0.30 does so in two ways, read here: a list of steps whose attention is not quantised, and Cosmos 3's
    first and last steps in 16 bits.
    """
    config = getattr(pipeline, "od_config", None)
    quantised = getattr(config, "diffusion_kv_cache_dtype", None) not in (None, "auto")
    skipped = getattr(config, "diffusion_kv_cache_skip_step_indices", None)
    runtime = getattr(getattr(pipeline, "transformer", None), "mixed_precision_runtime", None)
    ends = [getattr(getattr(runtime, "config", None), name, 0) for name in ("first_steps", "last_steps")]
    if (quantised and skipped) or any(ends):
        what = "diffusion_kv_cache_skip_steps" if quantised and skipped else "cosmos3_mixed_precision"
        raise ConfigError(
            f"{place}: {what} computes some steps in another precision than the others, and a forecast must not mix "
            "outputs of both; leave it out, or start the server without --cache-backend omnireuse"
        )


def refuse_plan(plan: RequestPlan, *, place: str) -> None:
    """Raise a ConfigError for a plan that waves cannot follow."""
    strategy, why = plan.strategy, None
    if strategy is None:
        return
    if strategy.region != "step":
        why = f"works in region {strategy.region!r}, and a wave is forecast after guidance, in region 'step'"
    elif strategy.chosen_signal == "filtered_latents":
        why = "filters latents by frequency, and a wave does not tell their rows and columns"
    if why is not None:
        raise ConfigError(f"{place}: {plan.name} {why}; run the server without step execution, or give speedup=")


class Admission:
    """Checks requests of one engine."""

    def __init__(self, config: Any) -> None:
        self._settings = OmniSettings(config.cache_config)
        self._steps = bool(getattr(config, "step_execution", False))
        self._sizes = RankSizes.of(getattr(config, "parallel_config", None))
        self._dtype = str(getattr(config, "dtype", "")).removeprefix("torch.")

    def check(self, request: Any) -> None:
        """Refuse what cannot be served."""
        sampling = request.sampling_params
        wanted = self._settings.wanted(sampling.extra_args)
        if not wanted.target:
            return
        self._settings.check_limits(wanted, steps=sampling.num_inference_steps)
        plan = self._settings.plan(wanted, None)
        profile, is_promised = self._settings.profile, wanted.target.quality is not None
        if profile is not None and is_promised and self._dtype and profile.dtype not in (None, self._dtype):
            raise StateError(
                f"{KEY}(quality=…): nothing is promised, for the profile was measured in {profile.dtype}, the server "
                f"runs in {self._dtype}; ask for speedup= or computed_steps="
            )
        if self._steps and getattr(request, "use_step_execution", True):
            refuse_plan(plan, place=KEY)
        refuse_undecidable(plan, self._sizes, place=KEY)
