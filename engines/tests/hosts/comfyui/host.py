"""ComfyUI in this process, on the CPU, with the small Flux of this repository. Import it only where ComfyUI is."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch

from engines.tests.hosts.operators import define_operators
from reference.load import find_image_pipeline
from tests import TOP

COMFYUI = Path(os.environ["COMFYUI"])
STEPS, GUIDANCE = 20, 6.0

define_operators()
# ComfyUI reads the command line when it is imported.
_arguments = sys.argv
sys.argv = sys.argv[:1]
sys.path.insert(0, str(COMFYUI))
from comfy.cli_args import args  # noqa: E402

args.cpu = True
import comfy.latent_formats  # noqa: E402
import comfy.model_detection  # noqa: E402
import comfy.model_patcher  # noqa: E402
import comfy.patcher_extension  # noqa: E402
import comfy.sample  # noqa: E402
import comfy.samplers  # noqa: E402
import comfy.supported_models  # noqa: E402
import comfy.utils  # noqa: E402

sys.argv = _arguments


class _Latents(comfy.latent_formats.LatentFormat):
    latent_channels, scale_factor, shift_factor = 8, 1.0, 0.0


def load_model() -> Any:
    """The transformer of `find_image_pipeline`. ComfyUI's own detection knows Flux by its published sizes only."""
    path = find_image_pipeline() / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = comfy.model_detection.convert_diffusers_mmdit(comfy.utils.load_torch_file(str(path)), "")
    config = comfy.supported_models.FluxSchnell(
        {
            "image_model": "flux",
            "guidance_embed": False,
            "in_channels": 8,
            "out_channels": 8,
            "patch_size": 2,
            "vec_in_dim": 128,
            "context_in_dim": 128,
            "hidden_size": 160,
            "mlp_ratio": 4.0,
            "num_heads": 5,
            "depth": 2,
            "depth_single_blocks": 4,
            "axes_dim": [4, 14, 14],
            "theta": 10000,
            "qkv_bias": True,
            "txt_ids_dims": [],
        }
    )
    config.latent_format = _Latents()
    config.set_inference_dtype(torch.float32, None)
    model = config.get_model(weights, "")
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
    model.load_model_weights(weights, "", assign=patcher.is_dynamic())
    return patcher


def nodes() -> ModuleType:
    """The package of nodes, loaded as ComfyUI loads a folder of custom_nodes."""
    name, folder = "custom_nodes.omnireuse", TOP / "integrations" / "comfyui"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def executor() -> tuple[ModuleType, dict[str, Any]]:
    """ComfyUI's module that runs graphs, and the table of nodes that it knows."""
    # Nodes of sound, and of no use here.
    for name in ("torchaudio", "torchaudio.functional", "torchaudio.transforms"):
        sys.modules.setdefault(name, MagicMock())
    import execution
    import nodes

    return execution, nodes.NODE_CLASS_MAPPINGS


def runner(execution: ModuleType) -> Any:
    """What runs graphs, and keeps the outputs of nodes from one to the next."""
    return execution.PromptExecutor(MagicMock(), cache_args={"ram": 0.0, "ram_inactive": 0.0, "lru": 0})


def executed(
    execution: ModuleType, prompt: dict[str, Any], outputs: list[str], runner: Any, item: str = "prompt"
) -> dict[str, Any]:
    """Run a graph as the server does; what each of the output nodes shows."""
    assert asyncio.run(execution.validate_prompt(item, prompt, None))[0]
    runner.execute(prompt, item, {}, outputs)
    assert runner.success, runner.status_messages
    return runner.history_result["outputs"]


def condition(seed: int, **more: Any) -> list[Any]:
    """A condition of random text embeddings."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(1, 20, 128, generator=generator)
    return [[tokens, {"pooled_output": torch.randn(1, 128, generator=generator), **more}]]


def noise(seed: int, batch: int = 1) -> torch.Tensor:
    """The noise that a run begins with."""
    return torch.randn(batch, 8, 16, 16, generator=torch.Generator().manual_seed(seed))


def sample(
    model: Any,
    sampler: str = "euler",
    *,
    steps: int = STEPS,
    cfg: float = GUIDANCE,
    seed: int = 0,
    batch: int = 1,
    positive: list[Any] | None = None,
    negative: list[Any] | None = None,
    latent: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """The latents that the KSampler node gives."""
    start = noise(seed, batch)
    with torch.inference_mode():
        return comfy.sample.sample(
            model,
            start,
            steps,
            cfg,
            sampler,
            options.pop("scheduler", "simple"),
            positive or condition(1),
            negative or condition(2),
            torch.zeros_like(start) if latent is None else latent,
            disable_pbar=True,
            seed=seed,
            **options,
        )


class CallCounter:
    """Counts the calls of the model, by the sigma of each.

    Args:
        model: is patched in place; give a clone.
    """

    def __init__(self, model: Any) -> None:
        self.sigmas: list[float] = []
        model.add_wrapper_with_key(comfy.patcher_extension.WrappersMP.DIFFUSION_MODEL, "counter", self._call)

    def _call(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("transformer_options") or args[-1]
        self.sigmas.append(float(options["sigmas"][0]))
        return executor(*args, **kwargs)
