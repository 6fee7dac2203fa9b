"""What vllm-omni's step mode can serve: pipelines whose step is its output, and strategies that forecast it."""

from __future__ import annotations

from typing import Any

from omnireuse.errors import ConfigError
from omnireuse.integrations.settings import Plan

__all__ = ["SAFE", "refuse_pipeline", "refuse_plan"]

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

    Args:
        pipeline: of the engine.
        place: where reuse was asked for, for the error.
    """
    for method in _METHODS:
        owner = next((cls for cls in type(pipeline).__mro__ if method in vars(cls)), None)
        if owner is None or owner.__name__ not in SAFE or not owner.__module__.startswith("vllm_omni."):
            raise ConfigError(
                f"{place}: {type(pipeline).__name__}.{method} in step execution is not known to be safe to leave out: "
                f"a step may do more than return its output; known: {', '.join(SAFE)}; run the server without step "
                "execution, or without --cache-backend omnireuse"
            )


def refuse_plan(plan: Plan, *, place: str) -> None:
    """Raise a ConfigError for a plan that waves cannot follow.

    Args:
        plan: of the server or of a request.
        place: where it was asked for, for the error.
    """
    strategy, why = plan.strategy, None
    if strategy is None:
        return
    if strategy.region != "step":
        why = f"works in region {strategy.region!r}, and a wave is forecast after guidance, in region 'step'"
    elif strategy.chosen_signal == "filtered_latents":
        why = "filters latents by frequency, and a wave does not tell their rows and columns"
    if why is not None:
        raise ConfigError(f"{place}: {plan.name} {why}; run the server without step execution, or give speedup=")
