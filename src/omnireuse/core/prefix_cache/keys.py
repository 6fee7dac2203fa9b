"""The multimodal outputs to cache: those declared, or those whose shape follows the token count.

A first dimension that equals the token count once may be a coincidence. The key is admitted at once, so that the first
step's rows are not lost, and stays on probation until it has followed two different token counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

import torch

from omnireuse.core.prefix_cache.pool import RowPool
from omnireuse.core.prefix_cache.rows import RowStore
from omnireuse.errors import StateError

__all__ = ["CachedKeys", "hidden_rows", "key_name"]

logger = logging.getLogger("omnireuse.core.prefix_cache")


def key_name(key: str) -> str:
    """Name a multimodal output in the row pool; never equal to the name of the hidden states."""
    return f"multimodal_outputs[{key!r}]"


def _check_rows(what: str, rows: torch.Tensor, feature_shape: tuple[int, ...], dtype: torch.dtype, count: int) -> None:
    """Raise a StateError unless there are `count` rows of this shape and dtype."""
    shape = rows.shape
    if len(shape) == 0 or shape[1:] != feature_shape or rows.dtype != dtype:
        raise StateError(f"{what}: rows must be {feature_shape} {dtype} as cached, got {tuple(shape[1:])} {rows.dtype}")
    if shape[0] < count:
        raise StateError(f"{what}: must cover {count} tokens, got {shape[0]} rows")


def hidden_rows(store: RowStore, hidden: torch.Tensor, on_cpu: torch.Tensor | None, num_tokens: int) -> torch.Tensor:
    """Return the first rows of the hidden states, (num_tokens, width), from their CPU copy if one is given."""
    _check_rows("hidden_states", hidden, store.feature_shape, store.dtype, num_tokens if on_cpu is None else 0)
    if on_cpu is None:
        return store.flat(hidden[:num_tokens])
    if on_cpu.device.type != "cpu" or not on_cpu.is_contiguous():
        raise StateError(
            f"hidden_states_cpu: must be contiguous on the CPU, got strides {on_cpu.stride()} on {on_cpu.device}"
        )
    _check_rows("hidden_states_cpu", on_cpu, store.feature_shape, store.dtype, num_tokens)
    return store.flat(on_cpu[:num_tokens])


class CachedKeys:
    """The keys that are cached, and those on probation.

    Args:
        pool: where their rows are kept.
        declared: key to (feature size, dtype), these and no others; None to recognise keys by their shape.
        on_revoke: called with a key that is not per-token, before its rows are dropped.
        is_lenient: a known key whose value does not fit in a step is not cached in that step; otherwise it is an error.
    """

    def __init__(
        self,
        pool: RowPool,
        declared: Mapping[str, tuple[int, torch.dtype]] | None,
        on_revoke: Callable[[str], None],
        *,
        is_lenient: bool = False,
    ) -> None:
        self._pool, self._is_open, self._on_revoke, self._is_lenient = pool, declared is None, on_revoke, is_lenient
        self._keys: dict[str, None] = {}
        self._counts_on_probation: dict[str, set[int]] = {}
        self._refused: set[str] = set()
        for key, (feature_size, dtype) in (declared or {}).items():
            self.add(key, (feature_size,), dtype)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def add(self, key: str, feature_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Cache a key that is known to be per-token."""
        self._pool.add(key_name(key), feature_shape, dtype)
        self._keys[key] = None

    def admit(self, key: str, value: object, num_tokens: int) -> bool:
        """Cache a key on probation if its value has at least two dimensions and one row per token."""
        if not (isinstance(value, torch.Tensor) and value.ndim >= 2 and value.shape[0] == num_tokens):
            return False
        self.add(key, tuple(value.shape[1:]), value.dtype)
        self._refused.discard(key)
        self._counts_on_probation[key] = {num_tokens}
        logger.info("prefix cache: key %r admitted, rows of %s %s", key, tuple(value.shape[1:]), value.dtype)
        return True

    def recognise(self, key: str, value: object, num_tokens: int, num_rows: int) -> bool:
        """Tell whether the key is cached, given its value in a step of `num_tokens`, `num_rows` with padding."""
        if key not in self._keys:
            return self._is_open and key not in self._refused and self.admit(key, value, num_rows)
        count = value.shape[0] if isinstance(value, torch.Tensor) and value.ndim >= 2 else None
        if count not in (num_tokens, num_rows) and key in self._counts_on_probation:
            got = type(value).__name__ if count is None else f"{count} rows"
            self._revoke(key, f"{got} in a step of {num_tokens} tokens")
            return False
        if self._is_lenient and not (
            isinstance(value, torch.Tensor) and count in (num_tokens, num_rows) and self.may_hold(key, value)
        ):
            return False
        self.rows(key, value, num_tokens)
        counts = self._counts_on_probation.get(key)
        if counts is not None and count is not None:
            counts.add(count)
            if len(counts) == 2:
                del self._counts_on_probation[key]
        return True

    def rows(self, key: str, value: object, num_tokens: int) -> torch.Tensor:
        """Return the first rows of a cached key's value, (num_tokens, width)."""
        store = self._pool.stores[key_name(key)]
        if not isinstance(value, torch.Tensor):
            raise StateError(f"{key_name(key)}: must stay a tensor once cached, got {type(value).__name__}")
        _check_rows(key_name(key), value, store.feature_shape, store.dtype, num_tokens)
        return store.flat(value[:num_tokens])

    def may_hold(self, key: str, rows: torch.Tensor) -> bool:
        """Tell whether rows, shaped as the model gave them, fit the key; a key that is not cached fits any."""
        store = self._pool.stores.get(key_name(key))
        return store is None or (store.feature_shape, store.dtype) == (tuple(rows.shape[1:]), rows.dtype)

    def rows_of_request(self, key: str, value: object, rows: slice) -> torch.Tensor:
        """Return one request's rows of a deferred key, which need not be cached yet; shaped as the model gave them."""
        if not isinstance(value, torch.Tensor) or value.ndim < 2 or value.shape[0] < rows.stop:
            raise StateError(
                f"{key_name(key)}: a deferred key must be a tensor with a row for each of {rows.stop} tokens, got "
                f"{tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__}"
            )
        if key in self._keys:
            self.rows(key, value, rows.stop)
        return value[rows].detach()

    def _revoke(self, key: str, why: str) -> None:
        self._on_revoke(key)
        del self._keys[key], self._counts_on_probation[key], self._pool.stores[key_name(key)]
        self._refused.add(key)
        self._pool.counters["keys_revoked"] += 1
        logger.warning("prefix cache: key %r is not per-token after all (%s); it passes through uncached", key, why)
