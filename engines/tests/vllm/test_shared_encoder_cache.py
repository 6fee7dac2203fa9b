from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omnireuse.errors import ConfigError, StateError
from omnireuse_engines.vllm import EncoderKey, ItemTooLargeError, Lease, Outcome, SharedEncoderCacheManager
from omnireuse_engines.vllm import manager as module


def key(content: str, **parts: object) -> EncoderKey:
    return EncoderKey(content=content, **parts)


def make(max_embeds: int = 10, **budget: object) -> SharedEncoderCacheManager:
    return SharedEncoderCacheManager(max_embeds, **budget)


def encode(manager: SharedEncoderCacheManager, content: str, size: int, request: str = "x", **commit: object) -> Lease:
    """Reserve and commit."""
    lease = manager.reserve(key(content), request, 0, size)
    assert lease is not None
    assert lease.outcome is Outcome.RESERVED
    manager.commit(lease, **commit)
    return lease


def see(manager: SharedEncoderCacheManager, content: str, size: int, **commit: object) -> bool:
    """Serve a request that shows one item and leaves; tells whether it was a hit."""
    is_hit = manager.hold(key(content), "x", 0)
    if not is_hit:
        encode(manager, content, size, **commit)
    manager.release_request("x")
    return is_hit


# --- two phases


def test_a_planned_item_is_no_hit_until_it_is_committed() -> None:
    manager = make()
    lease = manager.reserve(key("cat"), "a", 0, 4)
    assert not manager.is_ready(key("cat"))
    assert not manager.hold(key("cat"), "b", 0)
    manager.commit(lease)
    assert manager.hold(key("cat"), "b", 0)
    assert manager.held_positions("b") == {0: key("cat")}


@pytest.mark.parametrize("again", ["commit", "abort"])
@pytest.mark.parametrize("first", ["commit", "abort", "release", "reset"])
def test_a_lease_is_settled_once(first: str, again: str) -> None:
    manager = make()
    lease = manager.reserve(key("cat"), "a", 0, 4)
    {
        "commit": lambda: manager.commit(lease), "abort": lambda: manager.abort(lease),
        "release": lambda: manager.release("a", 0), "reset": manager.reset,
    }[first]()  # fmt: skip
    with pytest.raises(StateError, match="must be the one that has to encode"):
        getattr(manager, again)(lease)
    manager.assert_invariants()


def test_a_joined_lease_cannot_settle() -> None:
    manager = make()
    manager.reserve(key("cat"), "a", 0, 4)
    joined = manager.reserve(key("cat"), "b", 0, 4)
    with pytest.raises(StateError, match=r"to be encoded by .*'a'"):
        manager.commit(joined)


# --- sharing


def test_the_same_item_twice_in_one_request_is_encoded_once_and_held_until_both_are_done() -> None:
    manager = make(6)
    first = manager.reserve(key("cat"), "a", 0, 6)
    second = manager.reserve(key("cat"), "a", 1, 6)
    assert (first.outcome, second.outcome) == (Outcome.RESERVED, Outcome.JOINED)
    manager.commit(first)
    manager.release("a", 0)
    assert manager.reserve(key("dog"), "b", 0, 6) is None
    manager.release("a", 1)
    assert manager.reserve(key("dog"), "b", 0, 6) is not None


@pytest.mark.parametrize("part", [{"weights_epoch": 1}, {"adapter": "style"}, {"tenant": "acme"}])
def test_an_output_is_found_only_under_everything_it_depends_on(part: dict) -> None:
    manager = make()
    encode(manager, "cat", 4)
    assert not manager.hold(key("cat", **part), "b", 0)


# --- what cannot be


def test_a_position_holds_one_item() -> None:
    manager = make()
    encode(manager, "dog", 2, "b")
    encode(manager, "cat", 4, "a")
    with pytest.raises(StateError, match="release it first"):
        manager.hold(key("dog"), "a", 0)
    with pytest.raises(StateError, match="release it first"):
        manager.reserve(key("dog"), "a", 0, 2)


def test_one_content_has_one_size() -> None:
    manager = make()
    encode(manager, "cat", 4)
    with pytest.raises(StateError, match="must have 4 embeddings as before, got 5"):
        manager.reserve(key("cat"), "b", 0, 5)


@pytest.mark.parametrize(("embeds", "size"), [(11, 0), (1, 101)])
def test_an_item_that_can_never_fit_is_an_error_and_not_a_spin(embeds: int, size: int) -> None:
    manager = make(10, max_bytes=100)
    with pytest.raises(ItemTooLargeError, match="waiting would never help"):
        manager.reserve(key("huge"), "a", 0, embeds, size)
    assert manager.reserve(key("exact"), "a", 0, 10, 100) is not None


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"max_embeds": -1}, ConfigError),
        ({"max_embeds": 1, "max_bytes": -1}, ConfigError),
    ],
)
def test_budgets_that_cannot_be_are_refused(config: dict, error: type[Exception]) -> None:
    with pytest.raises(error, match=list(config)[-1]):
        SharedEncoderCacheManager(**config)


