"""What a server of the tests finds beside SGLang: a Python with a folder of these files on its path takes them for an
installed package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.tests.hosts.keeping import bytes_of_tensors, live_generations
from engines.tests.hosts.sglang.conftest import TOKENS

_RUNTIME = "sglang.multimodal_gen.runtime"
_ARGUMENTS = f"{_RUNTIME}.server_args.server_args.ServerArgs.__post_init__"
_REQUEST = f"{_RUNTIME}.pipelines_core.composed_pipeline_base.ComposedPipelineBase.forward"

COUNTED = 4
"""After requests of so many steps it is counted what the worker keeps: that takes longer than a request."""
_gauges: dict[str, Any] = {}


def announce(folder: Path) -> Path:
    """Write the folder: this plugin, and the operators that make torchvision importable in each process."""
    record = folder / "omnireuse_test_plugin-0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: omnireuse-test-plugin\nVersion: 0\n", "utf-8")
    (record / "entry_points.txt").write_text(f"[sglang.multimodal_gen.plugins]\ntests = {__name__}:register\n", "utf-8")
    (folder / "sitecustomize.py").write_text(
        "from engines.tests.hosts import operators\n\noperators.define_operators()\n", "utf-8"
    )
    return folder


def register() -> None:
    """Fit the server to the tiny text encoders, and report what its worker keeps."""
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry, HookType

    HookRegistry.register(_ARGUMENTS, _short_prompts, HookType.AFTER)
    HookRegistry.register(_REQUEST, _served, HookType.AROUND)


def _short_prompts(result: Any, server_args: Any) -> None:
    for extra in server_args.pipeline_config.text_encoder_extra_args:
        extra["max_length"] = TOKENS


def _served(original: Callable[..., Any], pipeline: Any, batch: Any, server_args: Any) -> Any:
    from prometheus_client import Gauge

    result = original(pipeline, batch, server_args)
    if batch.num_inference_steps != COUNTED:
        return result
    for count in (live_generations, bytes_of_tensors):
        name = f"test_{count.__name__}"
        if name not in _gauges:
            _gauges[name] = Gauge(name, "Of the tests", multiprocess_mode="mostrecent")
        _gauges[name].set(count())
    return result
