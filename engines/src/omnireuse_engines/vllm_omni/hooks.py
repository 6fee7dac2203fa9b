"""The hooks of reuse in vllm-omni: a table of the hooked functions, and a check that each of them is there.

Every hook calls the original. It does more only in an engine that was started with ``--cache-backend omnireuse``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from omnireuse.errors import OmniReuseError
from omnireuse.tuning.loops import OFF
from omnireuse_engines import host
from omnireuse_engines.host import Original
from omnireuse_engines.request import COUNTED, STRATEGY, count_request
from omnireuse_engines.settings import KEY, RequestSettings
from omnireuse_engines.vllm_omni.admission import Admission
from omnireuse_engines.vllm_omni.backend import Backend

__all__ = ["SEAMS", "TESTED", "install"]

logger = logging.getLogger("omnireuse")

TESTED = ("0.30",)
"""Releases of vllm-omni that the tests run in."""

_DIFFUSION = "vllm_omni.diffusion"
_RUNNER = f"{_DIFFUSION}.worker.diffusion_model_runner"
_WAKE = ("wake_up", "handle_wake_task")
"""Methods of the engine's own worker that bring weights back, which somebody may have replaced meanwhile."""


def _is_ours(config: object) -> bool:
    return getattr(config, "cache_backend", None) == KEY


@contextmanager
def _without_cache(owner: Any) -> Iterator[None]:
    """Within it, the owner is configured as in an engine without a cache."""
    config = owner.od_config
    owner.od_config = copy.copy(config)
    owner.od_config.cache_backend = "none"
    try:
        yield
    finally:
        owner.od_config = config


def _select(original: Original, cache_backend: str | None, cache_config: object) -> Any:
    """Know one more cache backend."""
    if cache_backend != KEY:
        return original(cache_backend, cache_config)
    host.check_host("vllm-omni", TESTED, _missing, asked=f"--cache-backend {KEY}")
    return Backend(cache_config)


