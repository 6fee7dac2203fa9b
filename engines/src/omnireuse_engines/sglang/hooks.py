"""The hooks of reuse in SGLang: a table of the hooked functions.

Every hook calls the original. It does more only for requests that get reuse, by their own word or by the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from omnireuse_engines.host import Original
from omnireuse_engines.settings import KEY
from omnireuse_engines.sglang.loop import StageLoop, predicted_noise
from omnireuse_engines.sglang.process import FIELD, Process

__all__ = ["REUSE", "SEAMS", "register_hooks"]

REUSE = Process()

_RUNTIME = "sglang.multimodal_gen.runtime"
_CORE = f"{_RUNTIME}.pipelines_core"
_STAGE = f"{_CORE}.stages.denoising.DenoisingStage"
_PIPELINE = f"{_CORE}.composed_pipeline_base.ComposedPipelineBase"
_UPDATER = f"{_RUNTIME}.post_training.weights_updater.WeightsUpdater"
_DIFFUSERS = f"{_RUNTIME}.pipelines.diffusers_pipeline.DiffusersExecutionStage"


def _server(result: Any, server_args: Any) -> None:
    """A server reads its arguments: the first place that every start passes after the hooks were applied."""
    applied = import_module(f"{_RUNTIME}.platforms.plugins").HookRegistry._patched
    REUSE.missing = tuple(target for target, *_ in SEAMS if target not in applied)
    is_default = import_module("sglang.multimodal_gen.envs").SGLANG_CACHE_DIT_ENABLED
    REUSE.start(server_args, cache_dit=bool(server_args.cache_dit_config or is_default))


def _built(result: Any, server_args: Any) -> None:
    """A worker has loaded its pipeline."""
    kinds = {cls.__name__ for cls in type(result).__mro__}
    is_native = "DiffusersPipeline" not in kinds
    REUSE.announce(result, is_native=is_native, moves_layers=bool(server_args.dit_layerwise_offload))


def _admission(params: object, pipeline_config: object) -> None:
    """Refuse a request whose settings are wrong before it waits for its turn."""
    REUSE.admit(params)


def _loop(original: Original, stage: Any, ctx: Any, batch: Any, server_args: Any, **kwargs: Any) -> Any:
    """A request's denoising loop on one of SGLang's own pipelines."""
    REUSE.follow(ctx.scheduler)
    if batch.is_warmup:
        return original(stage, ctx, batch, server_args, **kwargs)
    wanted = REUSE.wanted(batch, cache_dit=stage._cache_dit_requested_for_batch(batch))
    if wanted.off:
        result = original(stage, ctx, batch, server_args, **kwargs)
        REUSE.computed(batch, len(ctx.timesteps))
        return result
    return REUSE.denoise(wanted, StageLoop(original, stage, ctx, batch, server_args), **kwargs)


def _whole(original: Original, stage: Any, batch: Any, server_args: Any) -> Any:
    """A request on the diffusers backend."""
    whole = REUSE.whole(stage)
    wanted = REUSE.wanted(batch, cache_dit=bool(server_args.cache_dit_config))
    if batch.is_warmup or wanted.off:
        whole.end()
    else:
        whole.begin(stage.diffusers_pipe, wanted)
    given = batch.extra.get(FIELD)
    if given:
        # The pipeline's own arguments; it would warn of another's.
        batch.extra[FIELD] = {name: value for name, value in given.items() if name != KEY}
    try:
        result = original(stage, batch, server_args)
    finally:
        if given:
            batch.extra[FIELD] = given
    if figures := whole.figures():
        REUSE.report(batch, wanted, figures)
    elif wanted.off and not batch.is_warmup:
        REUSE.computed(batch, getattr(stage.diffusers_pipe, "num_timesteps", batch.num_inference_steps))
    return result


def _together(original: Original, pipeline: object, given: object, server_args: object) -> Any:
    """One request, or several together, through all stages of a pipeline; a list of one comes in by itself, too."""
    served = REUSE.served
    result = original(pipeline, given, server_args)
    if not isinstance(given, list) or len(given) > 1:
        _look(pipeline, given if isinstance(given, list) else [given], served)
    return result


def _weights(original: Original, updater: object, *args: object, **kwargs: object) -> Any:
    """Weights are replaced, wholly or, if that fails, in part."""
    try:
        return original(updater, *args, **kwargs)
    finally:
        REUSE.forget()


def _in_turn(original: Original, pipeline: object, batches: list[Any], server_args: object) -> Iterator[Any]:
    """Several requests, whose results come one after the other."""
    served = REUSE.served
    yield from original(pipeline, batches, server_args)
    if len(batches) > 1:
        _look(pipeline, batches, served)


def _look(pipeline: object, batches: list[Any], served: int) -> None:
    """Notice a request that asked for reuse and passed no hook on its way."""
    if REUSE.served == served and any(not batch.is_warmup and not REUSE.wanted(batch).off for batch in batches):
        REUSE.warn_unserved(pipeline)


def _metrics(result: dict[str, Any], metrics: object) -> dict[str, Any]:
    return {**result, **getattr(metrics, KEY, {})}


SEAMS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    (f"{_RUNTIME}.server_args.server_args.ServerArgs.__post_init__", "AFTER", _server),
    (f"{_CORE}.build_pipeline", "AFTER", _built),
    (
        "sglang.multimodal_gen.configs.sample.sampling_params.SamplingParams._validate_with_pipeline_config",
        "BEFORE",
        _admission,
    ),
    (f"{_STAGE}._run_denoising_loop", "AROUND", _loop),
    (f"{_STAGE}._predict_noise_with_cfg", "AROUND", predicted_noise),
    (f"{_DIFFUSERS}.forward", "AROUND", _whole),
    (f"{_PIPELINE}.forward", "AROUND", _together),
    (f"{_PIPELINE}.forward_batch", "AROUND", _together),
    (f"{_PIPELINE}.forward_batch_sequentially", "AROUND", _in_turn),
    (f"{_UPDATER}.update_weights_from_disk", "AROUND", _weights),
    (f"{_UPDATER}.update_weights_from_tensor", "AROUND", _weights),
    (f"{_RUNTIME}.utils.perf_logger.RequestMetrics.to_dict", "AFTER", _metrics),
)
"""Function, kind of hook, hook. SGLang calls BEFORE with the arguments, AFTER with the result and the arguments, and
AROUND with the original and the arguments."""


def register_hooks() -> None:
    """Give the hooks to SGLang, which applies them before it starts and logs, but does not report, failures."""
    plugins = import_module(f"{_RUNTIME}.platforms.plugins")
    for target, kind, hook in SEAMS:
        plugins.HookRegistry.register(target, hook, plugins.HookType[kind])
