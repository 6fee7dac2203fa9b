"""The share of a denoiser that really runs, whoever decides about it.

Hooks of other libraries stand before `forward`, so a forward hook would count blocks that were skipped. This module
counts the calls that reach the parts of each block (attention, feed-forward, …), because some caches skip single parts.
A part weighs what torch's FLOP counter says of one execution for one sample.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from omnireuse.hooks.denoisers import denoisers_of

__all__ = ["Work", "now", "parts_of"]

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
        flops: executed since the last `reset`.
        calls: of the denoisers, whether computed or not, since the last `reset`.
        rows: samples in the last call of a denoiser.
    """

    def __init__(self, pipeline: Any) -> None:
        self.reset()
        self.rows = 0
        self._weights: dict[int, float] = {}
        self._undo: list[Callable[[], None]] = []
        for denoiser in denoisers_of(pipeline):
            self._wrap(denoiser, self._count_call)
            for part in parts_of(denoiser):
                self._wrap(part, self._count_part)

    def reset(self) -> None:
        """Start at zero; the weights of parts stay known."""
        self.flops, self.calls = 0.0, 0

    def close(self) -> None:
        """Stop counting."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _wrap(self, module: torch.nn.Module, count: Callable[..., Any]) -> None:
        inner, before = module.forward, vars(module).get("forward")

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return count(module, inner, args, kwargs)

        forward.__module__ = __name__  # of the wrapper: it leaves numbers as they are, and is no condition of a plan

        def undo() -> None:
            if before is None:
                del module.forward
            else:
                vars(module)["forward"] = before

        vars(module)["forward"] = forward
        self._undo.append(undo)

    def _count_call(self, _: torch.nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.calls += 1
        self.rows = _rows(args, kwargs)
        return inner(*args, **kwargs)

    def _count_part(self, part: torch.nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        rows, known = _rows(args, kwargs), id(part) in self._weights
        with nullcontext() if known else FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
            result = inner(*args, **kwargs)
        if counter is not None:
            self._weights[id(part)] = counter.get_total_flops() / rows
        self.flops += self._weights[id(part)] * rows
        return result


def parts_of(denoiser: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The parts of its blocks; its own children where it has no blocks."""
    named = list(denoiser.named_children())
    blocks = [child for name, child in named if isinstance(child, torch.nn.ModuleList) or "block" in name]
    for block in _flat(blocks or [child for _, child in named]):
        for child in list(block.children()) or [block]:
            yield from child if isinstance(child, torch.nn.ModuleList) else [child]


def _flat(modules: Iterable[torch.nn.Module]) -> Iterator[torch.nn.Module]:
    for module in modules:
        yield from _flat(module) if isinstance(module, torch.nn.ModuleList) else [module]


def _rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    tensors = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.ndim)
    return next((each.shape[0] for each in tensors), 1)
