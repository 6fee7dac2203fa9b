"""The shared encoder cache behind the interface of vLLM 0.33's encoder cache manager.

vLLM loads it by name:

    EncoderCacheManagerConfig(
        encoder_cache_manager_cls="omnireuse_engines.vllm.VllmEncoderCacheManager"
    )

Source of the calls and their order: vllm 0.33.0, v1/core/sched/scheduler.py and v1/core/encoder_cache_manager.py.
Imports neither vLLM nor torch.
"""

from __future__ import annotations

import logging
from typing import Any

from omnireuse.errors import ConfigError, StateError, UnsupportedModelError
from omnireuse_engines.vllm.interface import Lease, Outcome
from omnireuse_engines.vllm.manager import SharedEncoderCacheManager

__all__ = ["VllmEncoderCacheManager"]

logger = logging.getLogger(__name__)


class VllmEncoderCacheManager:
    """Decide for vLLM's scheduler which encoder outputs stay, by content, counted in encoder embeddings.

    The runner stores outputs under vLLM's identifier alone, so nothing else distinguishes entries here.

    A scheduling pass ends with `get_freed_mm_hashes`. What it plans is committed at its end, when the plan goes to the
    model runner; an item whose request is preempted before was never encoded and is no hit.

    Args:
        cache_size: capacity in encoder embeddings.
        join_within_pass: let a request use what another one plans in the same pass. Must be off if the scheduler may
            withdraw a plan of the same pass (priority scheduling): then both encode.
    """

    def __init__(self, cache_size: int, *, join_within_pass: bool = True) -> None:
        self.shared = SharedEncoderCacheManager(cache_size)
        self.cache_size = cache_size
        self._join_within_pass = join_within_pass
        self._planned: dict[str, list[str]] = {}  # planned in this pass → the requests that plan to encode it

    @classmethod
    def create_manager(cls, *, cache_size: int, vllm_config: Any) -> VllmEncoderCacheManager:
        """Build the manager as vLLM's scheduler does."""
        if vllm_config.model_config.is_encoder_decoder:
            raise UnsupportedModelError(
                "VllmEncoderCacheManager: encoder-decoder models do not keep encoder outputs in this cache; leave "
                "encoder_cache_manager_cls unset for them"
            )
        if given := dict(vllm_config.ec_manager_config.manager_config):
            raise ConfigError(
                f"VllmEncoderCacheManager(manager_config={given}): field must be empty, as eviction is S3-FIFO; "
                "for LRU leave encoder_cache_manager_cls unset, because vLLM's own manager has it"
            )
        logger.info("omnireuse keeps encoder outputs: %d embeddings, evicted by S3-FIFO", cache_size)
        return cls(cache_size, join_within_pass=vllm_config.scheduler_config.policy == "fcfs")

    @property
    def num_free_slots(self) -> int:
        """Embeddings not taken by any entry."""
        return self.shared.num_free_embeds

    @property
    def num_freeable_slots(self) -> int:
        """Embeddings that could be allocated if everything unreferenced left."""
        return self.shared.num_free_embeds + self.shared.num_idle_embeds

    def reset(self) -> None:
        """Forget everything, because the weights changed. vLLM itself tells the runner."""
        self.shared.reset()
        self._planned.clear()

    def check_and_update_cache(self, request: Any, input_id: int) -> bool:
        """Tell whether the request can use this input's output in this pass, and hold it if so."""
        key = request.mm_features[input_id].identifier
        if self.shared.hold(key, request.request_id, input_id):
            return True
        if key in self._planned and (self._join_within_pass or request.request_id in self._planned[key]):
            self._hold(key, request, input_id)
            return True
        return False

    def get_cached_num_encoder_embeds(self, request: Any, input_id: int) -> int | None:
        """Return the embeddings kept or planned for this input's content; None if there are none."""
        return self.shared.get_num_embeds(request.mm_features[input_id].identifier)

    def can_allocate(
        self, request: Any, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        """Tell whether the input may be encoded now, and make room for it.

        Args:
            encoder_compute_budget: embeddings that this pass may still encode.
            num_embeds_to_schedule: embeddings promised to earlier inputs of the request and not yet allocated.
        """
        num_embeds = request.get_num_encoder_embeds(input_id)
        if num_embeds > encoder_compute_budget:
            return False
        if request.mm_features[input_id].identifier in self._planned:
            num_embeds = 0  # another request of this pass pays for the room already
        if num_embeds_to_schedule and not self.shared.can_fit(num_embeds + num_embeds_to_schedule):
            if not self.shared.can_fit(num_embeds):
                self.shared.make_room(num_embeds)  # raises if the request would wait for ever
            return False
        return self.shared.make_room(num_embeds + num_embeds_to_schedule)

    def allocate(self, request: Any, input_id: int) -> None:
        """Plan to encode the input in this pass."""
        key = request.mm_features[input_id].identifier
        lease = self._hold(key, request, input_id)
        if key not in self._planned:
            if lease.outcome is not Outcome.HIT:
                self._planned[key] = [lease.request_id]
        elif lease.request_id not in self._planned[key]:
            self._planned[key].append(lease.request_id)

    def get_cached_input_ids(self, request: Any) -> set[int]:
        """Return the inputs that the request holds (a copy)."""
        return set(self.shared.held_positions(request.request_id))

    def free_encoder_input(self, request: Any, input_id: int) -> None:
        """Release one input; one that is not held is left alone."""
        request_id = request.request_id
        if not self._planned:
            self.shared.release(request_id, input_id)
            return
        key = self.shared.held_positions(request_id).get(input_id)
        promoted = self.shared.release(request_id, input_id)
        if key is None or key not in self._planned:
            return
        encoders = self._planned[key]
        if request_id in encoders and key not in self.shared.held_positions(request_id).values():
            encoders.remove(request_id)
        if self.shared.get_num_embeds(key) is None:
            del self._planned[key]
        elif promoted is not None and promoted.request_id not in encoders:
            raise StateError(
                f"free_encoder_input({request_id!r}, {input_id}): a plan that {promoted.request_id!r} relies on in "
                "the same pass must not be withdrawn; build the manager with join_within_pass=False"
            )

    def free(self, request: object) -> None:
        """Release everything that a request holds."""
        for input_id in sorted(self.get_cached_input_ids(request)):
            self.free_encoder_input(request, input_id)

    def get_freed_mm_hashes(self) -> list[str]:
        """End the pass: commit its plans, and drain the identifiers whose outputs the runner drops."""
        if self._planned:
            self.shared.commit_all(self._planned)
            self._planned.clear()
        return self.shared.drain_evicted()

    def get_manager_metadata(self) -> None:
        """The worker needs nothing beside the freed identifiers."""

    def _hold(self, key: str, request: Any, input_id: int) -> Lease:
        lease = self.shared.reserve(key, request.request_id, input_id, request.get_num_encoder_embeds(input_id))
        if lease is None:
            raise StateError(
                f"allocate({request.request_id!r}, {input_id}): the input must fit, got no room for "
                f"{request.get_num_encoder_embeds(input_id)} embeddings; ask can_allocate first"
            )
        return lease
