from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from omnireuse.core import encoder_cache_manager as module
from omnireuse.core.encoder_cache_manager import EncoderCacheManager, compute_encoder_budget
from omnireuse.errors import ConfigError, StateError, WrongTypeError


@dataclass
class Request:
    request_id: str
    tokens: list[int]

    def get_num_encoder_tokens(self, input_id: int) -> int:
        return self.tokens[input_id]


class NaiveManager:
    """The interface as written down, with none of the guards: only for sequences that respect the contract."""

    def __init__(self, cache_size: int) -> None:
        self.held: list[tuple[str, int, int]] = []
        self.cache_size, self.freed = cache_size, []

    @property
    def num_free_slots(self) -> int:
        return self.cache_size - sum(tokens for _, _, tokens in self.held)

    def allocate(self, request: Request, input_id: int) -> None:
        self.held.append((request.request_id, input_id, request.tokens[input_id]))

    def get_cached_input_ids(self, request: Request) -> set[int]:
        return {i for r, i, _ in self.held if r == request.request_id}

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        if input_id in self.get_cached_input_ids(request):
            self.held = [h for h in self.held if h[:2] != (request.request_id, input_id)]
            self.freed.append((request.request_id, input_id))

    def free(self, request: Request) -> None:
        for input_id in sorted(self.get_cached_input_ids(request)):
            self.free_encoder_input(request, input_id)

    def get_freed_ids(self) -> list[tuple[str, int]]:
        freed, self.freed = self.freed, []
        return freed

    def reset(self) -> None:
        self.freed += [(request, input_id) for request, input_id, _ in sorted(self.held)]
        self.held = []


def check_books(manager: EncoderCacheManager, requests: list[Request]) -> None:
    by_id = {r.request_id: r for r in requests}
    held = sum(by_id[r].tokens[i] for r, ids in manager.cached.items() for i in ids)
    assert manager.num_free_slots + held == manager.cache_size
    assert 0 <= manager.num_free_slots <= manager.cache_size
    assert all(manager.cached.values())  # no empty set is left behind


