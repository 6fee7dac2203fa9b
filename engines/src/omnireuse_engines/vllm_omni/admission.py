"""The settings of a vllm-omni server, and what it refuses: at its start, and of a request before it waits for its turn.

The engine's scheduler may live in another process than the pipeline. So a request's plan is made without it. A server
refuses at its start whatever its pipeline cannot serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import torch.distributed as dist

from omnireuse.errors import ConfigError, StateError, WrongTypeError
from omnireuse.tuning.loops import RequestPlan
from omnireuse_engines.ranks import RankSizes, deciding_group, has_ranks, refuse_undecidable
from omnireuse_engines.settings import KEY, ServerSettings

__all__ = [
    "SAFE",
    "UNSAFE",
    "Admission",
    "OmniSettings",
    "group_of",
    "refuse_mixed_precision",
    "refuse_pipeline",
    "refuse_plan",
    "refuse_ranks",
]

PLACE = "--cache-config"
"""Where the settings are written down, for errors."""


class OmniSettings(ServerSettings):
    """The settings of the server: a target, a profile, or neither for the default.

    ``"prompt_cache": 32`` keeps the embeddings of so many prompts. ``"prompt_store": "redis://host:6379/0"`` shares
    them between workers.

    Args:
        cache_config: a mapping, or vllm-omni's `DiffusionCacheConfig`.
    """

    def __init__(self, cache_config: object) -> None:
        super().__init__(_given(cache_config), place=PLACE, further=("prompt_cache", "prompt_store"))
        if self.options.get("backend") == "cache_dit":
            raise ConfigError(
                "--cache-config(backend='cache_dit'): vllm-omni has cache-dit built in; start the server with "
                "--cache-backend cache_dit, or give backend='db_cache', which takes the same options"
            )
        self.prompt_store = self.options.pop("prompt_store", None)
        self.prompt_cache = self.options.pop("prompt_cache", None if self.prompt_store is None else 32)
        if self.prompt_store is not None and not isinstance(self.prompt_store, str):
            raise WrongTypeError(f"{PLACE}(prompt_store={self.prompt_store!r:.60}): prompt_store must be a Redis URL")


def _given(cache_config: object) -> dict[str, Any]:
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


def refuse_pipeline(pipeline: object) -> None:
    """Raise a ConfigError for a pipeline whose steps are not known to be safe to leave out. A subclass of a safe one is
    safe as long as it steps in the same way.
    """
    for method in _METHODS:
        owner = next((cls for cls in type(pipeline).__mro__ if method in vars(cls)), None)
        if owner is None or owner.__name__ not in SAFE or not owner.__module__.startswith("vllm_omni."):
            why = UNSAFE.get("" if owner is None else owner.__name__, "it may do more than return its output")
            raise ConfigError(
                f"{PLACE}: a step of {type(pipeline).__name__} is not known to be safe to leave out in step execution: "
                f"{why} ({method}); known to be safe: {', '.join(SAFE)}; run the server without step execution, or "
                "without --cache-backend omnireuse"
            )


def refuse_mixed_precision(pipeline: object) -> None:
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
            f"{PLACE}: {what} computes some steps in another precision than the others, and a forecast must not mix "
            "outputs of both; leave it out, or start the server without --cache-backend omnireuse"
        )


def refuse_plan(plan: RequestPlan, *, place: str = PLACE) -> None:
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


def _sizes_in(parallel: object) -> RankSizes:
    """The sizes in vllm-omni's `DiffusionParallelConfig`; 1 if it says nothing."""

    def size(name: str) -> int:
        return int(getattr(parallel, name, None) or 1)

    return RankSizes(
        sequence=size("sequence_parallel_size"),
        tensor=size("tensor_parallel_size"),
        sharded=size("hsdp_shard_size") if getattr(parallel, "use_hsdp", False) else 1,
        guidance=size("cfg_parallel_size"),
        data=size("data_parallel_size"),
    )


def group_of(plan: RequestPlan) -> dist.ProcessGroup | None:
    """The ranks that must decide alike under this plan, of vllm-omni's own groups (`deciding_group`)."""
    if not has_ranks():
        return None
    parallel = _parallel_state()
    found = {
        "sequence": parallel.get_sp_group(),
        "tensor": import_module("vllm.distributed.parallel_state").get_tp_group(),
        "guidance": parallel.get_cfg_group(),
    }
    if parallel._FS is not None:
        found["sharded"] = parallel.get_fs_group()
    sizes = {name: group.world_size for name, group in found.items()}
    groups = {name: group.device_group for name, group in found.items()}
    data = parallel.get_data_parallel_world_size()
    return deciding_group(plan, RankSizes(**sizes, data=data), groups, place=PLACE)


def refuse_ranks(pipeline: object, *, shares_prompts: bool) -> None:
    """Raise a ConfigError if only some ranks see what all must know: the outputs of pipeline parallelism, which the
    last stage sees, or, with an outside store of prompts, what the store answers ranks that encode a prompt together.
    """
    if has_ranks() and (stages := _parallel_state().get_pipeline_parallel_world_size()) > 1:
        raise ConfigError(
            f"{PLACE}: only the last of {stages} pipeline stages sees the model's output, so the ranks cannot forecast "
            "alike; start the server with pipeline_parallel_size=1, or without --cache-backend omnireuse"
        )
    if not shares_prompts:
        return
    parallel = getattr(getattr(pipeline, "od_config", None), "parallel_config", None)
    sizes = {name: getattr(parallel, name, 1) for name in ("tensor_parallel_size", "text_encoder_tp_size", "use_hsdp")}
    if given := ", ".join(f"{name}={size}" for name, size in sizes.items() if int(size) > 1 or size is True):
        raise ConfigError(
            f"{PLACE}(prompt_store=…): ranks that share a text encoder ({given}) wait for each other if the store "
            "answers only some of them; give prompt_cache alone, which is the same on all ranks"
        )


def _parallel_state() -> Any:
    return import_module("vllm_omni.diffusion.distributed.parallel_state")


class Admission:
    """Checks requests of one engine."""

    def __init__(self, config: Any) -> None:
        self._settings = OmniSettings(config.cache_config)
        self._steps = bool(getattr(config, "step_execution", False))
        self._sizes = _sizes_in(getattr(config, "parallel_config", None))
        self._dtype = str(getattr(config, "dtype", "")).removeprefix("torch.")

    def check(self, request: Any) -> None:
        """Refuse what cannot be served."""
        sampling = request.sampling_params
        wanted, plan = self._settings.admit(sampling.extra_args, steps=sampling.num_inference_steps)
        profile = None if wanted.target.quality is None else self._settings.profile
        if profile is not None and self._dtype and profile.dtype not in (None, self._dtype):
            raise StateError(
                f"{KEY}(quality=…): nothing is promised, for the profile was measured in {profile.dtype}, the server "
                f"runs in {self._dtype}; ask for speedup= or computed_steps="
            )
        if self._steps and getattr(request, "use_step_execution", True):
            refuse_plan(plan, place=KEY)
        refuse_undecidable(plan, self._sizes, place=KEY)
