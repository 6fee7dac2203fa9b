import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnireuse.errors import ConfigError, WrongTypeError
from omnireuse.stores.flight import SingleFlight
from omnireuse.stores.memory import MemoryStore
from omnireuse.stores.trees import compact_copy, flatten, storage_bytes, unflatten


@pytest.mark.parametrize("name", ["max_bytes", "max_entries"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_a_budget_below_one_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        MemoryStore(**{name: value})


def test_the_entry_used_longest_ago_leaves():
    store = MemoryStore(max_entries=2)
    store.put("a", 1, 1)
    store.put("b", 2, 1)
    store.lookup("a", None)
    store.put("c", 3, 1)
    assert list(store.snapshot()) == ["a", "c"]
    assert store.counts == {"hits": 1, "evictions": 1}


def test_an_oversize_value_replaces_nothing_but_its_own_old_one():
    store = MemoryStore(max_bytes=10)
    store.put("a", 1, 4)
    store.put("b", 2, 4)
    assert store.put("a", 3, 11) is False
    assert list(store.snapshot()) == ["b"]


@given(st.lists(st.tuples(st.sampled_from("pld"), st.integers(0, 7), st.integers(0, 12))))
def test_the_books_balance_after_any_sequence(steps):
    store = MemoryStore(max_bytes=20, max_entries=4)
    sizes = {}
    for what, key, size in steps:
        if what == "p":
            store.put(key, size, size)
            sizes[key] = size
        elif what == "l":
            assert store.lookup(key, None) in (None, sizes.get(key))
        else:
            store.discard(key)
        assert store.num_bytes == sum(store.snapshot().values()) <= 20
        assert len(store) <= 4


def test_flights_do_not_mix_keys_and_are_forgotten():
    flights, inside = SingleFlight(), threading.Barrier(2, timeout=10)
    results = {}

    def work(key):
        results[key] = flights.run(key, lambda: (inside.wait(), key)[1])

    threads = [threading.Thread(target=work, args=(key,)) for key in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == {"a": ("a", True), "b": ("b", True)}
    assert flights.run("a", lambda: 2) == (2, True)


def test_an_interrupted_leader_hands_over_to_a_waiter():
    flights, entered, gate = SingleFlight(), threading.Event(), threading.Event()
    results = []

    def leader():
        def load():
            entered.set()
            gate.wait(10)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            flights.run("k", load)

    first = threading.Thread(target=leader)
    first.start()
    entered.wait(10)
    second = threading.Thread(target=lambda: results.append(flights.run("k", lambda: "mine")))
    second.start()
    gate.set()
    first.join(10)
    second.join(10)
    assert results == [("mine", True)]


def test_trees_come_back_with_their_containers():
    from collections import namedtuple

    pair = namedtuple("pair", "x y")
    t = torch.ones(2)
    value = {"a": [t, (None, 1, "s")], "b": pair(t, np.zeros(2))}
    skeleton, leaves = flatten(value)
    assert len(leaves) == 2
    again = unflatten(skeleton, leaves)
    assert type(again["b"]) is pair
    assert again["a"][0] is t is again["b"].x
    assert again["a"][1] == (None, 1, "s")
    assert again is not value
    assert again["a"] is not value["a"]


@pytest.mark.parametrize("value", [object(), {object()}, torch.ones(2).to_sparse(), np.array([None])])
def test_what_cannot_be_stored_is_named(value):
    with pytest.raises(WrongTypeError, match="value"):
        flatten(value)


def test_a_recursive_value_is_refused():
    value = []
    value.append(value)
    with pytest.raises(WrongTypeError, match="nested"):
        flatten(value)


def test_copies_are_compact_and_count_versions_even_from_inference_mode():
    with torch.inference_mode():
        copy = compact_copy(torch.arange(100)[3:5])
    assert copy.untyped_storage().nbytes() == 16
    copy.add_(1)
    assert copy._version >= 1  # an inference tensor would raise
    turned = compact_copy(torch.ones(2, 3).T)
    assert turned.stride() == (1, 3)


def test_a_peek_neither_counts_nor_touches():
    store = MemoryStore(max_entries=2)
    store.put("a", 1, 1)
    store.put("b", 2, 1)
    assert (store.peek("a"), store.peek("x"), "a" in store, len(store)) == (1, None, True, 2)
    store.put("c", 3, 1)
    assert "a" not in store
    assert store.counts == {"evictions": 1}


def test_storage_is_counted_once_and_whole():
    base = torch.zeros(100)
    assert storage_bytes([base[:1], base[1:2]]) == 400
    array = np.zeros(100)
    assert storage_bytes([array[:1], array[1:]]) == 800
