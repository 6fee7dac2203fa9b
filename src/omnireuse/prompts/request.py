"""One call that missed, on its way through the encoder: whole, or row by row."""

from __future__ import annotations

import inspect
import logging
import reprlib
from typing import Any

import torch

from omnireuse.prompts.cache import Loaded
from omnireuse.prompts.call import EncodeCall
from omnireuse.prompts.keys import PromptKey
from omnireuse.prompts.rows import Layout, RowPlan, has_rows, join, plan_rows, slices_of, split

__all__ = ["Request"]

logger = logging.getLogger("omnireuse")

_MAX_ROWS = 8  # each is encoded alone once for each size of list


class Request:
    """One call after its miss."""

    def __init__(
        self,
        call: EncodeCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bound: dict[str, Any],
        target: torch.device | None,
    ) -> None:
        self._call, self._cache, self._bound, self._target = call, call.cache, bound, target
        self._args, self._kwargs = args, kwargs
        call.watch.audit(call.pipeline)  # a look at everything is short beside an encode
        self._state = call.state() or ()
        self._num_encodes = 0

    def run(self) -> Any:
        """The value of a call of a plain function."""
        plan = plan_rows(self._bound)
        is_short = plan is not None and len(plan.rows) <= min(_MAX_ROWS, max(2, self._cache.max_size // 2))
        return self._counted(self._run_rows(plan) if plan is not None and is_short else self._fetch(self._bound))

    async def run_async(self) -> Any:
        """The value of a call of a coroutine function."""
        key = self._key(self._bound)

        async def load() -> Loaded:
            return self._loaded(await self._call.function(*self._args, **self._kwargs))

        return self._counted(await self._cache.fetch_async(key, _label(self._bound), load, self._target))

    def _counted(self, value: Any) -> Any:
        if not self._num_encodes:
            self._cache.add("hits")
        return value

    def _run_rows(self, plan: RowPlan) -> Any:
        kind = self._kind(plan), len(plan.rows)
        if kind not in self._call.layouts:
            value = self._fetch(self._bound)
            if self._key(self._bound) in self._cache.store:  # else out of date already, or too large
                self._call.layouts[kind] = self._test_rows(plan, value)
            return value
        layout = self._call.layouts[kind]
        joined = None if layout is None else self._join_rows(plan, layout)
        return self._fetch(self._bound) if joined is None else joined

    def _join_rows(self, plan: RowPlan, layout: Layout) -> Any | None:
        keys = [self._key(row) for row in plan.rows]
        rows, num_encoded = dict(zip(keys, plan.rows, strict=True)), 0

        def load(absent: list[PromptKey]) -> dict[PromptKey, Loaded]:
            nonlocal num_encoded
            num_encoded += len(absent)
            return self._encode_rows(plan, {key: rows[key] for key in absent})

        values = self._cache.fetch({key: _label(row) for key, row in rows.items()}, load, self._target)
        self._cache.add("row_hits", len(keys) - num_encoded)
        self._cache.add("row_misses", num_encoded)
        return join([values[key] for key in keys], layout)

    def _encode_rows(self, plan: RowPlan, missing: dict[PromptKey, dict[str, Any]]) -> dict[PromptKey, Loaded]:
        """In one batch where its size is tested, else one by one."""
        layout = self._call.layouts.get((self._kind(plan), len(missing)))
        parts, is_current = None, False
        if layout is not None:
            batch, is_current = self._encode(plan.batch(list(missing.values())))
            parts = split(batch, len(missing), layout)
        if parts is None:
            return {key: self._encode(row) for key, row in missing.items()}
        return {key: (part, is_current) for key, part in zip(missing, parts, strict=True)}

    def _test_rows(self, plan: RowPlan, batch: Any) -> Layout | None:
        """The division of lists of this size into rows, which are then kept in place of the list."""
        size = len(plan.rows)
        try:
            alone = [self._fetch(row) for row in plan.rows]
            layout = slices_of(batch, size, alone[0])
            if layout is not None and has_rows(batch, size, layout, alone):
                uneven, is_current = self._encode(plan.uneven())
                if is_current and has_rows(uneven, size, layout, alone[:-1]):
                    self._cache.store.discard(self._key(self._bound))
                    return layout
        except Exception as error:  # the call has its value: a test must not fail it
            logger.info("prompts of a list of %d cannot be encoded alone: %s", size, error)
        logger.info("lists of %d prompts are encoded whole: rows alone do not give the same bits", size)
        return None

    def _fetch(self, bound: dict[str, Any]) -> Any:
        key = self._key(bound)
        return self._cache.fetch({key: _label(bound)}, lambda _keys: {key: self._encode(bound)}, self._target)[key]

    def _encode(self, bound: dict[str, Any]) -> Loaded:
        if bound is self._bound:
            return self._loaded(self._call.function(*self._args, **self._kwargs))
        arguments = inspect.BoundArguments(self._call.signature, bound)
        return self._loaded(self._call.function(*arguments.args, **arguments.kwargs))

    def _loaded(self, value: Any) -> Loaded:
        self._num_encodes += 1
        self._cache.add("misses")
        leaves = value if isinstance(value, (tuple, list)) else (value,)
        if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            logger.warning(
                "encode_prompt(%s) was called with gradients on: a hit returns detached tensors; "
                "call it under torch.no_grad(), or uninstall the cache to train an encoder",
                _label(self._bound),
            )
        return value, self._call.state() == self._state

    def _key(self, bound: dict[str, Any]) -> PromptKey:
        return self._call.key(bound, self._state)

    def _kind(self, plan: RowPlan) -> Any:
        """All of the call but its prompts."""
        parts = zip(self._bound, self._key(self._bound)[1:], strict=True)
        return self._state, plan.names, tuple(part for name, part in parts if name not in plan.names)


def _label(bound: dict[str, Any]) -> str:
    """The start of the first prompt-like argument, to name an entry in messages."""
    first = next((value for value in bound.values() if isinstance(value, (str, list, tuple)) and value), "")
    return reprlib.repr(first)[:80]
