"""One rank of a parallel model: the same run for each strategy, and what it decided. Started by torch's launcher."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from diffusers import ContextParallelConfig, FluxTransformer2DModel, TensorParallelConfig, WanTransformer3DModel
from diffusers.hooks import tensor_parallel
from diffusers.models import attention_dispatch
from torch.distributed.fsdp import fully_shard

import omnireuse
from omnireuse.errors import StateError
from omnireuse.tuning import entry
from tests.helpers.tiny import TINY, Tiny

STEPS = 20
STRATEGIES: dict[str, dict[str, Any]] = {
    "default": {},
    "speedup": {"speedup": 3.0},
    "tolerance": {"tolerance": 0.4},
    "tea_cache": {"backend": "tea_cache", "coefficients": [0.0, 0.0, 0.0, 1.0, 0.0], "rel_l1_thresh": 1.0},
    "db_cache": {"backend": "db_cache", "residual_diff_threshold": 0.95},
    "easy_cache": {"policy": omnireuse.EasyCache(threshold=0.9), "region": "call"},
    "sea_cache": {"policy": "sea_cache", "region": "call"},
    "taylorseer": {"backend": "taylorseer"},
    "never": {"policy": "never"},
}


def model(family: str) -> Tiny:
    """A model whose heads and tokens four ranks can share."""
    tiny = TINY[family]()
    size = {"flux": {"num_attention_heads": 4, "attention_head_dim": 16}, "wan": {"num_attention_heads": 4}}[family]
    torch.manual_seed(0)
    kind = {"flux": FluxTransformer2DModel, "wan": WanTransformer3DModel}[family]
    tiny.pipe.transformer = kind.from_config({**tiny.pipe.transformer.config, **size}).eval()
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
            latents = tiny.run(steps=STEPS, guided=True)
            found[name] = {"latents": latents, "reused": [event.reused for event in handle.events]}
    return found


@cache
def alone(family: str) -> dict[str, Any]:
    """As `all_runs`, of a model that is not parallel."""
    return all_runs(model(family))


def _attention_with_sums(
    ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, *options: Any, **_: Any
) -> Any:
    """Attention on the CPU with the logarithms of its sums, which a ring needs and diffusers' own does not return."""
    assert mask is None
    rows = [each.transpose(1, 2) for each in (query, key, value)]
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*rows, 0.0, False)
    is_asked = options[-1]
    return (out.transpose(1, 2), sums.transpose(1, 2)) if is_asked else out.transpose(1, 2)


def _ring(transformer: Any, size: int) -> None:
    attention_dispatch._native_attention_forward_op = _attention_with_sums
    transformer.enable_parallelism(config=ContextParallelConfig(ring_degree=size))


def _tensor(transformer: Any, size: int) -> None:
    tensor_parallel._SUPPORTED_TP_DEVICES += ("cpu",)
    transformer.enable_parallelism(config=TensorParallelConfig(tp_degree=size))


PARALLEL: dict[str, Callable[[Any, int], object]] = {
    "ulysses": lambda model, size: model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=size)),
    "ring": _ring,
    "tensor": _tensor,
    "fsdp": lambda model, size: fully_shard(model, mesh=dist.init_device_mesh("cpu", (size,))),
}


def _end_at_a_later_call(error: BaseException) -> Callable[..., None]:
    calls = iter(range(9))

    def end(*_: Any) -> None:
        if next(calls, None) is None:
            raise error

    return end


ENDS = {"raises": RuntimeError("rank 0 ran out of memory"), "interrupted": KeyboardInterrupt("rank 0 was interrupted")}


def join() -> None:
    """Become one of the ranks."""
    torch.set_num_threads(1)
    torch.accelerator.device_count = lambda: 1  # diffusers counts accelerators; the ranks share the CPU
    dist.init_process_group("gloo")


