"""The check of a request's settings, before the request waits for its turn.

The engine's scheduler may live in another process than the pipeline. So the plan is made here without it: what a server
refuses for its pipeline's sake, it refuses when it starts.
"""

from __future__ import annotations

from typing import Any

from omnireuse.engines.settings import RequestPlan, RequestSettings
from omnireuse.engines.vllm_omni.ranks import RankSizes, refuse_undecidable
from omnireuse.engines.vllm_omni.settings import OmniSettings
from omnireuse.errors import ConfigError, StateError

__all__ = ["SAFE", "Admission", "refuse_pipeline", "refuse_plan"]

SAFE = ("QwenImagePipeline",)
"""Classes whose `denoise_step` changes nothing and returns all that `step_scheduler` needs, as a reused step demands.

Read in vllm-omni 0.30, and left out: `MiniMaxH3Pipeline` leaves velocities of sound in `state.extra` for the scheduler,
`OmniVoicePipeline` replaces tokens within the step, `HunyuanImage3Pipeline` carries its inputs on from step to step,
`LingBotWorldCausalDMDPipeline` writes its memory of frames in the last step, `HeliosPipeline` goes through several
sizes in one chunk, and `BagelPipeline` begins and ends guidance within a run."""
_METHODS = ("denoise_step", "step_scheduler")


def refuse_pipeline(pipeline: Any, *, place: str) -> None:
    """Raise a ConfigError for a pipeline whose steps are not known to be safe to leave out. A subclass of a safe one is
    safe as long as it steps in the same way.
    """
    for method in _METHODS:
        owner = next((cls for cls in type(pipeline).__mro__ if method in vars(cls)), None)
        if owner is None or owner.__name__ not in SAFE or not owner.__module__.startswith("vllm_omni."):
            raise ConfigError(
                f"{place}: {type(pipeline).__name__}.{method} in step execution is not known to be safe to leave out: "
                f"a step may do more than return its output; known: {', '.join(SAFE)}; run the server without step "
                "execution, or without --cache-backend omnireuse"
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


FIELD = "extra_args"


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
        wanted = RequestSettings.of(sampling.extra_args, field=FIELD)
        if not wanted.targets:
            return
        self._settings.check_limits(wanted, steps=sampling.num_inference_steps, field=FIELD)
        plan = self._settings.plan(wanted, None)
        self._check_dtype(wanted)
        if self._steps and getattr(request, "use_step_execution", True):
            refuse_plan(plan, place=FIELD)
        refuse_undecidable(plan, self._sizes, place=FIELD)

    def _check_dtype(self, wanted: RequestSettings) -> None:
        profile, names = self._settings.profile, [name for name, _ in wanted.targets]
        if profile is not None and "quality" in names and self._dtype and profile.dtype not in (None, self._dtype):
            raise StateError(
                f"{FIELD}(quality=…): nothing is promised, for the profile was measured in {profile.dtype}, the server "
                f"runs in {self._dtype}; ask for speedup= or computed_steps="
            )
