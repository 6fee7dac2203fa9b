"""Attentions of full and lean calls: keys and values of references are kept, or put beside those of the other tokens.

The attention processors of a model in diffusers call `dispatch_attention_fn` by the name in their module. While a full
or lean call runs, a function in that place hands the attentions of this context to it. All others, and those in graphs
of `torch.compile`, are called straight through.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from omnireuse.errors import StateError
from omnireuse.references.declared import Split

__all__ = ["FullPass", "LeanPass", "attending", "free_bytes"]

_NAME = "dispatch_attention_fn"
_lock = threading.Lock()
_patches: dict[str, _Patch] = {}
"""By the name of the module."""
_pass: ContextVar[FullPass | LeanPass | None] = ContextVar("omnireuse_references", default=None)
"""The full or lean call under way in this context."""


class _Patch:
    """The function in place of that of one module, and the number of calls that need it."""

    def __init__(self, module: Any) -> None:
        self.module, self.calls = module, 0
        original = self.original = getattr(module, _NAME)

        @functools.wraps(original)
        def dispatch(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
            current = None if torch.compiler.is_compiling() else _pass.get()
            if current is not None:
                key, value, attn_mask = current.take(query, key, value, attn_mask, kwargs)
            return original(query, key, value, attn_mask, *args, **kwargs)

        self.dispatch = dispatch
        setattr(module, _NAME, dispatch)


@contextmanager
def attending(current: FullPass | LeanPass, module: Any) -> Iterator[None]:
    """The attentions of a model that this module defines belong to a full or lean call."""
    with _lock:
        patch = _patches.setdefault(module.__name__, _patches.get(module.__name__) or _Patch(module))
        patch.calls += 1
    token = _pass.set(current)
    try:
        yield
    finally:
        _pass.reset(token)
        with _lock:
            patch.calls -= 1
            if not patch.calls:
                del _patches[module.__name__]
                # What somebody has put around it meanwhile stays, and calls straight through.
                if getattr(module, _NAME) is patch.dispatch:
                    setattr(module, _NAME, patch.original)


class FullPass:
    """Keeps the references' keys and values of one full call.

    Args:
        split: its tokens.
        attentions: how many attentions the references take part in.
        on_host: keep them in the memory of the host.

    Attributes:
        keys, values: of each attention so far, (batch, references, heads, channels).
        why_not: why nothing is kept; empty if all is.
    """

    def __init__(self, split: Split, attentions: int, *, on_host: bool) -> None:
        self._split, self._attentions, self._on_host = split, attentions, on_host
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._sums: list[torch.Tensor] = []
        self.why_not = ""

    def take(self, query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Key, value and mask of one attention, as they are."""
        if not self.why_not and query.shape[1] == key.shape[1] == self._split.full:
            if options.get("parallel_config") is not None:
                self._drop("several ranks share an attention")
            else:
                self._keep(key[:, self._split.lean :].detach(), value[:, self._split.lean :].detach())
        return key, value, mask

    def _keep(self, key: torch.Tensor, value: torch.Tensor) -> None:
        if not self.keys:
            needed = (key.nbytes + value.nbytes) * self._attentions
            free = free_bytes(torch.device("cpu") if self._on_host else key.device)
            if free is not None and needed > free:
                place = "on the host" if self._on_host else f"on {key.device}; references='host' keeps them there"
                return self._drop(f"{needed / 2**30:.2f} GiB are needed, and {free / 2**30:.2f} GiB are free {place}")
        try:
            self.keys.append(_copied(key, self._on_host))
            self.values.append(_copied(value, self._on_host))
        except RuntimeError as error:  # no memory, at last
            return self._drop(f"they cannot be copied: {error!s:.200}")
        wide = None if key.dtype == torch.float64 else torch.float32
        self._sums.append(key.sum(dtype=wide) + value.sum(dtype=wide))
        return None

    def _drop(self, why: str) -> None:
        self.why_not = why
        self.keys.clear()
        self.values.clear()

    def end(self) -> None:
        """The call is done. Cost: it waits for the device."""
        if not self.why_not and len(self.keys) != self._attentions:
            seen = f"{len(self.keys)} of {self._attentions} attentions were seen"
            self._drop(f"{seen}: the model is compiled, has processors of its own or leaves some out")
        if not self.why_not:
            broken = torch.stack(self._sums).isfinite().logical_not().tolist()
            if any(broken):
                self._drop(f"keys or values of attention {broken.index(True)} are NaN or infinite")


class LeanPass:
    """Puts kept keys and values beside those of a lean call.

    Args:
        split: tokens of the full call that they were kept of.
        keys, values: of each attention.
    """

    def __init__(self, split: Split, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        self._split, self._kept = split, list(zip(keys, values, strict=True))
        self._used = 0

    @property
    def is_under_way(self) -> bool:
        """True in the context that computes the call."""
        return _pass.get() is self

    def take(self, query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Key, value and mask of one attention, with those of the references."""
        if query.shape[1] == key.shape[1] == self._split.lean:
            if self._used == len(self._kept):
                raise StateError(f"a lean call has more attentions than the {self._used} of the full one")
            kept_key, kept_value = self._kept[self._used]
            self._used += 1
            key, value = _with(key, kept_key), _with(value, kept_value)
            if mask is not None and mask.shape[-1] == self._split.lean:
                visible = mask.new_ones if mask.dtype == torch.bool else mask.new_zeros
                mask = torch.cat([mask, visible((*mask.shape[:-1], self._split.references))], dim=-1)
        return key, value, mask

    def end(self) -> None:
        """The call is done. Raise a StateError if it has left out an attention."""
        if self._used != len(self._kept):
            raise StateError(f"a lean call has {self._used} attentions, and the full one had {len(self._kept)}")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that are free on a device, with those that torch holds and does not use; None if nobody tells."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        # Free pages alone leave out what the kernel holds of files and gives back.
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines() if device.type == "cpu" else []
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError):
        return None


def _copied(tensor: torch.Tensor, on_host: bool) -> torch.Tensor:
    if not on_host or tensor.device.type == "cpu":
        return tensor.clone(memory_format=torch.contiguous_format)
    # From pinned memory copies run beside the computation; both copies are in the order of one stream.
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return copy.copy_(tensor, non_blocking=tensor.device.type == "cuda")


def _with(own: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    if kept.dtype != own.dtype or kept.shape[0] != own.shape[0] or kept.shape[2:] != own.shape[2:]:
        raise StateError(f"kept keys {tuple(kept.shape)} of {kept.dtype} do not fit {tuple(own.shape)} of {own.dtype}")
    return torch.cat([own, kept.to(own.device, non_blocking=True)], dim=1)
