"""vllm-omni's own diffusion engine in this process, on tiny models."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.tests.hosts.vllm_omni import cpu_platform
from engines.tests.hosts.vllm_omni import tiny_qwen as checkpoint
from engines.tests.hosts.vllm_omni.server import ENVIRONMENT
from tests import TOP

IN_VLLM_OMNI = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm_omni") is None,
        reason="needs vllm-omni; scripts/vllm_omni_venv.sh builds a venv that has it",
    ),
]
SHAPES_FLUX = TOP / "models" / "shapes-flux"
PROMPTS = (
    {"prompt": "a red square", "negative_prompt": "blurry"},
    {"prompt": "two large blue triangles on a plain background", "negative_prompt": "low quality"},
    {"prompt": "a green circle", "negative_prompt": ""},
)
_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def platform(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, value in {**ENVIRONMENT, "OMNIREUSE_TUNE": "0"}.items():
        os.environ.setdefault(name, value)
    cpu_platform.install(tmp_path_factory.mktemp("platform"))


@pytest.fixture(scope="session")
def tiny_qwen(platform: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.save(tmp_path_factory.mktemp("tiny-qwen"))


@contextmanager
def running_engine(model: Path, **options: Any) -> Iterator[Any]:
    """The engine that a server starts; its plugins are loaded as in a process of the server."""
    import vllm_omni.platforms  # noqa: F401  chooses the platform
    from vllm_omni.diffusion.data import OmniDiffusionConfig
    from vllm_omni.diffusion.diffusion_engine import DiffusionEngine
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()
    config = OmniDiffusionConfig.from_kwargs(**{"dtype": "float32", "num_gpus": 1, "model": str(model)} | options)
    config.enrich_config()
    engine = DiffusionEngine.make_engine(config)
    try:
        yield engine
    finally:
        engine.close()


def pipeline_of(engine: Any) -> Any:
    return runner_of(engine).pipeline


def runner_of(engine: Any) -> Any:
    return engine.executor.driver_worker.worker.model_runner


def make_request(which: int, steps: int, *, reuse: object = None, guidance: float = 4.0, **sampling: Any) -> Any:
    """A request of its own name; `reuse` is what its extra arguments say."""
    from vllm_omni.diffusion.request import OmniDiffusionRequest
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    parameters = {
        "height": 64,
        "width": 64,
        "seed": which + 1,
        "generator_device": "cpu",
        "output_type": "latent",
        "true_cfg_scale": guidance,
        "extra_args": {} if reuse is None else {"omnireuse": reuse},
    }
    return OmniDiffusionRequest(
        prompt=PROMPTS[which],
        request_id=f"request-{next(_numbers)}",
        sampling_params=OmniDiffusionSamplingParams(num_inference_steps=steps, **{**parameters, **sampling}),
    )


def drive(engine: Any, arrivals: Mapping[int, list[Any]], *, aborts: Mapping[int, list[str]] | None = None) -> dict:
    """The results by request id, in the engine's own loop but wave by wave, so that a request joins at a known one."""
    results: dict[str, Any] = {}
    pending = dict(arrivals)
    wave = 0
    while pending or engine.scheduler.has_requests():
        for request in pending.pop(wave, []):
            engine.scheduler.add_request(request)
        for name in (aborts or {}).get(wave, []):
            from vllm_omni.diffusion.sched.interface import DiffusionRequestStatus

            engine.scheduler.finish_requests([name], DiffusionRequestStatus.FINISHED_ABORTED)
        scheduled = engine.scheduler.schedule()
        if scheduled.scheduled_request_ids:
            output = engine.execute_fn(scheduled)
            engine.scheduler.update_from_output(scheduled, output)
            for name in scheduled.scheduled_request_ids:
                one = output.get_request_output(name)
                if one is not None and one.finished:
                    results[name] = one.result
                    engine.scheduler.pop_request_state(name)
        wave += 1
    return results


def run(engine: Any, request: Any) -> Any:
    """The result of one request alone."""
    return drive(engine, {0: [request]})[request.request_id]
