"""The contract of an adapter: the declaration of a model's block stack and of its signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from omnireuse.hooks.regions.stack import BlockStack

__all__ = ["check_adapter"]


def check_adapter(stack: BlockStack, denoiser: torch.nn.Module, call: Callable[[], Any]) -> None:
    """Watch a denoiser run once.

    Checked: the declared blocks exist and run in the declared order, each once; the signal is a tensor of floats with
    one row for each sample; reading it changes nothing, and reading it again gives the same.

    Args:
        denoiser: a model of that class, which may be small.
        call: runs it once, on inputs of its own.
    """
    name = stack.model
    assert type(denoiser).__name__ == name, f"the declaration is of {name}, the denoiser is {type(denoiser).__name__}"
    declared = stack.blocks_of(denoiser)
    blocks = [block.module for block in declared]
    order: list[torch.nn.Module] = []
    first_call: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        order.append(module)
        if module is blocks[0]:
            first_call.append((args, kwargs))

    hooks = [block.register_forward_pre_hook(enter, with_kwargs=True) for block in blocks]
    try:
        with torch.no_grad():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    places = [next(place for place, block in enumerate(blocks) if block is ran) for ran in order]
    assert places == list(range(len(blocks))), f"{name}: blocks must run once each in the order of lists, got {places}"
    args, kwargs = first_call[0]
    given = declared[0].arguments(args, kwargs)
    tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
    before = [value.clone() for value in tensors]
    with torch.no_grad():
        signal, again = (declared[0].watched(stack.signal, given) for _ in range(2))
    assert isinstance(signal, torch.Tensor), f"{name}: signal must return a tensor, got {type(signal).__name__}"
    rows = given[stack.streams[stack.main_stream]].shape[0]
    assert signal.is_floating_point(), f"{name}: signal must be a tensor of floats, got {signal.dtype}"
    assert signal.shape[0] == rows, f"{name}: signal must have a row for each sample, got {tuple(signal.shape)}"
    assert torch.equal(signal, again), f"{name}: reading the signal again must give the same"
    assert all(map(torch.equal, tensors, before)), f"{name}: signal must not write to its arguments"
