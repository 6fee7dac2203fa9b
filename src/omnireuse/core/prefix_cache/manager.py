"""`OmniPrefixCacheManager`: the row pool behind the interface of vllm-omni 0.30's manager of that name."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from omnireuse import messages
from omnireuse.core.prefix_cache import writer
from omnireuse.core.prefix_cache.batch import BatchRows, has_token_rows, split_over
from omnireuse.core.prefix_cache.keys import TokenRows, hidden_rows, key_name, uncached_rows
from omnireuse.core.prefix_cache.pool import HIDDEN, RowPool
from omnireuse.core.prefix_cache.rows import Integers
from omnireuse.errors import StateError

__all__ = ["OmniPrefixCacheManager", "StepOutputs"]

logger = logging.getLogger("omnireuse.core.prefix_cache")

_MAX_FORMS = 4  # widths and dtypes of one output whose rows are kept


class StepOutputs(NamedTuple):
    """The outputs of one step, on the CPU.

    Attributes:
        hidden_states: by request, (rows, width): the rows of its prefix hit, then this step's; None if the model
            does not cache them or the step had none.
        mm_outputs: by name and request. A per-token output has rows as the hidden states do; another is this step's.
    """

    hidden_states: dict[str, torch.Tensor] | None
    mm_outputs: dict[str, dict[str, Any]]


@dataclass(eq=False)
class _Step:
    """A step that nobody has asked for yet.

    Attributes:
        batch: which rows of the step belong to which request.
        outputs: by row store the multimodal output whose rows it holds, None for the hidden states.
        slots_S, num_rows_R: for each request the slots of its hit, then those of this step's tokens; and their number.
        num_hits: requests that start on a prefix hit.
        uncached: outputs that are in no store, on the host once `ready` has happened.
        written: the write of the rows, if it is not done yet.
        merged: by output and request, if the rows had to be read before a later step overwrites their slots.
        absent: by request how many of its hidden rows were never written; without those that have all.
    """

    batch: BatchRows
    outputs: dict[str, str | None]
    slots_S: Integers
    num_rows_R: Integers
    num_hits: int
    uncached: dict[str, object]
    ready: torch.cuda.Event | None
    written: Future[None] | None = None
    merged: dict[str | None, dict[str, torch.Tensor]] | None = None
    absent: Counter[str] = field(default_factory=Counter)
    is_taken: bool = False


class _Waiting:
    """The steps that nobody has asked for yet, by number. Threads share them.

    Args:
        most: steps that may wait.
        seconds: how long `wait_for_room` waits if there are as many.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._steps: dict[int, _Step] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._steps)

    def wait_for_room(self) -> None:
        """Wait until another step may be added."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._steps) < self._most, self._seconds):
                steps = sorted(self._steps)
                raise StateError(messages.STEPS_UNCONSUMED, depth=self._most, seconds=self._seconds, steps=steps)

    def add(self, number: int, step: _Step) -> None:
        """Let a step wait."""
        with self._changed:
            self._steps[number] = step

    def take(self, number: int) -> _Step:
        """The step, for the one that asks for it; it still waits until `drop`."""
        with self._changed:
            step = self._steps.get(number)
            if step is None or step.is_taken:
                known = sorted(number for number, each in self._steps.items() if not each.is_taken)
                raise StateError(messages.STEP_NOT_WAITING, step=number, known=known)
            step.is_taken = True
            return step

    def drop(self, number: int) -> None:
        """End the wait of a step."""
        with self._changed:
            del self._steps[number]
            self._changed.notify_all()

    def unread(self, before: float) -> list[_Step]:
        """The steps before this number whose rows were not read."""
        with self._changed:
            return [step for number, step in self._steps.items() if number < before and step.merged is None]


class OmniPrefixCacheManager:
    """Keep per-token outputs at the slots of the engine's KV cache, and put those of a prefix hit before a step's own.

    The order of calls in a step of the engine: `new_step_starts` before the runner forgets finished requests, the
    forward, `save_outputs`, then `materialize` or `discard_step` once. Those two may run on another thread, and while
    the next step has begun. Rows are in the pool as soon as their step is saved, so that nothing is due when a
    request finishes or is aborted. A hit has the rows that its slots held when its step was saved: what a later step
    writes there, it does first read for those that have not asked yet.

    Args:
        config: has `num_blocks` and `block_size` of the KV cache; `staging_depth`, the most steps that may wait for
            `materialize` or `discard_step`; and `staging_claim_timeout_s`, how long `save_outputs` waits for one of
            these if there are as many.
        view: the engine's batch: `batch_req_ids()` in the order of the rows, and `step_slots_cpu(req_ids, scheduled)`,
            the slots of the step's tokens, int64.

    Cost: memory as `OmniTensorPrefixCache`: address space at first, pages by use. On the CPU one indexed write for
        each output and step, and one gather, which goes into memory that all requests of the step share. On CUDA
        `save_outputs` does not synchronise; rows are copied on a stream of their own and written by a thread.

    Every method raises a StateError once a write has failed: rows are then missing that the engine counts on.
    """

    def __init__(self, config: Any, view: Any) -> None:
        self._view = view
        self._pool = RowPool(config.num_blocks, config.block_size, "raise")
        self._token_rows = TokenRows()
        self._forms: dict[str, dict[object, str]] = {}  # by output and form of its rows the row store; latest use last
        self._queue = writer.WriteQueue(max_pending=config.staging_depth)
        self._caches_hidden = True
        self._live: set[str] = set()
        self._hits: dict[str, Integers] = {}  # the blocks of each request that starts on a hit in this step
        self._scheduled: dict[str, int] = {}
        self._steps = _Waiting(config.staging_depth, config.staging_claim_timeout_s)
        self._rows = threading.Lock()  # the content of the pool
        self._numbers = itertools.count(1)
        logger.info("prefix cache: made for %d blocks of %d tokens", config.num_blocks, config.block_size)

    def register_policy(self, policy: Any) -> None:
        """Take what the model says of itself: `needs_full_hidden_states`. Deferred keys are written at once, as the
        step's outputs come to the host anyway."""
        self._caches_hidden = bool(policy.needs_full_hidden_states)

    def stats(self) -> dict[str, int]:
        """Return counters and sizes; waits for pending writes."""
        self._queue.flush()
        names = ("rows_written", "rows_read", "absent_rows", "uncached_on_hits")
        return {
            **{name: self._pool.counters[name] for name in names},
            **{f"lacking {name}": num_rows for name, num_rows in self._pool.lacking.items()},
            "stalls": self._queue.num_stalls,
            "steps_waiting": len(self._steps),
            "bytes_in_use": sum(store.num_bytes_in_use for store in self._pool.stores.values()),
            "merge_buffer_bytes": self._pool.buffers.num_bytes,
        }

    def new_step_starts(self, scheduler_output: Any) -> None:
        """Learn which requests finish and which start on a prefix hit, and how many tokens each computes.

        A request that is alive and arrives again, with more input, goes on: it has no hit.

        Raises:
            StateError: a hit that is no multiple of the block size, or whose blocks are not told or not in the pool.
        """
        self._check()
        self._live.difference_update(scheduler_output.finished_req_ids or ())
        self._hits = {}
        for new in scheduler_output.scheduled_new_reqs or ():
            if new.req_id in self._live:
                continue
            self._live.add(new.req_id)
            if num_cached := int(new.num_computed_tokens or 0):
                self._hits[new.req_id] = self._blocks_of_hit(new.req_id, num_cached, new.block_ids)
        self._scheduled = dict(scheduler_output.num_scheduled_tokens)

    def _blocks_of_hit(self, req_id: str, num_cached: int, block_ids: Any) -> Integers:
        where, size = f"prefix cache(request={req_id!r})", self._pool.block_size
        if num_cached % size:
            raise StateError(messages.HIT_NOT_ALIGNED, where=where, size=size, got=num_cached)
        blocks = block_ids[0] if block_ids and not isinstance(block_ids[0], int) else block_ids
        num_blocks = num_cached // size
        if not blocks or len(blocks) < num_blocks:
            got = len(blocks or ())
            raise StateError(messages.HIT_WITHOUT_BLOCKS, where=where, tokens=num_cached, blocks=num_blocks, got=got)
        return self._pool.check_blocks(np.array(blocks[:num_blocks], np.int64))

    def save_outputs(
        self,
        hidden_states: torch.Tensor | None,
        mm_outputs: Mapping[str, object] | None,
        *,
        num_tokens_unpadded: int,
        num_tokens_padded: int,
    ) -> int:
        """Write this step's outputs at their slots and return the step's id. The tensors may be overwritten then.

        An output is cached if it is a tensor of at least two dimensions and the first is the number of tokens, with
        padding or without, in this step; otherwise this step's value is passed on. A hit has those of its rows that
        were computed with the width and dtype of this step. See `TokenRows` for constants.

        Raises:
            StateError: slots or hidden states that do not fit the step, or too many steps that nobody asked for.
        """
        self._check()
        num_tokens = int(num_tokens_unpadded)
        names = self._view.batch_req_ids()
        counts_R = np.array([self._scheduled.get(name, 0) for name in names], np.int64)
        batch = BatchRows(names, np.arange(len(names)), counts_R.cumsum() - counts_R, counts_R)
        slots = self._view.step_slots_cpu(names, self._scheduled) if num_tokens else torch.empty(0, dtype=torch.int64)
        if len(slots) != num_tokens:
            raise StateError(messages.SLOTS_OF_ANOTHER_STEP, tokens=num_tokens, slots=len(slots))
        self._pool.check_slots(slots.numpy())
        self._steps.wait_for_room()
        rows, uncached = self._split(hidden_states, mm_outputs or {}, num_tokens, int(num_tokens_padded))
        leaves = [leaf for leaf in tree_leaves(uncached) if isinstance(leaf, torch.Tensor)]
        host, ready = writer.start_host_copies([*(tensor for _, tensor in rows.values()), *leaves])
        rest = iter(host[len(rows) :] if ready else [leaf.detach().clone() for leaf in leaves])
        uncached = tree_map_only(torch.Tensor, lambda _: next(rest), uncached)
        slots_S, num_rows_R = self._slots_to_read(batch, slots.numpy())
        outputs = {name: output for name, (output, _) in rows.items()}
        step = _Step(batch, outputs, slots_S, num_rows_R, len(self._hits), uncached, ready)
        if self._hits:
            self._note_uncached({**dict.fromkeys(self._forms), **(mm_outputs or {})}, outputs.values(), num_tokens)
        self._hits = {}
        number = next(self._numbers)
        if num_tokens:
            by_store = dict(zip(rows, host, strict=False))
            step.written = self._queue.write(lambda: self._write(number, slots, by_store), ready)
        self._steps.add(number, step)
        return number

    def _split(
        self, hidden: torch.Tensor | None, mm_outputs: Mapping[str, object], num_tokens: int, num_padded: int
    ) -> tuple[dict[str, tuple[str | None, torch.Tensor]], dict[str, object]]:
        """Return by row store the output and its rows, and the outputs that are in none."""
        rows: dict[str, tuple[str | None, torch.Tensor]] = {}
        if hidden is not None and self._caches_hidden and num_tokens:
            if hidden.ndim < 2:
                raise StateError(f"hidden_states: must be rows for {num_tokens} tokens, got {tuple(hidden.shape)}")
            if HIDDEN not in self._pool.stores:
                self._pool.add(HIDDEN, tuple(hidden.shape[1:]), hidden.dtype)
            rows[HIDDEN] = None, hidden_rows(self._pool.stores[HIDDEN], hidden, None, num_tokens)
        uncached = dict(mm_outputs)
        for key, value in mm_outputs.items() if num_tokens else ():
            if self._token_rows.has(value, key, num_tokens, num_padded):
                name = self._store_of(key, value)
                rows[name] = key, self._pool.stores[name].flat(value[:num_tokens])
                del uncached[key]
        return rows, uncached

    def _store_of(self, key: str, value: torch.Tensor) -> str:
        """Name the row store for rows of this width and dtype. Of more than `_MAX_FORMS` the least recent goes."""
        forms, form = self._forms.setdefault(key, {}), (tuple(value.shape[1:]), value.dtype)
        name = forms.pop(form, None)
        if name is None:
            if len(forms) == _MAX_FORMS:
                self._queue.flush()
                with self._rows:
                    self._settle()
                    del self._pool.stores[forms.pop(next(iter(forms)))]
            name = f"{key_name(key)} {form}"
            self._pool.add(name, *form)
        forms[form] = name
        return name

    def _note_uncached(self, outputs: Mapping[str, object], cached: Collection[str | None], num_tokens: int) -> None:
        num_rows = sum(map(len, self._hits.values())) * self._pool.block_size
        for key, value in outputs.items():
            if key in cached or self._token_rows.is_constant(key):
                continue
            if key in self._forms or has_token_rows(value, num_tokens):
                self._pool.counters["uncached_on_hits"] += len(self._hits)
                self._pool.note_lacking(key_name(key), num_rows, uncached_rows(value))

    def _slots_to_read(self, batch: BatchRows, slots_K: Integers) -> tuple[Integers, Integers]:
        """Return for each request the slots of its hit and of this step's tokens, in a row, and how many they are."""
        hits = [(index, self._hits[name]) for index, name in enumerate(batch.req_ids) if name in self._hits]
        if not hits:
            return slots_K, batch.counts_R
        size = self._pool.block_size
        num_hit_R = np.zeros(len(batch.req_ids), np.int64)
        for index, blocks_N in hits:
            num_hit_R[index] = len(blocks_N) * size
        blocks_N = np.concatenate([blocks_N for _, blocks_N in hits])
        places_K = np.arange(len(slots_K)) + num_hit_R.cumsum().repeat(batch.counts_R)
        slots_S = np.empty(len(slots_K) + len(blocks_N) * size, np.int64)
        is_hit_S = np.ones(len(slots_S), np.bool_)
        is_hit_S[places_K] = False
        slots_S[places_K] = slots_K
        slots_S[is_hit_S] = (blocks_N[:, None] * size + np.arange(size)).reshape(-1)
        return slots_S, num_hit_R + batch.counts_R

    def _write(self, number: int, slots: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> None:
        with self._rows:
            self._settle(before=number)
            self._pool.write(slots, rows, number, is_whole=True)

    def _settle(self, before: float = math.inf) -> None:
        """Read the rows of earlier steps that still wait, under the lock of the rows."""
        for step in self._steps.unread(before):
            self._merge(step, step.batch.req_ids)

    def materialize(self, step_id: int, req_ids: list[str]) -> StepOutputs:
        """Return the outputs of these requests, all or some of the step's. Any thread; once for each step.

        A row of a hit that was never written is zero in a multimodal output, because a model may leave a token out
        (counted, and logged the first time), and an error in hidden states.

        Raises:
            StateError: a step that was never saved, or was asked for; a request that was not in it; an absent row.
        """
        step = self._steps.take(step_id)
        try:
            if step.written is not None:
                step.written.exception()  # waits for it
            self._check()
            if unknown := sorted(set(req_ids) - set(step.batch.req_ids)):
                raise StateError(messages.REQUESTS_NOT_SAVED, step=step_id, unknown=unknown[:8])
            if step.ready is not None:
                step.ready.synchronize()
            with self._rows:
                if step.merged is None:
                    self._merge(step, req_ids)
            assert step.merged is not None
            for req_id in step.absent.keys() & set(req_ids):
                raise StateError(messages.ROWS_NEVER_WRITTEN, request=req_id, missing=step.absent[req_id])
        finally:
            self._steps.drop(step_id)
        outputs: dict[Any, dict[str, Any]] = {**step.merged}
        outputs.update((key, split_over(value, step.batch)) for key, value in step.uncached.items())
        chosen = {key: {name: parts[name] for name in req_ids} for key, parts in outputs.items()}
        return StepOutputs(chosen.pop(None, None), chosen)

    def discard_step(self, step_id: int) -> None:
        """Let the step's outputs go, whose rows stay in the pool. Any thread; once for each step, as `materialize`."""
        self._steps.take(step_id)
        self._steps.drop(step_id)

    def shutdown(self) -> None:
        """Wait for pending writes and end the thread that writes."""
        self._queue.close()
        if self._queue.failure is None:
            logger.info("prefix cache: %s", ", ".join(f"{name} {value}" for name, value in self.stats().items()))

    def _check(self) -> None:
        if (failure := self._queue.failure) is not None:
            raise StateError(messages.WRITE_FAILED, error=failure) from failure

    def _merge(self, step: _Step, req_ids: list[str]) -> None:
        """Gather the rows of these requests, under the lock of the rows."""
        slots_S, num_rows_R = step.slots_S, step.num_rows_R
        if req_ids != step.batch.req_ids:
            stops_R = num_rows_R.cumsum()
            at_R = np.array([step.batch.req_ids.index(name) for name in req_ids], np.int64)
            parts = [slots_S[stop - count : stop] for stop, count in zip(stops_R[at_R], num_rows_R[at_R], strict=True)]
            slots_S, num_rows_R = np.concatenate([np.empty(0, np.int64), *parts]), num_rows_R[at_R]
        step.merged = {}
        for name, output in step.outputs.items():
            may_lack = step.num_hits > 0
            step.merged[output], absent_A = self._pool.gather(name, slots_S, req_ids, num_rows_R, may_lack=may_lack)
            if output is not None and len(absent_A):
                why = f"{len(absent_A)} were not computed as those of this step, and are zero"
                self._pool.note_lacking(key_name(output), len(absent_A), why)
            elif len(absent_A):
                owners_A = np.arange(len(req_ids)).repeat(num_rows_R)[absent_A]
                step.absent = Counter(req_ids[index] for index in owners_A.tolist())
