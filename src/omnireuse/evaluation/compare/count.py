"""How much of a denoiser really runs, whoever decides about it.

Hooks of other libraries stand before `forward`, so a forward hook would count blocks that were skipped. What is counted
here are the calls that get through to the parts of each block (attention, feed-forward, …), since some caches skip a
part alone. A part weighs what torch's FLOP counter says of one execution for one sample.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of

__all__ = ["Work"]


def _attention_on_cpu(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    count: int = sdpa_flop_count(query, key, value)
    return count


#: torch's own table has attention for other devices only.
EXTRA = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_on_cpu}


class Work:
    """Counts what the blocks of a pipeline's denoisers execute, from now until `close`.

    Attributes:
        flops: executed since the last `reset`.
        calls: of the denoisers, let through or not, since the last `reset`.
        rows: samples in the last call of a denoiser.
        began: when the first call since the last `reset` came, by `time.perf_counter`; None before it.

    Raises:
        UnsupportedModelError: a pipeline without a denoiser.
    """

    def __init__(self, pipeline: Any) -> None:
        self.flops, self.calls, self.rows = 0.0, 0, 0
        self.began: float | None = None
        self._weights: dict[int, float] = {}
        self._undo: list[Callable[[], None]] = []
        for denoiser in denoisers_of(pipeline):
            self._stand_before(denoiser, self._count_call)
            for part in parts_of(denoiser):
                self._stand_before(part, self._count_part)

    def reset(self) -> None:
        """Start at zero; what parts weigh stays known."""
        self.flops, self.calls, self.began = 0.0, 0, None

    def close(self) -> None:
        """Stop counting."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _stand_before(self, module: torch.nn.Module, count: Callable[..., Any]) -> None:
        inner, before = module.forward, vars(module).get("forward")

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return count(module, inner, args, kwargs)

        def undo() -> None:
            if before is None:
                del module.forward
            else:
                vars(module)["forward"] = before

        vars(module)["forward"] = forward
        self._undo.append(undo)

    def _count_call(self, _: torch.nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.began is None:
            self.began = time.perf_counter()
        self.calls += 1
        self.rows = _rows(args, kwargs)
        return inner(*args, **kwargs)

    def _count_part(self, part: torch.nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        rows, key = _rows(args, kwargs), id(part)
        if key not in self._weights:
            with FlopCounterMode(display=False, custom_mapping=EXTRA) as counter:
                result = inner(*args, **kwargs)
            self._weights[key] = counter.get_total_flops() / rows
        else:
            result = inner(*args, **kwargs)
        self.flops += self._weights[key] * rows
        return result


def parts_of(denoiser: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The parts of its blocks; of a denoiser that is no list of blocks, its own."""
    named = [(name, child) for name, child in denoiser.named_children()]
    blocks = [child for name, child in named if isinstance(child, torch.nn.ModuleList) or "block" in name]
    for block in blocks or [child for _, child in named]:
        yield from _parts(block, depth=0)


def _parts(module: torch.nn.Module, depth: int) -> Iterator[torch.nn.Module]:
    if isinstance(module, torch.nn.ModuleList):
        for item in module:
            yield from _parts(item, depth)
    elif depth == 0 and any(True for _ in module.children()):
        for child in module.children():
            yield from _parts(child, depth + 1)
    else:
        yield module


def _rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    tensors = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.ndim)
    first = next(tensors, None)
    return 1 if first is None else first.shape[0]
