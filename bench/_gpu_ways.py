"""Ways of running a transformer on an accelerator, which step reuse must leave as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench._true_size import Sampler

__all__ = ["WAYS"]


def _compile_blocks(sampler: Sampler) -> None:
    sampler.transformer.compile_repeated_blocks(fullgraph=True)


def _compile_whole(sampler: Sampler) -> None:
    sampler.transformer.compile(fullgraph=True)


def _record_graphs(sampler: Sampler) -> None:
    sampler.transformer.compile(mode="reduce-overhead")


def _hold_int8(sampler: Sampler) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(sampler.transformer, Int8WeightOnlyConfig())


def _offload_groups(sampler: Sampler) -> None:
    on_cuda = sampler.device.type == "cuda"
    sampler.transformer.enable_group_offload(
        onload_device=sampler.device,
        offload_device=torch.device("cpu"),
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=on_cuda,
    )


WAYS: dict[str, Callable[[Sampler], None]] = {
    "compiled blocks": _compile_blocks,
    "compiled whole": _compile_whole,
    "CUDA graphs": _record_graphs,
    "int8 weights": _hold_int8,
    "offloaded by groups": _offload_groups,
}
"""Each changes a sampler. CUDA graphs are those of ``torch.compile(mode="reduce-overhead")``, int8 weights those of
torchao, and groups of one block are fetched on a stream of their own."""
