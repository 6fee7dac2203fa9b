"""`OmniTensorPrefixCache`: per-token hidden states and multimodal outputs that follow the KV cache's slots."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch

from omnireuse import messages
from omnireuse.base.validation import Count, check_fields, require_size
from omnireuse.core.prefix_cache import writer
from omnireuse.core.prefix_cache.batch import BatchRows, blocks_of, cached_blocks, rows_of, split_over
from omnireuse.core.prefix_cache.deferred import DeferredOutputs
from omnireuse.core.prefix_cache.keys import CachedKeys, hidden_rows, key_name, uncached_rows
from omnireuse.core.prefix_cache.pool import HIDDEN, PrefixHits, RowPool
from omnireuse.core.prefix_cache.rows import Integers
from omnireuse.errors import StateError, WrongTypeError

__all__ = ["OmniTensorPrefixCache", "PrefixCacheOptions"]

logger = logging.getLogger("omnireuse.core.prefix_cache")


@dataclass(frozen=True, kw_only=True)
class PrefixCacheOptions:
    """Options beyond the shape of the cache.

    Args:
        absent: what a hit gets if a row that it needs was never written, or was written for other content:
            "raise" a StateError; "miss": only this step's rows, counted; "zeros".
        mm_keys: the multimodal outputs to cache, name to (feature size, dtype). None: in each step those that
            are tensors with a row for each token. A mapping: these and no others.
        max_pending_writes: device copies in flight before `update` waits for the oldest, ≥ 1. More absorbs longer
            bursts and holds more pinned memory.
    """

    absent: Annotated[str, Literal["raise", "miss", "zeros"]] = "raise"
    mm_keys: Mapping[str, tuple[int, torch.dtype]] | None = None
    max_pending_writes: Count = 4

    def __post_init__(self) -> None:
        check_fields(self)
        for name, spec in (self.mm_keys or {}).items():
            if not (isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[1], torch.dtype)):
                raise WrongTypeError(messages.NO_KEY_SPEC, name=name, spec=spec)
            require_size(f"PrefixCacheOptions(mm_keys[{name!r}]): feature size", spec[0], least=1)


QueryStarts = torch.Tensor | Sequence[int]


class OmniTensorPrefixCache:
    """Keep per-token model outputs on the CPU, addressed like the engine's paged KV cache.

    The token at slot s = block_id · block_size + offset. Call order in a step: `reset_prefix_cached_new_req_ids`,
    `add_prefix_cached_new_req_id` for each hit, the forward, `update_omni_tensor_prefix_cache`, then the merges. The
    reset begins a new step. One thread of the engine owns the cache.

    Args:
        num_blocks, block_size: shape of the engine's KV cache, ≥ 1.
        hidden_size: width of the hidden states, ≥ 1.
        hs_dtype: their dtype.
        options: see `PrefixCacheOptions`.

    Raises:
        WrongTypeError, ConfigError: an invalid size or dtype.

    Cost: address space for every slot and key, memory only for blocks that hold rows, 4 bytes a slot and key for
    versions. On CUDA `update` does not synchronise unless `max_pending_writes` copies are in flight.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        hidden_size: int,
        hs_dtype: torch.dtype,
        *,
        options: PrefixCacheOptions | None = None,
    ) -> None:
        options = options or PrefixCacheOptions()
        self.num_blocks = require_size("OmniTensorPrefixCache(num_blocks)", num_blocks, least=1)
        self.block_size = require_size("OmniTensorPrefixCache(block_size)", block_size, least=1)
        self.default_hidden_size = require_size("OmniTensorPrefixCache(hidden_size)", hidden_size, least=1)
        if not isinstance(hs_dtype, torch.dtype):
            raise WrongTypeError(f"OmniTensorPrefixCache(hs_dtype={hs_dtype!r}): field must be a torch dtype")
        self._pool = RowPool(num_blocks, block_size, options.absent)
        self._pool.add(HIDDEN, (hidden_size,), hs_dtype)
        self._keys = CachedKeys(self._pool, options.mm_keys)
        self._queue = writer.WriteQueue(options.max_pending_writes)
        self._deferred = DeferredOutputs(self._pool, self._keys, self._queue)
        self._hits: dict[str, tuple[Integers, Integers]] = {}
        self._num_rows = 0  # of the step's outputs, with padding

    @property
    def hidden_states_cache(self) -> torch.Tensor:
        """All hidden-state rows, (num_blocks, block_size, hidden_size), read-only; waits for pending writes."""
        self._queue.flush()
        return self._pool.stores[HIDDEN].rows_BOF

    @property
    def mm_outputs_cache(self) -> dict[str, torch.Tensor]:
        """All rows of each key, (num_blocks, block_size, feature), read-only; waits for pending writes."""
        self._queue.flush()
        return {key: self._pool.stores[key_name(key)].rows_BOF for key in self._keys}

    @property
    def mm_cache_keys(self) -> set[str]:
        """The multimodal outputs that are cached (a copy)."""
        return set(self._keys)

    def stats(self) -> dict[str, int]:
        """Return counters and sizes; waits for pending writes."""
        self._queue.flush()
        names = (
            "rows_written", "rows_read", "padding_rows", "absent_rows", "misses", "stale_rows_dropped",
            "deferred_rows_dropped", "uncached_on_hits",
        )  # fmt: skip
        return {
            **{name: self._pool.counters[name] for name in names},
            **{f"lacking {name}": num_rows for name, num_rows in self._pool.lacking.items()},
            "stalls": self._queue.num_stalls,
            "bytes_in_use": sum(store.num_bytes_in_use for store in self._pool.stores.values()),
            "merge_buffer_bytes": self._pool.buffers.num_bytes,
            "deferred_bytes": self._deferred.num_bytes,
        }

    def maybe_init_missing_mm_cache_keys(self, multimodal_outputs: Mapping[str, object], seq_len: int) -> None:
        """Make a key of each tensor of at least two dimensions whose first is `seq_len`; known keys are left alone."""
        for key, value in multimodal_outputs.items():
            if key not in self._keys and isinstance(value, torch.Tensor) and value.ndim >= 2 and len(value) == seq_len:
                self._keys.admit(key, value)

    def update_omni_tensor_prefix_cache(
        self,
        hidden_states: torch.Tensor | None,
        multimodal_outputs: Mapping[str, object] | None,
        num_tokens_unpadded: int,
        slot_mapping: torch.Tensor,
        num_tokens_padded: int | None = None,
        skip_mm_cache_keys: Collection[str] | None = None,
        hidden_states_cpu: torch.Tensor | None = None,
    ) -> None:
        """Write rows [:num_tokens_unpadded] of this step's outputs at their slots.

        Args:
            hidden_states: (tokens, hidden_size) on any device, or None.
            multimodal_outputs: outputs by key, or None; a value that is None counts as not given. An output is cached
                in a step in which it has a row for each token; a new one is recognised against `num_tokens_padded`.
            num_tokens_unpadded: rows that are tokens.
            slot_mapping: slot of each row; −1 marks padding.
            num_tokens_padded: rows including padding; the unpadded count if None.
            skip_mm_cache_keys: deferred keys, which are initialised and not written.
            hidden_states_cpu: the same rows, already on the CPU; they are then the source.

        Raises:
            StateError: rows that do not fit the cache (count, width, dtype), an unusable `hidden_states_cpu`, or a slot
                outside the pool. Nothing is written. On CUDA a bad slot is found later and raised by the next call.

        Cost: see the class.
        """
        num_tokens = int(num_tokens_unpadded)
        self._num_rows = num_rows = num_tokens if num_tokens_padded is None else int(num_tokens_padded)
        if slot_mapping.shape[0] < num_tokens:
            raise StateError(f"slot_mapping: must cover {num_tokens} tokens, got {slot_mapping.shape[0]} slots")
        rows_by_name: dict[str, torch.Tensor] = {}
        if hidden_states is not None:
            rows_by_name[HIDDEN] = hidden_rows(self._pool.stores[HIDDEN], hidden_states, hidden_states_cpu, num_tokens)
        elif hidden_states_cpu is not None:
            raise StateError("hidden_states_cpu: must come with the hidden_states it copies, got None for those")
        for key, value in _given(multimodal_outputs).items() if num_tokens else ():
            if self._keys.recognise(key, value, num_tokens, num_rows) and key not in (skip_mm_cache_keys or ()):
                rows_by_name[key_name(key)] = self._keys.rows(key, value, num_tokens)
        if num_tokens == 0 or not rows_by_name:
            return
        (slots, *rows), ready = writer.start_host_copies([slot_mapping[:num_tokens], *rows_by_name.values()])
        rows_by_name = dict(zip(rows_by_name, rows, strict=True))
        step = self._pool.step
        self._queue.write(lambda: self._pool.write(slots, rows_by_name, step), ready)

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        """Make blocks absent that the engine gives to other content, and return their memory.

        Optional: without it stale rows are still recognised by the step that wrote them, but memory stays until reused.

        Raises:
            StateError: a block id outside the pool.
        """
        blocks_N = self._pool.check_blocks(block_ids)
        self._queue.flush()
        self._pool.release(blocks_N)

    def add_prefix_cached_new_req_id(self, req_id: str, *, block_ids: Iterable[int] | None = None) -> None:
        """Mark the request as starting on a prefix hit in this step.

        With `block_ids`, a block freed between now and the read is absent even if it was written again by then.
        """
        self._hits[req_id] = self._pool.plan(block_ids or ())

    def reset_prefix_cached_new_req_ids(self) -> None:
        """Begin a step: no request has a hit yet."""
        self._hits.clear()
        self._num_rows = 0
        self._pool.step += 1

    def has_prefix_cached_new_req_ids(self) -> bool:
        """Tell whether a request of this step starts on a prefix hit."""
        return bool(self._hits)

    def get_merged_hidden_states(
        self,
        query_start_loc: QueryStarts,
        input_batch: object,
        hidden_states: torch.Tensor,
        num_scheduled_tokens: Mapping[str, int],
        hidden_states_cpu: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return each request's rows on the CPU: for a hit its cached rows, then this step's rows.

        A hit has `num_computed_tokens_cpu` cached rows, the counter being read before the step; the last of its blocks
        may be one that it has only begun.

        Raises:
            StateError: rows that do not fit, an unusable `hidden_states_cpu`, absent rows under the policy "raise".
            UnsupportedModelError: a batch with several KV cache groups.

        Cost: one gather into a buffer that all requests of the call share; each gets a view. The buffer is used again
            once all its views are gone, so a view that is kept keeps the whole buffer. On CUDA the call waits for this
            step's rows and for pending writes.
        """
        batch = rows_of(query_start_loc, input_batch, num_scheduled_tokens)
        rows_KF = hidden_rows(self._pool.stores[HIDDEN], hidden_states, hidden_states_cpu, batch.stop)
        return self._merge(HIDDEN, rows_KF, batch, self._find_hits(batch, input_batch))

    def get_merged_multimodal_states(
        self,
        query_start_loc: QueryStarts,
        input_batch: object,
        multimodal_outputs: Mapping[str, object] | None,
        num_scheduled_tokens: Mapping[str, int],
    ) -> dict[str, dict[str, object]]:
        """Return {key: {request id: value}} on the CPU: cached keys merged as hidden states are, others split.

        A key whose value is None is left out. Of a key that is not cached in this step, a request on a hit gets this
        step's value only: counted (`stats()["uncached_on_hits"]`, and its rows by key), and logged once for each key.

        Raises: as for the hidden states.
        """
        batch = rows_of(query_start_loc, input_batch, num_scheduled_tokens)
        hits = self._find_hits(batch, input_batch)
        merged: dict[str, dict[str, object]] = {}
        for key, value in _given(multimodal_outputs).items():
            if key in self._keys and self._keys.recognise(key, value, batch.stop, self._num_rows):
                rows_KF = self._keys.rows(key, value, batch.stop)
                merged[key] = {**self._merge(key_name(key), rows_KF, batch, hits)}
            else:
                merged[key] = split_over(value, batch)
                if len(hits.slots_S) and self._keys.lacks(key, value, batch.num_tokens):
                    self._pool.counters["uncached_on_hits"] += int((hits.num_rows_R > 0).sum())
                    remedy = "" if self._keys.is_open else " and declare it in PrefixCacheOptions(mm_keys=…)"
                    self._pool.note_lacking(key_name(key), len(hits.slots_S), uncached_rows(value) + remedy)
        return merged

    def _find_hits(self, batch: BatchRows, input_batch: object) -> PrefixHits:
        is_hit_R = np.array([req_id in self._hits for req_id in batch.req_ids], np.bool_)
        return self._pool.hits(*cached_blocks(input_batch, batch, is_hit_R, self.block_size), self._hits)

    def _merge(self, name: str, rows_KF: torch.Tensor, batch: BatchRows, hits: PrefixHits) -> dict[str, torch.Tensor]:
        if len(hits.slots_S):
            self._queue.flush()
        return self._pool.merge(name, rows_KF.cpu(), batch, hits)

    def stage_deferred_mm_outputs(
        self,
        query_start_loc: QueryStarts,
        input_batch: Any,
        multimodal_outputs: Mapping[str, object] | None,
        num_scheduled_tokens: Mapping[str, int],
        deferred_mm_cache_keys: Collection[str],
        *,
        counter_includes_step: bool = True,
    ) -> None:
        """Keep this step's rows of the deferred keys on their device until the request finishes.

        `counter_includes_step=False` is for an engine that advances `num_computed_tokens_cpu` after this call.

        Cost: a device copy of each request's rows, so that the engine's buffers may be overwritten.
        """
        outputs = _given(multimodal_outputs)
        deferred = {key: outputs[key] for key in deferred_mm_cache_keys if key in outputs}
        for req_id, index, rows in rows_of(query_start_loc, input_batch, num_scheduled_tokens):
            num_tokens = rows.stop - rows.start
            if num_tokens and deferred:
                computed = int(input_batch.num_computed_tokens_cpu[index])
                start = max(0, computed - num_tokens) if counter_includes_step else computed
                self._deferred.stage(req_id, rows, start, deferred, blocks_of(input_batch, index))

    def commit_deferred_mm_outputs(self, finished_req_ids: Iterable[str], input_batch: object) -> None:
        """Write the staged rows of finished requests, before they leave the batch.

        Rows of a request that has already left go to the slots that they had when they were staged. Rows are dropped
        and counted if their slot is not known (`deferred_rows_dropped`) or holds other content now
        (`stale_rows_dropped`). A request with nothing staged is fine.

        Raises:
            StateError: a block id outside the pool.
        """
        self._deferred.commit(finished_req_ids, input_batch)

    def discard_deferred_mm_outputs(self, req_id: str) -> None:
        """Drop the staged rows of a request that leaves without finishing; none staged is fine."""
        self._deferred.discard(req_id)


def _given(multimodal_outputs: Mapping[str, object] | None) -> dict[str, object]:
    return {key: value for key, value in (multimodal_outputs or {}).items() if value is not None}
