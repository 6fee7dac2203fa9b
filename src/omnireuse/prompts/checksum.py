"""Checksums of content: equal in every process that has loaded the same weights, on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from omnireuse.prompts.keys import digest_of

__all__ = ["parts_checksum", "tensor_checksum"]

_CHUNK = 1 << 20
_PRIME = 1_099_511_628_211  # the 64-bit FNV prime; any odd number would do


def parts_checksum(parts: dict[str, Any]) -> str:
    """32 hex digits for the encoders, tokenizers and processors that a prompt goes through.

    Cost: reads every weight once (memory bandwidth, on its own device), so it is made once an epoch and only for stores
    that outlive the process.
    """
    described = [f"{name}={_describe(part)}".encode() for name, part in sorted(parts.items())]
    return digest_of(*described).hex()


def _describe(part: Any) -> str:
    kind = f"{type(part).__module__}.{type(part).__qualname__}"
    if isinstance(part, torch.Tensor):
        return f"{kind} {_describe_value(part)}"
    if isinstance(part, nn.Module):
        layers = [f"{name}:{type(module).__qualname__}" for name, module in part.named_modules()]
        config: Any = getattr(part, "config", None)
        text = config.to_json_string() if hasattr(config, "to_json_string") else repr(config)
        state = {**part.state_dict(), **dict(part.named_buffers())}
        values = [f"{name}={_describe_value(value)}" for name, value in sorted(state.items())]
        return f"{kind} {layers} {text} {values}"
    backend = getattr(part, "backend_tokenizer", None)
    if backend is not None:
        return f"{kind} {backend.to_str()}"
    if hasattr(part, "get_vocab"):
        return f"{kind} {sorted(part.get_vocab().items())}"
    return f"{kind} {part.to_json_string()}" if hasattr(part, "to_json_string") else kind


def _describe_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        if value.is_quantized:
            return (
                f"{value.dtype} {value.qscheme()} {value.dequantize().sum().item()} {_describe_value(value.int_repr())}"
            )
        return f"{value.dtype} {tuple(value.shape)} {tensor_checksum(value)}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_describe_value, value))}]"
    return repr(value)


def tensor_checksum(tensor: torch.Tensor) -> tuple[int, int]:
    """Two 64-bit sums over the bytes: one plain, one weighted by place, so that swapped values show.

    Integer sums wrap and do not depend on their order, so every device gives the same. Not meant against an adversary.
    """
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return (0, 0)
    with torch.inference_mode():
        octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        octets = torch.nn.functional.pad(octets, (0, -octets.numel() % 8))
        words = octets.view(torch.int64)
        weights = torch.arange(1, 2 * min(_CHUNK, words.numel()), 2, device=words.device)
        plain = torch.zeros((), dtype=torch.int64, device=words.device)
        placed = torch.zeros((), dtype=torch.int64, device=words.device)
        for chunk in words.split(_CHUNK):
            plain += chunk.sum()
            placed = placed * _PRIME + (chunk * weights[: chunk.numel()]).sum()
        first, second = torch.stack((plain, placed)).tolist()
    return first, second