def _step_mode(original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Let a wave through that vllm-omni refuses with any cache backend, and serve it."""
    if not (_is_ours(runner.od_config) and runner.cache_backend is not None):
        return original(runner, *args, **kwargs)
    runner.cache_backend.serve_waves(runner.pipeline, _sub_batch)
    with _without_cache(runner):
        return original(runner, *args, **kwargs)


def _sub_batch(states: list[Any]) -> Any:
    return import_module(f"{_DIFFUSION}.worker.input_batch").InputBatch.make_batch(states)


def _diffusers_format(original: Original, adapter: Any) -> Any:
    """Let the adapter for the diffusers format through, which refuses every cache backend."""
    if not _is_ours(adapter.od_config):
        return original(adapter)
    with _without_cache(adapter):
        return original(adapter)


def _whole_requests(original: Original, runner: Any, reqs: list[Any], **kwargs: Any) -> Any:
    """Tell the backend which requests are about to run."""
    if not _is_ours(kwargs.get("od_config", runner.od_config)) or runner.cache_backend is None:
        return original(runner, reqs, **kwargs)
    with _as_client_error():
        runner.cache_backend.begin(reqs)
    return None


def _whole_results(original: Original, runner: Any, reqs: list[Any], outputs: list[Any]) -> Any:
    """Report the reuse of whole requests."""
    backend = runner.cache_backend
    if isinstance(backend, Backend):
        figures = backend.figures() | backend.cache_figures()
        counted = {name: figures.pop(name) for name in list(figures) if name.startswith(COUNTED)}
        for output in outputs:
            output.stage_durations = {**(output.stage_durations or {}), **figures, **counted}
            counted = {}  # once
    return original(runner, reqs, outputs)


def _admission(original: Original, scheduler: Any, request_id: str, request: Any) -> Any:
    """Refuse a request whose settings cannot be served before it waits for its turn."""
    if _is_ours(scheduler.od_config):
        if scheduler not in _admissions:
            _admissions[scheduler] = Admission(scheduler.od_config)
        with _as_client_error():
            _admissions[scheduler].check(request)
    elif KEY in (request.sampling_params.extra_args or ()):
        # vllm-omni hands extra arguments to pipelines, and a pipeline passes over what it does not know.
        host.warn_once(
            f"a request asks for {KEY}, and this server serves none: it was started without --cache-backend {KEY}, or "
            "vllm-omni serves its pipeline without any cache; every step is computed"
        )
    return original(scheduler, request_id, request)


def _called(original: Original, worker: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Notice a method of the worker after which weights may be others: one that wakes it up, or one that is not the
    engine's own, as those by which trainers hand over weights."""
    try:
        return original(worker, method, *args, **kwargs)
    finally:
        if method in _WAKE or not hasattr(worker.base_worker_class, str(method)):
            backend = getattr(getattr(worker.worker, "model_runner", None), "cache_backend", None)
            if isinstance(backend, Backend):
                backend.forget(str(method))


@contextmanager
def _as_client_error() -> Iterator[None]:
    """Turn a refusal into the error that vllm-omni's servers answer with status 400 and its sentence."""
    try:
        yield
    except OmniReuseError as error:
        refusal = import_module("vllm_omni.errors").OmniClientError(str(error))
        refusal.omnireuse = True
        raise refusal from None


def _in_one_line(record: logging.LogRecord) -> bool:
    """Let the engine log a refused request without a traceback. It has one for every error of a request."""
    if record.exc_info and getattr(record.exc_info[1], KEY, False):
        record.exc_info = None
    return True


def _metrics(original: Original, engine: Any, request: Any, output: Any) -> Any:
    """Copy the figures of reuse from the timings, which reach every response, to the metrics of the engine's output."""
    durations = output.stage_durations or {}
    strategy = durations.pop(STRATEGY, None)
    counted = {name: durations.pop(name) for name in list(durations) if name.startswith(COUNTED)}
    ours = {name: figure for name, figure in durations.items() if name.startswith(f"{KEY}_")}
    results = original(engine, request, output)
    for result in results if ours else ():
        result.metrics.update(ours)
        wanted = RequestSettings.of(request.sampling_params.extra_args)
        target = OFF.name if strategy == OFF.name else wanted.kind
        told = {**ours, **counted, STRATEGY: strategy, "target": target}
        result.custom_output, counted = {**result.custom_output, KEY: told}, {}
    return results


def _response(original: Original, omni: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
    """Count a finished request if the server exposes its metrics, and name the strategy in its response."""
    made = original(omni, result, *args, **kwargs)
    stage = result.engine_outputs
    figures = dict((getattr(stage, "custom_output", None) or {}).get(KEY) or {})
    if figures and stage.finished:
        count_request(figures, figures.pop("target"))
        if made is not None:
            made.metrics.update({name: each for name, each in figures.items() if not name.startswith(COUNTED)})
    return made


SEAMS: tuple[host.Seam, ...] = (
    (f"{_DIFFUSION}.cache.selector", "get_cache_backend", _select),
    (_RUNNER, "get_cache_backend", _select),
    (_RUNNER, "DiffusionModelRunner._execute_stepwise", _step_mode),
    (_RUNNER, "DiffusionModelRunner._refresh_cache_for_requests", _whole_requests),
    (_RUNNER, "DiffusionModelRunner._runner_output_from_outputs", _whole_results),
    (
        f"{_DIFFUSION}.models.diffusers_adapter.pipeline_diffusers_adapter",
        "DiffusersAdapterPipeline._raise_unsupported_features",
        _diffusers_format,
    ),
    (f"{_DIFFUSION}.worker.diffusion_worker", "WorkerWrapperBase.execute_method", _called),
    (f"{_DIFFUSION}.sched.base_scheduler", "BaseScheduler._add_request_with_request_id", _admission),
    (f"{_DIFFUSION}.diffusion_engine", "DiffusionEngine.postprocess_output", _metrics),
    ("vllm_omni.entrypoints.omni_base", "OmniBase._process_single_result", _response),
)
"""The runner binds the selector's function by name, so both places are hooked."""

LOGGERS = (f"{_DIFFUSION}.inline_stage_diffusion_client", f"{_DIFFUSION}.stage_diffusion_proc")
"""Where the engine logs requests that fail."""

_missing: list[str] = []
_admissions: WeakKeyDictionary[Any, Admission] = WeakKeyDictionary()
"""By scheduler of this process."""


def install() -> None:
    """Wrap every seam once. What is missing is reported when the backend is chosen, so that an engine that does not use
    it starts as ever."""
    host.log_through("vllm")
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_in_one_line)
    _missing[:] = host.install(SEAMS, engine="vllm-omni")
