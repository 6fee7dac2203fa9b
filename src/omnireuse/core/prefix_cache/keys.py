"""The multimodal outputs to cache: those declared, or in each step those with a row for each token."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TypeGuard

import torch

from omnireuse import messages
from omnireuse.core.prefix_cache.batch import has_token_rows
from omnireuse.core.prefix_cache.pool import RowPool
from omnireuse.core.prefix_cache.rows import RowStore
from omnireuse.errors import StateError

__all__ = ["CachedKeys", "TokenRows", "hidden_rows", "key_name", "uncached_rows"]

logger = logging.getLogger("omnireuse.core.prefix_cache")


def key_name(key: str) -> str:
    """Name a multimodal output in the row pool; never equal to the name of the hidden states."""
    return f"multimodal_outputs[{key!r}]"


def uncached_rows(value: object) -> str:
    """Say why a hit gets only this step's value of an output, and the remedy."""
    got = f"tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    return (
        f"in this step it is not a row for each token ({got}), so it is passed on without the rows of the prefix; let "
        "the model return it in each step as a tensor (tokens, features)"
    )


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
        raise StateError(messages.COPY_NOT_ON_CPU, strides=on_cpu.stride(), device=on_cpu.device)
    _check_rows("hidden_states_cpu", on_cpu, store.feature_shape, store.dtype, num_tokens)
    return store.flat(on_cpu[:num_tokens])


class TokenRows:
    """Tell in each step whether an output has a row for each token.

    An output that keeps one size while the number of tokens changes is a constant: in a step in which the two are
    equal by chance, it has no row for each token. As soon as its size changes, it is a constant no more.
    """

    def __init__(self) -> None:
        self._size: dict[str, int | None] = {}  # the only size of each output so far, None if it has had several
        self._misfits: set[str] = set()  # had another size than their step had tokens

    def has(self, value: object, key: str, num_tokens: int, num_rows: int) -> TypeGuard[torch.Tensor]:
        """Tell this of the output's value in a step of `num_tokens` > 0, `num_rows` with padding."""
        if not (isinstance(value, torch.Tensor) and value.ndim >= 2):
            return False
        size = value.shape[0]
        if self._size.setdefault(key, size) != size:
            self._size[key] = None
        if size != num_tokens and not size == num_rows > num_tokens:
            self._misfits.add(key)
            return False
        return not self.is_constant(key)

    def is_constant(self, key: str) -> bool:
        """Tell whether all values of the output so far had one size, and the number of tokens did not follow it."""
        return key in self._misfits and self._size[key] is not None


class CachedKeys:
    """The keys that are cached, each with rows of one shape and dtype.

    Args:
        pool: where their rows are kept.
        declared: key to (feature size, dtype), these and no others; None to take, in each step, those that have a row
            for each token.
    """

    def __init__(self, pool: RowPool, declared: Mapping[str, tuple[int, torch.dtype]] | None) -> None:
        self._pool, self.is_open = pool, declared is None
        self._keys: dict[str, None] = {}
        self._token_rows = TokenRows()
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

    def admit(self, key: str, value: torch.Tensor) -> None:
        """Cache a key whose value has a row for each token."""
        self.add(key, tuple(value.shape[1:]), value.dtype)
        logger.info("prefix cache: key %r admitted, rows of %s %s", key, tuple(value.shape[1:]), value.dtype)

    def recognise(self, key: str, value: object, num_tokens: int, num_rows: int) -> bool:
        """Tell whether the key's rows of a step are cached, of `num_tokens`, `num_rows` with padding.

        Raises:
            StateError: rows that do not fit the key; of a declared key also a value without a row for each token.
        """
        if self.is_open and not self._token_rows.has(value, key, num_tokens, num_rows):
            return False
        if key not in self._keys:
            # By SPEC the rows of a new key include padding.
            if not (self.is_open and isinstance(value, torch.Tensor) and value.shape[0] == num_rows):
                return False
            self.admit(key, value)
        self.rows(key, value, num_tokens)
        return True

    def lacks(self, key: str, value: object, num_tokens: int) -> bool:
        """Tell whether a hit lacks rows of this output in a step that does not cache it."""
        return not self._token_rows.is_constant(key) and (key in self._keys or has_token_rows(value, num_tokens))

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
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise StateError(messages.DEFERRED_WITHOUT_ROWS, key=key_name(key), tokens=rows.stop, got=got)
        if key in self._keys:
            self.rows(key, value, rows.stop)
        return value[rows].detach()
