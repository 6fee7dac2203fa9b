"""What CUDA graphs and fused kernels do to tensors, on the CPU: one buffer for every result, and writes in place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.helpers.tiny import Tiny

__all__ = ["REPLAYS", "static_blocks", "static_outputs", "writing_blocks", "writing_denoiser"]


def static_outputs(tiny: Tiny, calls: int = 2) -> None:
    """Let the denoiser return the same tensors at every step, which are overwritten before the next one.

    Args:
        calls: of the denoiser in a step, each with tensors of its own: guidance reads them together.
    """
    _make_static(_denoiser(tiny), calls)


def static_blocks(tiny: Tiny) -> None:
    """The same for every block, as where each block is a graph of its own."""
    for block in _blocks(tiny):
        _make_static(block, 1)


def writing_blocks(tiny: Tiny) -> None:
    """Let every block write its results over its streams."""
    for block in _blocks(tiny):
        block.register_forward_pre_hook(_note_streams, with_kwargs=True)
        block.register_forward_hook(_write_streams, with_kwargs=True)


def writing_denoiser(tiny: Tiny) -> None:
    """Let the denoiser use its latents as scratch space; for pipelines that hand it a copy of theirs."""

    def scratch(_module: Any, args: Any, kwargs: Any, _output: Any) -> None:
        (args[0] if args else kwargs["hidden_states"]).fill_(float("nan"))

    _denoiser(tiny).register_forward_hook(scratch, with_kwargs=True)


REPLAYS: dict[str, Callable[[Tiny], None]] = {
    "static outputs": static_outputs,
    "static blocks": static_blocks,
    "writing blocks": writing_blocks,
}


def _denoiser(tiny: Tiny) -> torch.nn.Module:
    return getattr(tiny.pipe, "transformer", None) or tiny.pipe.unet  # type: ignore[no-any-return]


def _blocks(tiny: Tiny) -> list[torch.nn.Module]:
    names = ("transformer_blocks", "single_transformer_blocks", "blocks")
    return list(itertools.chain(*(getattr(_denoiser(tiny), name, ()) for name in names)))


def _make_static(module: torch.nn.Module, calls: int) -> None:
    buffers: list[dict[Any, torch.Tensor]] = [{} for _ in range(calls)]
    count = itertools.count()

    def spoil(*_: Any) -> None:
        for buffer in buffers[next(count) % calls].values():
            buffer.fill_(float("nan"))

    turn = itertools.count()

    def replay(_module: Any, _args: Any, output: Any) -> Any:
        mine = buffers[next(turn) % calls]
        leaves, structure = pytree.tree_flatten(output)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                key = (place, leaf.shape, leaf.dtype)
                leaves[place] = mine.setdefault(key, torch.empty_like(leaf)).copy_(leaf)
        return pytree.tree_unflatten(leaves, structure)

    module.register_forward_pre_hook(spoil)
    module.register_forward_hook(replay)


def _note_streams(module: Any, args: Any, kwargs: Any) -> None:
    names = ("hidden_states", "encoder_hidden_states")
    module.streams = dict(zip(names, args, strict=False)) | {name: kwargs[name] for name in names if name in kwargs}


def _write_streams(module: Any, _args: Any, _kwargs: Any, output: Any) -> Any:
    """Each tensor that was returned, written over the stream of its shape that came in."""
    streams = [stream for stream in module.streams.values() if isinstance(stream, torch.Tensor)]

    def written(leaf: Any) -> Any:
        place = next((place for place, each in enumerate(streams) if each.shape == leaf.shape), None)
        return leaf if place is None else streams.pop(place).copy_(leaf)

    outputs = output if isinstance(output, tuple) else (output,)
    result = tuple(written(leaf) for leaf in outputs)
    return result if isinstance(output, tuple) else result[0]
