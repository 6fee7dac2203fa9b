"""Split what is not cached over the requests, without handing anybody a live buffer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omnireuse.core.prefix_cache.batch import Span

__all__ = ["split_over"]


def split_over(value: object, spans: list[Span], num_tokens: int) -> dict[str, object]:
    """Give each request its part of an uncached output, on the CPU.

    Tensors whose first dimension is `num_tokens` are sliced, others cloned whole; lists and tuples go whole with their
    tensors cloned; mappings are split entry by entry; anything else is shared.
    """
    host = _to_host(value)
    return {span.req_id: _part(host, span, num_tokens) for span in spans}


def _to_host(value: object) -> object:
    # Once for all requests: a copy off the device per request would wait for the device each time.
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {key: _to_host(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_host(item) for item in value]
    if type(value) is tuple:
        return tuple(_to_host(item) for item in value)
    return value


def _part(value: object, span: Span, num_tokens: int) -> object:
    if isinstance(value, torch.Tensor) and value.ndim >= 1 and value.shape[0] == num_tokens:
        return value[span.start : span.stop].clone()
    if isinstance(value, Mapping):
        return {key: _part(item, span, num_tokens) for key, item in value.items()}
    return _clone(value)


def _clone(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clone(item) for item in value]
    if type(value) is tuple:
        return tuple(_clone(item) for item in value)
    return value
