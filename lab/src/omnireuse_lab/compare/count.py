"""The share of a denoiser that really runs, whoever decides about it.

Hooks of other libraries stand before a block's `forward`, so a forward hook would count blocks that were skipped. Here
torch's FLOP counter looks into each block that is reached; what a cache skips inside of it does not count either.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import omnireuse
from omnireuse.hooks.denoisers import denoisers_of

__all__ = ["Work", "blocks_of", "now"]

_CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# torch's own table has attention for other devices only.
_ATTENTION = {_CPU_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}


def now() -> float:
    """`time.perf_counter`, once CUDA has done what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class Work:
    """Counts the work of the blocks of a pipeline's denoisers, from now until `close`.

    Attributes:
        flops: executed since the last `reset`; 0 if it counts calls alone.
        calls: of the denoisers, whether computed or not, since the last `reset`.
    """

    def __init__(self, pipeline: Any) -> None:
        self.reset()
        self._undo: list[Callable[[], None]] = []
        for denoiser in denoisers_of(pipeline):
            self._wrap(denoiser, self._count_call)
            for block in blocks_of(denoiser):
                self._wrap(block, self._count_block)

    def reset(self, *, calls_alone: bool = False) -> None:
        """Start at zero.

        Args:
            calls_alone: count no operations, which takes time.
        """
        self.flops, self.calls, self._calls_alone = 0, 0, calls_alone

    def close(self) -> None:
        """Stop counting."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _wrap(self, module: torch.nn.Module, count: Callable[..., Any]) -> None:
        inner, before = module.forward, vars(module).get("forward")

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return count(inner, args, kwargs)

        # As a wrapper of omnireuse: it leaves numbers as they are, and is no condition of a plan.
        forward.__module__ = omnireuse.__name__

        def undo() -> None:
            if before is None:
                del module.forward
            else:
                vars(module)["forward"] = before

        vars(module)["forward"] = forward
        self._undo.append(undo)

    def _count_call(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.calls += 1
        return inner(*args, **kwargs)

    def _count_block(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._calls_alone:
            return inner(*args, **kwargs)
        with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
            result = inner(*args, **kwargs)
        self.flops += counter.get_total_flops()
        return result


def blocks_of(denoiser: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks of a denoiser; its own children if it has no blocks."""
    named = list(denoiser.named_children())
    blocks = [child for name, child in named if isinstance(child, torch.nn.ModuleList) or "block" in name]
    return list(_flat(blocks or [child for _, child in named]))


def _flat(modules: Iterable[torch.nn.Module]) -> Iterator[torch.nn.Module]:
    for module in modules:
        yield from _flat(module) if isinstance(module, torch.nn.ModuleList) else [module]
