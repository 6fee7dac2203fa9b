"""Where reuse gets into vllm-omni: a table of the functions that are wrapped, and a check that each of them is there.

Every wrapper calls the original. It does more only in an engine that was started with ``--cache-backend omnireuse``.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from omnireuse.errors import OmniReuseError
from omnireuse.integrations.host import check_host
from omnireuse.integrations.settings import KEY
from omnireuse.integrations.vllm_omni.admission import Admission
from omnireuse.integrations.vllm_omni.backend import Backend

__all__ = ["SEAMS", "TESTED", "install"]

logger = logging.getLogger("omnireuse")

TESTED = ("0.30",)
"""Releases of vllm-omni that the tests run in."""

_DIFFUSION = "vllm_omni.diffusion"
_RUNNER = f"{_DIFFUSION}.worker.diffusion_model_runner"

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def _is_ours(config: Any) -> bool:
    return getattr(config, "cache_backend", None) == KEY


def _without_cache(config: Any) -> Any:
    """The same configuration as an engine without a cache has it."""
    twin = copy.copy(config)
    twin.cache_backend = "none"
    return twin


def _select(original: Callable[..., Any]) -> Callable[..., Any]:
    """Know one more cache backend."""

    def get_cache_backend(cache_backend: str | None, cache_config: Any) -> Any:
        if cache_backend != KEY:
            return original(cache_backend, cache_config)
        check_host("vllm-omni", TESTED, _missing, asked=f"--cache-backend {KEY}")
        return Backend(cache_config)

    return get_cache_backend


def _step_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a wave through that vllm-omni refuses with any cache backend, and serve it."""

    def execute_stepwise(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (_is_ours(self.od_config) and self.cache_backend is not None):
            return original(self, *args, **kwargs)
        self.cache_backend.serve_waves(self.pipeline, _sub_batch)
        config = self.od_config
        self.od_config = _without_cache(config)
        try:
            return original(self, *args, **kwargs)
        finally:
            self.od_config = config

    return execute_stepwise


def _sub_batch(states: list[Any]) -> Any:
    return import_module(f"{_DIFFUSION}.worker.input_batch").InputBatch.make_batch(states)


def _diffusers_format(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let the adapter for the diffusers format through, which refuses every cache backend."""

    def raise_unsupported_features(self: Any) -> Any:
        if not _is_ours(self.od_config):
            return original(self)
        config = self.od_config
        self.od_config = _without_cache(config)
        try:
            return original(self)
        finally:
            self.od_config = config

    return raise_unsupported_features


def _whole_requests(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tell the backend which requests are about to run."""

    def refresh_cache_for_requests(self: Any, reqs: list[Any], **kwargs: Any) -> Any:
        if not _is_ours(kwargs.get("od_config", self.od_config)) or self.cache_backend is None:
            return original(self, reqs, **kwargs)
        with _as_client_error():
            self.cache_backend.begin(reqs)
        return None

    return refresh_cache_for_requests


def _whole_results(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report what was reused for whole requests."""

    def runner_output_from_outputs(self: Any, reqs: list[Any], outputs: list[Any]) -> Any:
        if isinstance(self.cache_backend, Backend):
            for output in outputs:
                output.stage_durations = {**(output.stage_durations or {}), **self.cache_backend.figures()}
        return original(self, reqs, outputs)

    return runner_output_from_outputs


def _admission(original: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a request whose settings cannot be served before it waits for its turn."""

    def add_request(self: Any, request_id: str, request: Any) -> Any:
        if _is_ours(self.od_config):
            if self not in _admissions:
                _admissions[self] = Admission(self.od_config)
            with _as_client_error():
                _admissions[self].check(request)
        return original(self, request_id, request)

    return add_request


@contextmanager
def _as_client_error() -> Iterator[None]:
    """Turn a refusal into the error that vllm-omni's servers answer with status 400 and its sentence."""
    try:
        yield
    except OmniReuseError as error:
        raise import_module("vllm_omni.errors").OmniClientError(str(error)) from error


def _metrics(original: Callable[..., Any]) -> Callable[..., Any]:
    """Move what was reused from the timings to the metrics of the response."""

    def postprocess_output(self: Any, request: Any, output: Any) -> Any:
        durations = output.stage_durations or {}
        ours = {name: durations.pop(name) for name in list(durations) if name.startswith(f"{KEY}_")}
        results = original(self, request, output)
        for result in results if ours else ():
            result.metrics.update(ours)
        return results

    return postprocess_output


SEAMS: tuple[tuple[str, str, Wrapper], ...] = (
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
    (f"{_DIFFUSION}.sched.base_scheduler", "BaseScheduler._add_request_with_request_id", _admission),
    (f"{_DIFFUSION}.diffusion_engine", "DiffusionEngine.postprocess_output", _metrics),
)
"""Module, function and its wrapper. The runner binds the selector's function by name, so both places are wrapped."""

_missing: list[str] = []
_admissions: WeakKeyDictionary[Any, Admission] = WeakKeyDictionary()
"""Of each scheduler in this process."""


def install() -> None:
    """Wrap every seam once. What is missing is reported when the backend is chosen, so that an engine that does not use
    it starts as ever."""
    _missing.clear()
    for module, path, wrap in SEAMS:
        try:
            owner: Any = import_module(module)
            *outer, name = path.split(".")
            for each in outer:
                owner = getattr(owner, each)
            original = getattr(owner, name)
        except (ImportError, AttributeError) as error:
            _missing.append(f"{module}.{path} ({error})")
            continue
        if not getattr(original, "omnireuse", False):
            wrapped = functools.wraps(original)(wrap(original))
            wrapped.omnireuse = True  # type: ignore[attr-defined]  # the mark that makes this idempotent
            setattr(owner, name, wrapped)
    if _missing:
        logger.error("omnireuse cannot get into this vllm-omni: %s", "; ".join(_missing))
