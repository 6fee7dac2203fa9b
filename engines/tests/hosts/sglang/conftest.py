"""SGLang's own diffusion pipelines in this process, on the Flux of this repository."""

from __future__ import annotations

import importlib.util
import os
import socket
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engines.tests.hosts.operators import define_operators
from tests import TOP

IN_SGLANG = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("sglang") is None, reason="needs SGLang; scripts/sglang_venv.sh builds a venv with it"
    ),
]
SHAPES_FLUX = TOP / "models" / "shapes-flux"
TOKENS = 20
"""Positions of the tiny text encoders."""
PROMPTS = ("a large red circle above a small blue cross on a plain gray background", "a small green square")
OPTIONS = {
    "model_path": str(SHAPES_FLUX),
    "num_gpus": 1,
    "log_level": "info",
    "dit_precision": "fp32",
    "vae_precision": "fp32",
    "text_encoder_precisions": ("fp32", "fp32"),
}
NATIVE = {**OPTIONS, "backend": "sglang", "model_id": "FLUX.1-dev"}
DIFFUSERS = {**OPTIONS, "backend": "diffusers"}
DIFFUSERS_KWARGS = {"max_sequence_length": TOKENS, "negative_prompt": "", "true_cfg_scale": 6.0}


@dataclass
class Server:
    """A loaded pipeline, and the arguments of its server."""

    name: str
    pipeline: Any
    args: Any

    @property
    def transformer(self) -> torch.nn.Module:
        whole = getattr(self.pipeline, "diffusers_pipe", None)
        return self.pipeline.get_module("transformer") if whole is None else whole.transformer

    def request(
        self, prompt: int = 0, steps: int = 28, *, reuse: object = None, warmup: bool = False, **sampling: Any
    ) -> Any:
        """A request; `reuse` is what its extra arguments say."""
        from sglang.multimodal_gen.configs.sample.sampling_params import SamplingParams
        from sglang.multimodal_gen.runtime.pipelines_core.schedule_batch import Req

        extras = {} if self.args.backend == "sglang" else DIFFUSERS_KWARGS
        parameters = {
            "prompt": PROMPTS[prompt],
            "negative_prompt": "",
            "num_inference_steps": steps,
            "guidance_scale": 4.5,
            "true_cfg_scale": 6.0,
            "height": 64,
            "width": 64,
            "seed": prompt,
            "save_output": False,
            "generator_device": "cpu",
            "diffusers_kwargs": extras if reuse is None else {**extras, "omnireuse": reuse},
            **sampling,
        }
        sampling_params = SamplingParams(**parameters)
        request = Req(sampling_params=sampling_params)
        sampling_params.apply_request_extra(request)
        request.is_warmup = warmup
        return request

    def calls(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, int]:
        """The picture of a request, and how often the transformer was called for it."""
        seen: list[None] = []
        hook = self.transformer.register_forward_hook(lambda *_: seen.append(None))
        try:
            result = self.pipeline.forward(self.request(*args, **kwargs), self.args)
        finally:
            hook.remove()
        return result.output, len(seen)


def server_args(**options: Any) -> Any:
    """The arguments of a server, as its command line makes them."""
    from sglang.multimodal_gen.runtime.server_args import ServerArgs, set_global_server_args

    args = ServerArgs.from_kwargs(**options)
    if options["backend"] == "sglang":
        for extra in args.pipeline_config.text_encoder_extra_args:
            extra["max_length"] = TOKENS
    set_global_server_args(args)
    return args


def prepare() -> None:
    """The environment that a launcher gives to the one process of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(HF_HUB_OFFLINE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE="1")
    os.environ.pop("OMNIREUSE_SGLANG", None)
    define_operators()


@pytest.fixture(scope="session", autouse=True)
def environment() -> None:
    prepare()


@pytest.fixture(scope="session")
def servers(environment: None) -> dict[str, Server]:
    """Both backends, loaded before any hook is applied."""
    return load_servers()


def load_servers() -> dict[str, Server]:
    """Both backends, by name."""
    from sglang.multimodal_gen.runtime.distributed.parallel_state import (
        maybe_init_distributed_environment_and_model_parallel,
    )
    from sglang.multimodal_gen.runtime.pipelines_core import build_pipeline

    maybe_init_distributed_environment_and_model_parallel(
        tp_size=1, sp_size=1, distributed_init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    )
    found = {}
    for name, options in (("native", NATIVE), ("diffusers", DIFFUSERS)):
        args = server_args(**options)
        found[name] = Server(name, build_pipeline(args), args)
    return found


@pytest.fixture(scope="session")
def plain(servers: dict[str, Server]) -> dict[tuple[str, int], torch.Tensor]:
    """Pictures of an SGLang without the plugin, by backend and steps; the plugin is loaded after them."""
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    pictures = {(name, steps): server.calls(0, steps)[0] for name, server in servers.items() for steps in (28, 24)}
    apply_plugin_hooks()
    return pictures


@pytest.fixture(params=["native", "diffusers"])
def server(request: pytest.FixtureRequest, servers: dict[str, Server], plain: object) -> Server:
    return servers[request.param]


@pytest.fixture
def native(servers: dict[str, Server], plain: object) -> Server:
    return servers["native"]