# --- forgetting


def test_what_was_used_once_leaves_in_the_order_it_came() -> None:
    manager = make(3)
    for content in ("a", "b", "c"):
        encode(manager, content, 1, content)
    for request in ("b", "a", "c"):
        manager.release(request, 0)
    assert manager.make_room(3)
    assert [gone.content for gone in manager.drain_evicted()] == ["a", "b", "c"]


def test_nothing_is_evicted_before_room_is_needed_or_more_than_needed() -> None:
    manager = make(4)
    for content in "abcd":
        see(manager, content, 1)
    assert manager.stats()["evicted"] == 0
    see(manager, "e", 1)
    assert manager.stats()["evicted"] == 1
    assert manager.stats()["embeds"] == 4


def test_a_scan_does_not_flush_what_is_asked_for_often() -> None:
    manager = make(10)
    for _ in range(4):
        for content in "abcde":
            see(manager, content, 1)
    for number in range(40):
        see(manager, f"once {number}", 1)
    assert sum(manager.is_ready(key(content)) for content in "abcde") >= 4


def test_s3_fifo_remembers_what_came_back() -> None:
    manager = make(4)
    see(manager, "back", 1)
    for number in range(4):
        see(manager, f"once {number}", 1)
    assert not manager.is_ready(key("back"))
    see(manager, "back", 1)  # now in the main queue, which outlives what is seen once
    for number in range(3):
        see(manager, f"later {number}", 1)
    assert manager.is_ready(key("back"))


def test_bytes_are_a_second_budget_and_may_be_known_late() -> None:
    manager = make(100, max_bytes=50)
    for content in ("a", "b"):
        lease = manager.reserve(key(content), content, 0, 1, 20)
        manager.commit(lease)
        manager.release(content, 0)
    late = manager.reserve(key("late"), "c", 0, 1)
    manager.commit(late, num_bytes=25)
    assert manager.stats()["bytes"] == 45
    assert not manager.is_ready(key("a"))
    manager.assert_invariants()


def test_a_reset_returns_every_output_and_forgets_references_too() -> None:
    manager = make()
    encode(manager, "cat", 4, "a")
    see(manager, "cow", 4)
    manager.make_room(5)  # "cow" goes, and nobody drains it
    manager.reserve(key("planned"), "b", 0, 1)
    assert sorted(gone.content for gone in manager.reset()) == ["cat", "cow", "planned"]
    assert manager.drain_evicted() == []
    assert manager.release("a", 0) is None
    assert manager.reserve(key("dog"), "a", 0, 10) is not None
    manager.assert_invariants()


# --- reports


def test_evictions_are_told_in_order_until_a_reset() -> None:
    manager = make(4)
    encode(manager, "cat", 4, "a")
    manager.release("a", 0)
    encode(manager, "dog", 3, "b")
    assert manager.drain_evicted() == [key("cat")]
    assert manager.drain_evicted() == []
    manager.release("b", 0)
    encode(manager, "cow", 3, "c")
    assert manager.reset() == [key("dog"), key("cow")]
    assert manager.drain_evicted() == []


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("drains_between", [True, False])
def test_an_output_that_is_encoded_again_is_not_drained(end: str, drains_between: bool) -> None:
    manager = make(4)
    see(manager, "cat", 4)
    assert manager.make_room(4)
    lease = manager.reserve(key("cat"), "a", 0, 4)
    if drains_between:
        assert manager.drain_evicted() == []
    getattr(manager, end)(lease)
    assert manager.drain_evicted() == ([key("cat")] if end == "abort" else [])
    assert manager.drain_evicted() == []


class Owner(RuleBasedStateMachine):
    """An owner of the tensors that drains whenever it likes: what is ready is there, and nothing is left over."""

    def __init__(self) -> None:
        super().__init__()
        self.manager, self.tensors, self.leases = make(4), set(), {}

    @rule(content=st.sampled_from("abcd"), size=st.integers(1, 3))
    def plan(self, content: str, size: int) -> None:
        size = self.manager.get_num_embeds(key(content)) or size
        lease = self.manager.reserve(key(content), content, 0, size)
        if lease is not None and lease.outcome is Outcome.RESERVED:
            self.leases[content] = lease
        else:
            self.manager.release(content, 0)

    @rule(data=st.data(), encodes=st.booleans())
    def settle(self, data: st.DataObject, encodes: bool) -> None:
        if not self.leases:
            return
        content = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases.pop(content)
        if encodes:
            self.tensors.add(key(content))
            self.manager.commit(lease)
            self.manager.release(content, 0)
        else:
            self.manager.abort(lease)

    @rule()
    def drain(self) -> None:
        self.tensors.difference_update(self.manager.drain_evicted())
        assert all(self.manager.get_num_embeds(each) is not None for each in self.tensors)

    @rule()
    def reset(self) -> None:
        self.tensors.difference_update(self.manager.reset())
        self.leases.clear()
        assert not self.tensors

    @invariant()
    def what_is_ready_is_there(self) -> None:
        assert self.tensors >= {key(content) for content in "abcd" if self.manager.is_ready(key(content))}