def lose(cases: str, end: str, folder: Path) -> None:
    """Run each `kind-family` of `cases` with a slow rank, and alone; write what this rank saw; then lose rank 0."""
    join()
    rank, size = dist.get_rank(), dist.get_world_size()
    figures: dict[str, Any] = {}
    with torch.no_grad():
        for case in cases.split(","):
            kind, family = case.split("-")
            tiny = model(family)
            PARALLEL[kind](tiny.pipe.transformer, size)
            slow = None
            if rank == 0:
                slow = tiny.pipe.transformer.register_forward_pre_hook(lambda *_: time.sleep(0.005))
            together = all_runs(tiny)
            if slow is not None:
                slow.remove()
            figures[case] = {name: {"reused": found["reused"]} for name, found in together.items()}
            for name, found in (alone(family) if rank == 0 else {}).items():
                figures[case][name] |= {
                    "alone": found["reused"],
                    "difference": float((together[name]["latents"] - found["latents"]).abs().max()),
                    "largest": float(found["latents"].abs().max()),
                }
    (folder / f"{rank}.json").write_text(json.dumps(figures), "utf-8")
    dist.barrier()
    if rank == 0:
        tiny.pipe.transformer.register_forward_pre_hook(_end_at_a_later_call(ENDS[end]))
    with torch.no_grad(), omnireuse.enable(tiny.pipe, tolerance=0.4):
        tiny.run(steps=STEPS, guided=True)


def leave() -> None:
    """End without taking gloo down: a rank whose peer closes its sockets first is aborted at times."""
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def too_late() -> dict[str, Any]:
    """Make the model parallel after reuse was enabled."""
    tiny = model("flux")
    with torch.no_grad(), omnireuse.enable(tiny.pipe, tolerance=0.4):
        PARALLEL["ulysses"](tiny.pipe.transformer, dist.get_world_size())
        try:
            tiny.run(steps=STEPS)
        except StateError as error:
            return {"refused": str(error)}
    return {}


def tunes() -> dict[str, Any]:
    """Tune on two pictures, and reuse the third; then enable anew."""
    tiny = model("flux")
    PARALLEL["ulysses"](tiny.pipe.transformer, dist.get_world_size())
    seen: dict[str, Any] = {"states": [], "computed": [], "paths": [], "latents": []}
    with torch.no_grad():
        full = [tiny.run(steps=20, seed=seed) for seed in range(2)]
        for seeds in (range(3), [2]):
            with omnireuse.enable(tiny.pipe, tune=2) as handle:
                for seed in seeds:
                    latents = tiny.run(steps=20, seed=seed)
                    seen["states"].append(handle.tuning.state)
                    seen["latents"].append(latents.double().sum().item())
                    if handle.tuning.state == "measuring":
                        assert torch.equal(latents, full[seed])
                seen["computed"].append([event.step for event in handle.events if not event.reused])
                seen["paths"].append(handle.tuning.path)
    return seen


def errs() -> dict[str, Any]:
    """Meet an error of tuning's own work on the second rank alone: before a picture, and then after one."""
    tiny = model("flux")
    PARALLEL["ulysses"](tiny.pipe.transformer, dist.get_world_size())

    def fail(*_: object, **__: object) -> None:
        raise LookupError("nobody expects it")

    seen: dict[str, Any] = {"states": [], "latents": []}
    for place in ("omnireuse.tuning.tuner.Configuration.of", "omnireuse.tuning.entry.FullRun.of"):
        with torch.no_grad(), contextlib.ExitStack() as stack:
            if dist.get_rank():
                stack.enter_context(mock.patch(place, fail))
            handle = stack.enter_context(omnireuse.enable(tiny.pipe))
            for _ in range(2):
                seen["latents"].append(tiny.run(steps=20).double().sum().item())
            seen["states"].append(str(handle.tuning))
    return seen


def each(folder: Path) -> None:
    """Run what needs no lost rank; write what this rank saw."""
    join()
    entry.PATIENCE = math.inf  # no test depends on the clock
    seen = {}
    for case in (too_late, tunes, errs):
        os.environ["OMNIREUSE_CACHE_DIR"] = str(folder / case.__name__)
        seen[case.__name__] = case()
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(seen), "utf-8")
    leave()


if __name__ == "__main__":
    if sys.argv[1] == "each":
        each(Path(sys.argv[2]))
    else:
        lose(*sys.argv[1:3], Path(sys.argv[3]))
