"""Decide which multimodal encoder outputs stay, counted in encoder tokens. The model runner keeps the tensors.

An entry belongs to one request; the distribution omnireuse-engines shares entries between requests.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from omnireuse import messages
from omnireuse.base.validation import require_size
from omnireuse.errors import ConfigError, StateError

__all__ = ["EncoderCacheManager", "EncoderRequest", "compute_encoder_budget"]

logger = logging.getLogger(__name__)

_MAX_PENDING_FREED = 65_536


class EncoderRequest(Protocol):
    """The part of a request that the manager reads."""

    @property
    def request_id(self) -> str:
        """The name of the request, unique among those that run."""

    def get_num_encoder_tokens(self, input_id: int) -> int:
        """Encoder tokens of one multimodal input of the request."""


class EncoderCacheManager:
    """Decide which multimodal encoder outputs stay, counted in encoder tokens.

    Always holds: `num_free_slots` + the tokens of everything in `cached` == `cache_size`, and
    0 ≤ `num_free_slots` ≤ `cache_size`. Returned collections are copies. Not thread-safe: one scheduler owns it.

    Args:
        cache_size: capacity in encoder tokens, ≥ 0. A larger one keeps more inputs alive at once.

    Raises:
        WrongTypeError, ConfigError: a size that is no integer ≥ 0.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = require_size("EncoderCacheManager(cache_size): field", cache_size)
        self._num_free_slots = self._cache_size
        # The charged size is kept: the request may report another one later.
        self._charged: dict[str, dict[int, int]] = {}
        self._freed: deque[tuple[str, int]] = deque()
        self._num_freed_dropped = 0

    def __repr__(self) -> str:
        return (
            f"EncoderCacheManager(cache_size={self._cache_size}, num_free_slots={self._num_free_slots}, "
            f"requests={len(self._charged)}, freed={len(self._freed)})"
        )

    @property
    def cache_size(self) -> int:
        """Capacity in encoder tokens."""
        return self._cache_size

    @property
    def num_free_slots(self) -> int:
        """Encoder tokens that can still be allocated."""
        return self._num_free_slots

    @property
    def cached(self) -> dict[str, set[int]]:
        """Input ids held, by request id."""
        return {request_id: set(charged) for request_id, charged in self._charged.items()}

    @property
    def freed(self) -> list[tuple[str, int]]:
        """(request id, input id) pairs freed since the last `get_freed_ids`, oldest first."""
        return list(self._freed)

    @property
    def num_freed_dropped(self) -> int:
        """Freed pairs dropped because they were not drained: the runner missed them."""
        return self._num_freed_dropped

    def has_cache(self, request: EncoderRequest, input_id: int) -> bool:
        """Tell whether this input of this request is held."""
        return input_id in self._charged.get(request.request_id, ())

    def can_allocate(self, request: EncoderRequest, input_id: int) -> bool:
        """Tell whether the input would fit now; an exact fit does. Changes nothing."""
        return self._num_tokens(request, input_id) <= self._num_free_slots

    def allocate(self, request: EncoderRequest, input_id: int) -> None:
        """Charge the input to the request, once.

        Raises:
            StateError: the input does not fit, or it is already held with another size. Nothing has changed.
        """
        num_tokens = self._num_tokens(request, input_id)
        request_id = request.request_id
        given = (request_id, input_id)
        held = self._charged.get(request_id, {}).get(input_id)
        if held is not None:
            if held != num_tokens:
                raise StateError(messages.HELD_WITH_ANOTHER_SIZE, given=given, held=held, tokens=num_tokens)
            return
        if num_tokens > self._num_free_slots:
            free, size = self._num_free_slots, self._cache_size
            raise StateError(messages.NO_FREE_SLOTS, given=given, tokens=num_tokens, free=free, size=size)
        self._charged.setdefault(request_id, {})[input_id] = num_tokens
        self._num_free_slots -= num_tokens

    def get_cached_input_ids(self, request: EncoderRequest) -> set[int]:
        """Return the input ids held for the request."""
        return set(self._charged.get(request.request_id, ()))

    def free_encoder_input(self, request: EncoderRequest, input_id: int) -> None:
        """Free one input; one that is not held is left alone."""
        charged = self._charged.get(request.request_id)
        if charged is None or input_id not in charged:
            return
        self._num_free_slots += charged.pop(input_id)
        if not charged:
            del self._charged[request.request_id]
        self._note_freed(request.request_id, input_id)

    def free(self, request: EncoderRequest) -> None:
        """Free every input of the request, in the order of their ids."""
        for input_id in sorted(self._charged.get(request.request_id, ())):
            self.free_encoder_input(request, input_id)

    def reset(self) -> None:
        """Drop every entry, because the encoder's weights changed; each is reported as freed.

        The requests may go on: they allocate again, and a later free of a dropped entry is a no-op.
        """
        for request_id, charged in self._charged.items():
            for input_id in sorted(charged):
                self._note_freed(request_id, input_id)
        self._charged.clear()
        self._num_free_slots = self._cache_size

    def get_freed_ids(self) -> list[tuple[str, int]]:
        """Drain the (request id, input id) pairs freed since the last call, oldest first.

        Call it once a step. The runner must drop these outputs before it encodes: an input freed and allocated again
        within the step is in the list too.
        """
        freed = list(self._freed)
        self._freed.clear()
        return freed

    def _note_freed(self, request_id: str, input_id: int) -> None:
        if len(self._freed) >= _MAX_PENDING_FREED:
            if self._num_freed_dropped == 0:
                logger.warning(
                    "EncoderCacheManager: %d freed inputs were never drained; forgetting the oldest from now on. "
                    "Call get_freed_ids() every step, or the model runner keeps their outputs.",
                    _MAX_PENDING_FREED,
                )
            self._freed.popleft()
            self._num_freed_dropped += 1
        self._freed.append((request_id, input_id))

    @staticmethod
    def _num_tokens(request: EncoderRequest, input_id: int) -> int:
        return require_size(
            f"request {request.request_id!r}: get_num_encoder_tokens({input_id})",
            request.get_num_encoder_tokens(input_id),
        )


