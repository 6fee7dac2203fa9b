"""Split what is not cached over the requests, without handing anybody a live buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from omnireuse.core.prefix_cache.batch import Span

__all__ = ["split_over"]


def split_over(value: object, spans: list[Span], num_tokens: int) -> dict[str, object]:
    """Give each request its part of an uncached output, on the CPU.

    Tensors whose first dimension is `num_tokens` are sliced, others cloned whole; lists and tuples go whole with their
    tensors cloned; mappings are split entry by entry; anything else is shared.
    """
    # Once for all requests: a copy off the device per request would wait for the device each time.
    host = _map_tensors(value, lambda tensor: tensor.detach().cpu())
    return {span.req_id: _part(host, span, num_tokens) for span in spans}


def _part(value: object, span: Span, num_tokens: int) -> object:
    if isinstance(value, torch.Tensor) and value.ndim >= 1 and value.shape[0] == num_tokens:
        return value[span.start : span.stop].clone()
    if isinstance(value, Mapping):
        return {key: _part(item, span, num_tokens) for key, item in value.items()}
    return _map_tensors(value, torch.clone)


def _map_tensors(value: object, change: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """Rebuild what is nested in mappings, lists and plain tuples with its tensors changed; share the rest."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_tensors(item, change) for item in value]
    if type(value) is tuple:
        return tuple(_map_tensors(item, change) for item in value)
    return value
