"""One call that missed, on its way through the encoder: whole, or row by row."""

from __future__ import annotations

import inspect
import logging
import reprlib
from typing import Any

import torch

from omnireuse.prompts.cache import Loaded
from omnireuse.prompts.call import EncodeCall
from omnireuse.prompts.entry import CACHE_MISS
from omnireuse.prompts.keys import Frozen, PromptKey, UnkeyableError
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
        self._state = self._state_now()
        self._num_encodes = 0

    def run(self) -> Any:
        """The value of the call."""
        plan = plan_rows(self._bound)
        is_short = plan is not None and len(plan.rows) <= min(_MAX_ROWS, max(2, self._cache.max_size // 2))
        value = self._run_rows(plan) if plan is not None and is_short else self._fetch(self._bound)
        if not self._num_encodes:
            self._cache.add("hits")
        return value

    def _run_rows(self, plan: RowPlan) -> Any:
        """The rows that are held, and one missing row encoded alone; the whole list where more are missing."""
        kind, layouts = self._kind(plan), self._call.layouts
        if kind not in layouts:
            value = self._fetch(self._bound)
            if self._key(self._bound) in self._cache.store:  # else out of date already, or too large
                layouts[kind] = self._test_rows(plan, value)
            return value
        layout = layouts[kind]
        if layout is None:
            return self._fetch(self._bound)
        keys = [self._key(row) for row in plan.rows]
        rows = dict(zip(keys, plan.rows, strict=True))
        values = {key: self._cache.look(key, _label(row)) for key, row in rows.items()}
        missing = [key for key in rows if values[key] is CACHE_MISS]
        self._cache.add("row_hits", len(keys) - len(missing))
        self._cache.add("row_misses", len(missing))
        joined = None
        if len(missing) < 2:
            values |= {key: self._fetch(rows[key]) for key in missing}
            joined = join([values[key] for key in keys], layout)
        return self._fetch(self._bound, keys, layout) if joined is None else joined

    def _test_rows(self, plan: RowPlan, batch: Any) -> Layout | None:
        """The division of lists of this size into rows, which are then kept in place of the list."""
        size = len(plan.rows)
        try:
            alone = [self._fetch(row) for row in plan.rows]
            layout = slices_of(batch, size, alone[0])
            if layout is not None and has_rows(batch, size, layout, alone):
                uneven = self._encode(plan.uneven(self._bound))
                if uneven.is_current and has_rows(uneven.value, size, layout, alone[:-1]):
                    self._cache.store.discard(self._key(self._bound))
                    return layout
        except Exception as error:  # the call has its value: a test must not fail it
            logger.info("prompts of a list of %d cannot be encoded alone: %s", size, error)
        logger.info("lists of %d prompts are encoded whole: rows alone do not give the same bits", size)
        return None

    def _fetch(self, bound: dict[str, Any], rows: list[PromptKey] | None = None, layout: Layout = ()) -> Any:
        """The value of a call, kept whole or, if its keys are given, as `rows`."""

        def load() -> Loaded:
            loaded = self._encode(bound)
            parts = None if rows is None else split(loaded.value, len(rows), layout)
            return loaded if parts is None else loaded._replace(rows=dict(zip(rows or (), parts, strict=True)))

        return self._cache.fetch(self._key(bound), _label(bound), load)

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
        return Loaded(value, self._state_now() == self._state)

    def _state_now(self) -> tuple[Frozen, ...]:
        """The state of the encoders as of now; empty while no key can be made."""
        try:
            return self._call.watch.state(self._call.pipeline)
        except UnkeyableError:
            return ()

    def _key(self, bound: dict[str, Any]) -> PromptKey:
        return self._call.key(bound, self._state, self._target)

    def _kind(self, plan: RowPlan) -> Any:
        """All of the call but its prompts, and their number."""
        state, target, *parts = self._key(self._bound)
        fixed = [part for name, part in zip(self._bound, parts, strict=True) if name not in plan.names]
        return state, target, plan.names, len(plan.rows), tuple(fixed)


def _label(bound: dict[str, Any]) -> str:
    """The start of the first prompt-like argument, to name an entry in messages."""
    first = next((value for value in bound.values() if isinstance(value, (str, list, tuple)) and value), "")
    return reprlib.repr(first)[:80]
