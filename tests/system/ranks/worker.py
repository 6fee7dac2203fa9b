"""One rank of a parallel model: the same run for each strategy, and what it decided. Started by torch's launcher."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from diffusers import ContextParallelConfig, FluxTransformer2DModel
from torch.distributed.fsdp import fully_shard

import omnireuse
from omnireuse.errors import StateError
from tests.helpers.tiny import TINY, Tiny

STRATEGIES: dict[str, dict[str, Any]] = {
    "default": {},
    "speedup": {"speedup": 3.0},
    "tolerance": {"tolerance": 0.1},
    "tea_cache": {"backend": "tea_cache", "coefficients": [0.0, 0.0, 0.0, 1.0, 0.0], "rel_l1_thresh": 1.0},
    "db_cache": {"backend": "db_cache", "residual_diff_threshold": 0.95},
    "easy_cache": {"policy": omnireuse.EasyCache(threshold=0.9), "region": "call"},
    "sea_cache": {"policy": "sea_cache", "region": "call"},
    "taylorseer": {"backend": "taylorseer"},
    "never": {"policy": "never"},
}


def model() -> Tiny:
    """A Flux whose heads and tokens four ranks can share."""
    tiny = TINY["flux"]()
    own = {**tiny.pipe.transformer.config, "num_attention_heads": 4, "attention_head_dim": 16}
    torch.manual_seed(0)
    tiny.pipe.transformer = FluxTransformer2DModel.from_config(own).eval()
    for parameter in tiny.pipe.transformer.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[1] ** -0.5)
    inputs = tiny.inputs

    def wider(**asked: Any) -> dict[str, Any]:
        given = inputs(**asked)
        for name in ("prompt_embeds", "negative_prompt_embeds"):
            if name in given:
                given[name] = given[name].repeat(1, 2, 1)[:, :8]
        return given

    return replace(tiny, inputs=wider)


def all_runs(tiny: Tiny) -> dict[str, Any]:
    """Latents and decisions of each strategy."""
    found: dict[str, Any] = {}
    for name, options in STRATEGIES.items():
        with omnireuse.enable(tiny.pipe, **options) as handle:
            latents = tiny.run(steps=24, guided=True)
            found[name] = {"latents": latents, "reused": [event.reused for event in handle.events]}
    return found


def _raise_at_a_later_call(module: torch.nn.Module, _: Any) -> None:
    module.calls = getattr(module, "calls", 0) + 1
    if module.calls == 9:
        raise RuntimeError("rank 0 ran out of memory")


SLIPS = {"slow": lambda *_: time.sleep(0.02), "raises": _raise_at_a_later_call}


def main(kind: str, slip: str, folder: Path) -> None:
    """Run alone, then as one of several ranks, and write what this rank saw."""
    torch.set_num_threads(1)
    torch.accelerator.device_count = lambda: 1  # diffusers counts accelerators; the ranks share the CPU
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        alone = all_runs(model()) if slip not in ("raises", "late") else {}
        tiny = model()
        if kind == "ulysses":
            tiny.pipe.transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree=size))
        else:
            fully_shard(tiny.pipe.transformer, mesh=dist.init_device_mesh("cpu", (size,)))
        if rank == 0:
            tiny.pipe.transformer.register_forward_pre_hook(SLIPS.get(slip, lambda *_: None))
        together = all_runs(tiny) if slip != "late" else {}
    figures: dict[str, Any] = {
        name: {
            "reused": together[name]["reused"],
            "alone": alone[name]["reused"],
            "difference": float((together[name]["latents"] - alone[name]["latents"]).abs().max()),
            "largest": float(alone[name]["latents"].abs().max()),
        }
        for name in alone
    }
    if slip == "late":
        later = model()
        with torch.no_grad(), omnireuse.enable(later.pipe, tolerance=0.1):
            later.pipe.transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree=size))
            try:
                later.run(steps=24)
            except StateError as error:
                figures = {"refused": str(error)}
    (folder / f"{rank}.json").write_text(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