def compute_encoder_budget(model_config: Any, scheduler_config: Any, mm_registry: Any) -> tuple[int, int]:
    """Compute how much one step may encode and the cache may hold, in encoder tokens.

    Both are at least the size of the largest item, which could otherwise never be scheduled.

    Args:
        model_config: has `is_multimodal_model`.
        scheduler_config: has `disable_chunked_mm_input`, `max_num_batched_tokens`, `max_num_encoder_input_tokens` and
            `encoder_cache_size`.
        mm_registry: has `get_max_tokens_per_item_by_nonzero_modality(model_config)`; not touched for a text model.

    Returns:
        (compute budget, cache size); (0, 0) for a text model, and with a warning if every modality is disabled.

    Raises:
        ConfigError: an item may not be split over steps and the largest one does not fit into one step.
    """
    if not model_config.is_multimodal_model:
        return 0, 0
    max_tokens_by_modality: Mapping[str, int] = mm_registry.get_max_tokens_per_item_by_nonzero_modality(model_config)
    if not max_tokens_by_modality:
        logger.warning("Every non-text modality of the model is disabled: nothing to encode, no encoder cache.")
        return 0, 0
    modality, max_tokens = max(max_tokens_by_modality.items(), key=lambda item: item[1])
    max_batched = scheduler_config.max_num_batched_tokens
    if scheduler_config.disable_chunked_mm_input and max_tokens > max_batched:
        raise ConfigError(messages.ITEM_OVER_BATCH, got=max_batched, least=max_tokens, modality=modality)
    return (
        max(scheduler_config.max_num_encoder_input_tokens, max_tokens),
        max(scheduler_config.encoder_cache_size, max_tokens),
    )
