"""The manager behind vLLM's interface, in the order in which vLLM's scheduler calls it; needs no vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from omnireuse.errors import ConfigError, StateError, UnsupportedModelError
from omnireuse_engines.vllm import ItemTooLargeError
from omnireuse_engines.vllm.vllm_manager import VllmEncoderCacheManager


@dataclass
class Request:
    request_id: str
    items: list[tuple[str, int]]
    mm_features: list[SimpleNamespace] = field(init=False)

    def __post_init__(self) -> None:
        self.mm_features = [SimpleNamespace(identifier=content) for content, _ in self.items]

    def get_num_encoder_embeds(self, input_id: int) -> int:
        return self.items[input_id][1]


def vllm_config(policy: str = "fcfs", is_encoder_decoder: bool = False, **manager_config: object) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(is_encoder_decoder=is_encoder_decoder),
        scheduler_config=SimpleNamespace(policy=policy),
        ec_manager_config=SimpleNamespace(manager_config=manager_config),
    )


def make(size: int = 10, **config: object) -> VllmEncoderCacheManager:
    return VllmEncoderCacheManager.create_manager(cache_size=size, vllm_config=vllm_config(**config))


def plan(manager: VllmEncoderCacheManager, request: Request, input_id: int = 0) -> str:
    """What the scheduler does for one input."""
    if manager.check_and_update_cache(request, input_id):
        return "cached"
    if not manager.can_allocate(request, input_id, 100, 0):
        return "no room"
    manager.allocate(request, input_id)
    return "encode"


def test_an_item_is_encoded_once_for_all_requests() -> None:
    manager, a, b = make(), Request("a", [("cat", 4)]), Request("b", [("cat", 4)])
    assert plan(manager, a) == "encode"
    assert plan(manager, b) == "cached"  # in the same pass
    assert manager.get_freed_mm_hashes() == []
    manager.free(a)
    manager.free(b)
    assert plan(manager, Request("c", [("cat", 4)])) == "cached"
    assert (manager.num_free_slots, manager.num_freeable_slots) == (6, 6)
    assert manager.get_cached_num_encoder_embeds(a, 0) == 4


def test_what_was_planned_and_never_encoded_is_no_hit() -> None:
    """A request preempted in the pass that planned it takes its plan along: vLLM drops its encoder inputs."""
    manager, a = make(policy="priority"), Request("a", [("cat", 4)])
    assert plan(manager, a) == "encode"
    manager.free(a)
    assert manager.get_freed_mm_hashes() == []
    assert not manager.check_and_update_cache(Request("b", [("cat", 4)]), 0)
    assert manager.num_free_slots == 10


def test_a_request_freed_after_its_pass_leaves_its_output_behind() -> None:
    manager, a = make(), Request("a", [("cat", 4)])
    plan(manager, a)
    manager.get_freed_mm_hashes()
    manager.free(a)
    assert manager.check_and_update_cache(Request("b", [("cat", 4)]), 0)


def test_under_priority_scheduling_both_encode_so_that_either_may_be_preempted() -> None:
    manager, a, b = make(4, policy="priority"), Request("a", [("cat", 4)]), Request("b", [("cat", 4)])
    assert plan(manager, a) == "encode"
    assert plan(manager, b) == "encode"
    assert manager.num_free_slots == 0  # charged once
    manager.free(a)
    assert manager.get_freed_mm_hashes() == []
    assert manager.check_and_update_cache(Request("c", [("cat", 4)]), 0)
    manager.shared.assert_invariants()


def test_withdrawing_a_plan_that_another_relies_on_is_refused() -> None:
    manager, a, b = make(), Request("a", [("cat", 4)]), Request("b", [("cat", 4)])
    plan(manager, a)
    plan(manager, b)
    with pytest.raises(StateError, match="join_within_pass=False"):
        manager.free(a)


def test_evicted_identifiers_are_reported_once_and_not_if_they_came_back() -> None:
    manager = make(4)
    for content in ("cat", "dog"):
        request = Request(content, [(content, 4)])
        plan(manager, request)
        if content == "cat":
            manager.get_freed_mm_hashes()
        manager.free(request) if content == "cat" else None
    assert manager.get_freed_mm_hashes() == ["cat"]
    assert manager.get_freed_mm_hashes() == []
    manager.free(Request("dog", [("dog", 4)]))
    bird, dog = Request("bird", [("bird", 2)]), Request("dog2", [("dog", 4)])
    assert manager.can_allocate(bird, 0, 100, 0)  # evicts the dog, then the bird cannot be scheduled after all
    assert plan(manager, dog) == "encode"
    assert manager.get_freed_mm_hashes() == []


def test_room_is_judged_with_what_is_promised_and_by_budget() -> None:
    manager, a = make(10), Request("a", [("cat", 6), ("dog", 5)])
    assert not manager.can_allocate(a, 0, 5, 0)
    assert manager.can_allocate(a, 0, 6, 4)
    assert not manager.can_allocate(a, 1, 100, 6)
    assert manager.can_allocate(a, 1, 100, 5)


def test_an_item_larger_than_the_cache_is_an_error_and_not_a_spin() -> None:
    with pytest.raises(ItemTooLargeError):
        make(3).can_allocate(Request("a", [("cat", 4)]), 0, 100, 0)


def test_reset_forgets_everything_and_reports_nothing() -> None:
    manager, a = make(), Request("a", [("cat", 4)])
    plan(manager, a)
    manager.reset()
    manager.free(a)
    assert manager.get_freed_mm_hashes() == []
    assert manager.num_free_slots == 10
    assert manager.get_manager_metadata() is None


def test_configuration_is_read_from_vllm_and_options_are_refused() -> None:
    configured = vllm_config()
    manager = VllmEncoderCacheManager.create_manager(cache_size=7, vllm_config=configured)
    assert manager.cache_size == manager.shared.max_embeds == 7
    configured.ec_manager_config.manager_config = {"policy": "lru"}
    with pytest.raises(ConfigError, match="for LRU leave encoder_cache_manager_cls unset"):
        VllmEncoderCacheManager.create_manager(cache_size=7, vllm_config=configured)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        make(is_encoder_decoder=True)


def test_allocating_without_room_is_refused() -> None:
    manager = make(4)
    plan(manager, Request("a", [("cat", 4)]))
    with pytest.raises(StateError, match="ask can_allocate first"):
        manager.allocate(Request("b", [("dog", 4)]), 0)