class AnySequence(RuleBasedStateMachine):
    """Every call in every order, contract or not: the books balance and refusals change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = EncoderCacheManager(10)
        self.requests = [Request("a", [4, 3, 10, 0]), Request("b", [4, 11, 1, 5]), Request("c", [10, 1, 2, 3])]

    @rule(who=st.integers(0, 2), input_id=st.integers(0, 3))
    def allocate(self, who: int, input_id: int) -> None:
        request = self.requests[who]
        before = (self.manager.cached, self.manager.num_free_slots)
        held = self.manager.has_cache(request, input_id)
        fits = self.manager.can_allocate(request, input_id)
        assert (self.manager.cached, self.manager.num_free_slots) == before
        try:
            self.manager.allocate(request, input_id)
        except StateError:
            assert not held
            assert not fits
            assert (self.manager.cached, self.manager.num_free_slots) == before
        else:
            assert held or fits
            assert self.manager.has_cache(request, input_id)

    @rule(who=st.integers(0, 2), input_id=st.integers(0, 3))
    def free_one(self, who: int, input_id: int) -> None:
        request = self.requests[who]
        held, pending = self.manager.has_cache(request, input_id), self.manager.freed
        self.manager.free_encoder_input(request, input_id)
        assert not self.manager.has_cache(request, input_id)
        assert self.manager.freed == pending + [(request.request_id, input_id)] * held

    @rule(who=st.integers(0, 2))
    def free_all(self, who: int) -> None:
        self.manager.free(self.requests[who])
        assert self.manager.get_cached_input_ids(self.requests[who]) == set()

    @rule()
    def reset(self) -> None:
        held = {(request, input_id) for request, ids in self.manager.cached.items() for input_id in ids}
        pending = self.manager.freed
        self.manager.reset()
        assert self.manager.cached == {}
        assert self.manager.num_free_slots == self.manager.cache_size
        assert self.manager.freed[: len(pending)] == pending
        assert sorted(self.manager.freed[len(pending) :]) == sorted(held)

    @rule()
    def drain(self) -> None:
        assert self.manager.get_freed_ids() is not None
        assert self.manager.freed == []

    @invariant()
    def books_balance(self) -> None:
        check_books(self.manager, self.requests)


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(stateful_step_count=40)


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_the_naive_twin_wherever_the_contract_is_kept(seed: int) -> None:
    rng = random.Random(seed)
    requests = [Request(f"r{k}", [rng.randint(0, 9) for _ in range(4)]) for k in range(6)]
    manager, twin = EncoderCacheManager(24), NaiveManager(24)
    for _ in range(2000):
        request, input_id = rng.choice(requests), rng.randrange(4)
        action = rng.randrange(5) if rng.random() < 0.99 else 5
        if action <= 1 and not manager.has_cache(request, input_id) and manager.can_allocate(request, input_id):
            manager.allocate(request, input_id)
            twin.allocate(request, input_id)
        elif action == 2:
            manager.free_encoder_input(request, input_id)
            twin.free_encoder_input(request, input_id)
        elif action == 3:
            manager.free(request)
            twin.free(request)
        elif action == 4:
            assert sorted(manager.get_freed_ids()) == sorted(twin.get_freed_ids())
        elif action == 5:
            manager.reset()
            twin.reset()
        assert manager.num_free_slots == twin.num_free_slots
        assert all(manager.get_cached_input_ids(r) == twin.get_cached_input_ids(r) for r in requests)


def test_exact_fit_is_allowed_and_one_more_is_not() -> None:
    manager = EncoderCacheManager(8)
    assert manager.can_allocate(Request("a", [8]), 0)
    assert not manager.can_allocate(Request("a", [9]), 0)


def test_allocating_again_with_another_size_is_refused() -> None:
    manager, request = EncoderCacheManager(10), Request("a", [6])
    manager.allocate(request, 0)
    request.tokens[0] = 2
    with pytest.raises(StateError, match="held with 6 encoder tokens, got 2"):
        manager.allocate(request, 0)
    assert manager.num_free_slots == 4


def test_freeing_credits_what_was_charged_even_if_the_request_now_says_otherwise() -> None:
    manager, request = EncoderCacheManager(10), Request("a", [6])
    manager.allocate(request, 0)
    request.tokens[0] = 9
    manager.free_encoder_input(request, 0)
    assert manager.num_free_slots == 10


def test_allocating_past_the_limit_raises_and_changes_nothing() -> None:
    manager = EncoderCacheManager(10)
    manager.allocate(Request("a", [8]), 0)
    with pytest.raises(StateError, match=r"got 3 encoder tokens with 2 of 10 free; ask can_allocate first"):
        manager.allocate(Request("b", [3]), 0)
    assert manager.num_free_slots == 2
    assert manager.cached == {"a": {0}}


def test_what_is_read_off_is_a_copy() -> None:
    manager, request = EncoderCacheManager(10), Request("a", [4])
    manager.allocate(request, 0)
    manager.get_cached_input_ids(request).clear()
    manager.cached["a"].clear()
    manager.freed.append(("x", 0))
    assert manager.get_cached_input_ids(request) == {0}
    assert manager.get_freed_ids() == []


def test_freed_is_bounded_and_says_so_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING_FREED", 3)
    manager = EncoderCacheManager(1)
    with caplog.at_level(logging.WARNING):
        for k in range(5):
            request = Request(f"r{k}", [1])
            manager.allocate(request, 0)
            manager.free(request)
    assert manager.freed == [("r2", 0), ("r3", 0), ("r4", 0)]
    assert manager.num_freed_dropped == 2
    assert len(caplog.records) == 1
    assert "get_freed_ids" in caplog.text


def test_a_reset_reports_every_entry_and_later_frees_of_them_are_no_ops() -> None:
    manager, a, b = EncoderCacheManager(10), Request("a", [4, 3]), Request("b", [2])
    manager.reset()
    assert manager.get_freed_ids() == []
    for request, input_id in ((a, 1), (b, 0), (a, 0)):
        manager.allocate(request, input_id)
    manager.reset()
    assert (manager.num_free_slots, manager.cached) == (10, {})
    manager.free_encoder_input(a, 0)
    manager.free(b)
    manager.allocate(a, 1)  # the request goes on with new weights
    manager.free(a)
    assert manager.get_freed_ids() == [("a", 0), ("a", 1), ("b", 0), ("a", 1)]
    assert manager.num_free_slots == 10


@pytest.mark.parametrize(("size", "error"), [(-1, ConfigError), (1.5, WrongTypeError), ("8", WrongTypeError)])
def test_a_size_that_cannot_be_is_refused(size: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="cache_size"):
        EncoderCacheManager(size)


def test_a_negative_token_count_is_refused() -> None:
    manager = EncoderCacheManager(4)
    with pytest.raises(ConfigError, match=r"get_num_encoder_tokens\(0\) must be ≥ 0, got -3"):
        manager.allocate(Request("a", [-3]), 0)


class UntouchableRegistry:
    def get_max_tokens_per_item_by_nonzero_modality(self, model_config: object) -> dict[str, int]:
        raise AssertionError("the registry must not be touched for a text model")


class Registry:
    def __init__(self, **tokens: int) -> None:
        self.tokens = tokens

    def get_max_tokens_per_item_by_nonzero_modality(self, model_config: object) -> dict[str, int]:
        return self.tokens


def scheduler(**changes: object) -> SimpleNamespace:
    fields = {
        "disable_chunked_mm_input": False,
        "max_num_batched_tokens": 512,
        "max_num_encoder_input_tokens": 300,
        "encoder_cache_size": 400,
    }
    return SimpleNamespace(**{**fields, **changes})


MULTIMODAL = SimpleNamespace(is_multimodal_model=True)


def test_budget_of_a_text_model_is_zero_and_leaves_the_registry_alone() -> None:
    text = SimpleNamespace(is_multimodal_model=False)
    assert compute_encoder_budget(text, scheduler(), UntouchableRegistry()) == (0, 0)


def test_budget_with_every_modality_disabled_is_zero_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert compute_encoder_budget(MULTIMODAL, scheduler(), Registry()) == (0, 0)
    assert "disabled" in caplog.text


@pytest.mark.parametrize(("tokens", "expected"), [(100, (300, 400)), (350, (350, 400)), (900, (900, 900))])
def test_budget_holds_at_least_the_largest_item(tokens: int, expected: tuple[int, int]) -> None:
    assert compute_encoder_budget(MULTIMODAL, scheduler(), Registry(image=tokens, audio=7)) == expected


def test_budget_names_both_numbers_when_an_item_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=512.*600.*image"):
        compute_encoder_budget(MULTIMODAL, scheduler(disable_chunked_mm_input=True), Registry(image=600, audio=1))