TestOwner = Owner.TestCase
TestOwner.settings = settings(stateful_step_count=30)


def test_evictions_that_nobody_drains_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING", 2)
    manager = make()
    for content in "abc":
        see(manager, content, 1)
    manager.make_room(10)
    assert [gone.content for gone in manager.drain_evicted()] == ["b", "c"]
    assert manager.stats()["evictions_forgotten"] == 1


# --- any sequence of calls


class AnySequence(RuleBasedStateMachine):
    """Against a model that keeps, per key, whether it is there and who holds it, and no order of eviction."""

    @initialize()
    def start(self) -> None:
        self.manager = make(12, max_bytes=20)
        self.sizes = {f"k{n}": 1 + n for n in range(6)}
        self.leaders: dict[str, Lease] = {}  # keys planned → the lease that has to encode
        self.there: set[str] = set()
        self.holders: dict[tuple[str, int], str] = {}

    where = st.tuples(st.sampled_from("abc"), st.integers(0, 2))

    def sync(self) -> None:
        """Take evictions over: only what is there and unheld may leave."""
        for gone in self.manager.drain_evicted():
            assert gone.content in self.there
            assert gone.content not in self.holders.values()
            self.there.remove(gone.content)

    @rule(content=st.sampled_from([f"k{n}" for n in range(6)]), where=where)
    def reserve(self, content: str, where: tuple[str, int]) -> None:
        if self.holders.get(where, content) != content:
            with pytest.raises(StateError):
                self.manager.reserve(key(content), *where, self.sizes[content], 2 * self.sizes[content])
            return
        known = content in self.leaders or (content in self.there and self.manager.is_ready(key(content)))
        lease = self.manager.reserve(key(content), *where, self.sizes[content], 2 * self.sizes[content])
        self.sync()
        if lease is None:
            assert not known
            kept = set(self.leaders) | set(self.holders.values())
            needed = sum(self.sizes[c] for c in kept) + self.sizes[content]
            assert needed > self.manager.max_embeds or 2 * needed > self.manager.max_bytes
            return
        self.holders[where] = content
        if content in self.leaders:
            is_leader = where == (self.leaders[content].request_id, self.leaders[content].position)
            assert lease.outcome is (Outcome.RESERVED if is_leader else Outcome.JOINED)
        elif content in self.there:
            assert lease.outcome is Outcome.HIT
        else:
            assert lease.outcome is Outcome.RESERVED
            self.leaders[content] = lease

    @rule(content=st.sampled_from([f"k{n}" for n in range(6)]), where=where)
    def hold(self, content: str, where: tuple[str, int]) -> None:
        if self.holders.get(where, content) != content:
            return
        is_held = self.manager.hold(key(content), *where)
        self.sync()
        assert is_held == (content in self.there)
        if is_held:
            self.holders[where] = content

    @rule(data=st.data(), verb=st.sampled_from(["commit", "commit", "abort"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        if not self.leaders:
            return
        content = data.draw(st.sampled_from(sorted(self.leaders)))
        lease = self.leaders.pop(content)
        if verb == "commit":
            self.manager.commit(lease)
            self.there.add(content)
        else:
            self.manager.abort(lease)
            self.holders = {where: held for where, held in self.holders.items() if held != content}
        self.sync()

    @rule(where=where)
    def release(self, where: tuple[str, int]) -> None:
        promoted = self.manager.release(*where)
        content = self.holders.pop(where, None)
        self.after_release(content, where, [promoted] if promoted else [])

    @rule(request=st.sampled_from("abc"))
    def release_request(self, request: str) -> None:
        promoted = {lease.key.content: lease for lease in self.manager.release_request(request)}
        for where in sorted(self.holders):
            if where[0] == request:
                content = self.holders.pop(where)
                rest = any(held == content and w[0] != request for w, held in self.holders.items())
                self.after_release(content, where, [promoted[content]] if rest and content in promoted else [])
        assert not self.manager.held_positions(request)

    def after_release(self, content: str | None, where: tuple[str, int], promoted: list[Lease]) -> None:
        lease = self.leaders.get(content or "")
        if lease is not None and (lease.request_id, lease.position) == where:
            self.leaders.pop(content)
            for new in promoted:
                self.leaders[content] = new
            if not promoted and content in self.holders.values():  # passed on within a request that is leaving
                where = next(w for w, held in self.holders.items() if held == content)
                self.leaders[content] = Lease(
                    key=key(content), request_id=where[0], position=where[1], outcome=Outcome.RESERVED
                )
        self.sync()

    @rule()
    def reset(self) -> None:
        self.manager.reset()
        self.leaders, self.holders = {}, {}
        self.there = set()

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.assert_invariants()
        for lease in self.leaders.values():
            assert not self.manager.is_ready(lease.key)
            assert self.manager.get_num_embeds(lease.key) == self.sizes[lease.key.content]
        for content in self.holders.values():
            assert (content in self.there) == self.manager.is_ready(key(content))


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(stateful_step_count=30)
