"""The tensors behind the encoder cache: the tiers, and that manager and store never disagree."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from omnireuse.core.encoder_outputs import EncoderOutputStore, SharedEncoderOutputs
from omnireuse.core.shared_encoder_cache import (
    EncoderKey,
    Outcome,
    SharedEncoderCacheConfig,
    SharedEncoderCacheManager,
    entry_table,
)
from omnireuse.core.stores.disk import DiskTier
from omnireuse.core.stores.redis import RedisTier
from omnireuse.core.stores.tier import Tier
from omnireuse.core.stores.tiered import TieredStore
from omnireuse.errors import ConfigError, StateError, WrongTypeError

CAT, DOG = EncoderKey(content="cat"), EncoderKey(content="dog")


class DictTier(Tier):
    """A tier in a dict that can be told to fail, or to break off in the middle of a read."""

    name = "dict"

    def __init__(self) -> None:
        super().__init__(namespace="test")
        self.values: dict[str, bytes] = {}
        self.is_dead = self.breaks_off = False

    def _read(self, full: str) -> bytes | None:
        self._die_if_told()
        data = self.values.get(full)
        if data is not None and self.breaks_off:
            raise ConnectionResetError(f"{len(data) // 2} of {len(data)} bytes read")
        return data

    def _write(self, full: str, data: bytes) -> bool:
        self._die_if_told()
        self.values[full] = data
        return True

    def _delete(self, full: str) -> None:
        self._die_if_told()
        self.values.pop(full, None)

    def _keys(self, prefix: str) -> Iterator[str]:
        return iter([key for key in self.values if key.startswith(prefix)])

    def close(self) -> None:
        pass

    def _die_if_told(self) -> None:
        if self.is_dead:
            raise ConnectionError("gone")


def output(value: float, rows: int = 4) -> torch.Tensor:
    return torch.full((rows, 3), float(value))


def joined(max_embeds: int = 8, **store: object) -> SharedEncoderOutputs:
    manager = SharedEncoderCacheManager(SharedEncoderCacheConfig(max_embeds=max_embeds), clock=lambda: 0.0)
    return SharedEncoderOutputs(manager, EncoderOutputStore(**store))


def encode(outputs: SharedEncoderOutputs, key: EncoderKey, value: float, request: str = "r") -> None:
    lease = outputs.reserve(key, request, 0, 4)
    assert lease.outcome is Outcome.RESERVED
    outputs.commit(lease, output(value))
    outputs.manager.release_request(request)


# --- the store


def test_a_view_does_not_keep_its_base() -> None:
    base = torch.zeros(1000, 3)
    store, seen = EncoderOutputStore(), weakref.ref(base.untyped_storage())
    kept = store.put(CAT, base[:4], 4)
    del base
    gc.collect()
    assert seen() is None
    assert kept.num_bytes == store.num_bytes == 4 * 3 * 4
    store.assert_invariants()


def test_what_the_encoder_writes_next_into_its_buffer_is_not_seen() -> None:
    store, buffer = EncoderOutputStore(), output(1.0)
    store.put(CAT, buffer, 4)
    buffer.zero_()
    assert torch.equal(store.get(CAT), output(1.0))


def test_several_levels_of_features_are_one_output() -> None:
    store = EncoderOutputStore(host_bytes=1000)
    store.put(CAT, (output(1.0), {"deep": [output(2.0, 2)]}), 4)
    store.drop(CAT)
    assert store.load(CAT, 4) is not None
    value = store.get(CAT)
    assert torch.equal(value[1]["deep"][0], output(2.0, 2))
    assert store.num_bytes == 6 * 3 * 4


def test_numpy_is_refused() -> None:
    with pytest.raises(WrongTypeError, match="numpy"):
        EncoderOutputStore().put(CAT, np.zeros(3), 3)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(StateError, match="must be on the device"):
        EncoderOutputStore().get(CAT)


def test_the_host_tier_takes_what_leaves_the_device_within_its_budget() -> None:
    store = EncoderOutputStore(host_bytes=2 * 48)
    for number in range(4):
        store.put(EncoderKey(content=str(number)), output(number), 4)
    for number in range(4):
        store.drop(EncoderKey(content=str(number)))
        store.assert_invariants()
    assert store.num_bytes == 0
    assert store.stats()["host_bytes"] == 96
    found = [store.load(EncoderKey(content=str(number)), 4) for number in range(4)]
    assert [output is not None for output in found] == [False, False, True, True]
    assert torch.equal(store.get(EncoderKey(content="3")), output(3))


def test_an_output_of_another_size_is_no_hit() -> None:
    store = EncoderOutputStore(host_bytes=1000)
    store.put(CAT, output(1.0), 4)
    store.drop(CAT)
    assert store.load(CAT, 5) is None
    assert store.stats()["mismatched"] == 1
    assert CAT not in store


@pytest.mark.parametrize("part", [{"weights_epoch": 1}, {"adapter": "x"}, {"tenant": "acme"}])
def test_every_part_of_the_key_counts_in_every_tier(part: dict[str, object]) -> None:
    store = EncoderOutputStore(host_bytes=1000, outer=DictTier(), weights="w")
    store.put(CAT, output(1.0), 4)
    store.drop(CAT)
    assert store.load(EncoderKey(content="cat", **part), 4) is None
    assert store.load(CAT, 4) is not None


@pytest.mark.parametrize("kind", ["disk", "redis"])
def test_another_process_finds_it_under_the_same_weights_only(kind: str, tmp_path, request) -> None:
    if kind == "disk":
        tier: Tier = DiskTier(tmp_path, max_bytes=1 << 20)
    else:
        tier = RedisTier(request.getfixturevalue("redis_url"), namespace="outputs", timeout_s=5.0)
    EncoderOutputStore(outer=tier, weights="v1").put(CAT, output(1.0).bfloat16(), 4)
    other = EncoderOutputStore(outer=tier, weights="v1")
    assert other.load(CAT, 4) is not None
    assert torch.equal(other.get(CAT), output(1.0).bfloat16())
    other.clear(weights="v2")
    assert other.load(CAT, 4) is None
    tier.close()


def test_an_outer_tier_needs_the_name_of_the_weights() -> None:
    with pytest.raises(ConfigError, match="weights"):
        EncoderOutputStore(outer=DictTier())
    with pytest.raises(ConfigError, match="host_bytes"):
        EncoderOutputStore(host_bytes=-1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_leaves_a_gpu_is_pinned_and_comes_back() -> None:
    store = EncoderOutputStore("cuda", host_bytes=1 << 20)
    truth = torch.randn(64, 1024)
    store.put(CAT, truth, 64)
    assert store.get(CAT).is_cuda
    store.drop(CAT)
    assert store.num_bytes == 0
    store.load(CAT, 64)
    assert torch.equal(store.get(CAT).cpu(), truth)
    store.assert_invariants()


# --- tiers that fail


def test_a_tier_that_dies_in_the_middle_of_a_load_is_a_counted_miss_and_the_item_is_encoded() -> None:
    near, far = DictTier(), DictTier()
    outputs = joined(outer=TieredStore([near, far]), weights="w")
    encode(outputs, CAT, 1.0)
    outputs.manager.trim()
    near.breaks_off = far.is_dead = True
    lease = outputs.reserve(CAT, "again", 0, 4)
    assert lease.outcome is Outcome.RESERVED
    assert (near.counts["failed_read"], far.counts["failed_read"]) == (1, 1)
    assert outputs.store.stats()["load_misses"] == 2  # the first encode asked, too
    outputs.commit(lease, output(1.0))
    assert torch.equal(outputs.get(CAT), output(1.0))
    outputs.assert_invariants()


def test_a_tier_that_comes_back_with_half_a_value_is_a_counted_miss() -> None:
    tier = DictTier()
    outputs = joined(outer=tier, weights="w")
    encode(outputs, CAT, 1.0)
    outputs.manager.trim()
    tier.values = {key: data[: len(data) // 2] for key, data in tier.values.items()}
    assert outputs.reserve(CAT, "again", 0, 4).outcome is Outcome.RESERVED
    assert tier.counts["corrupt"] == 1
    assert not tier.values


def test_a_load_that_is_interrupted_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = joined()
    monkeypatch.setattr(outputs.store, "load", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        outputs.reserve(CAT, "r", 0, 4)
    assert outputs.manager.stats()["embeds"] == 0
    assert not outputs.manager.held_positions("r")
    outputs.assert_invariants()


# --- with the manager


def test_what_the_manager_evicts_leaves_the_device_and_comes_back_from_the_host() -> None:
    outputs = joined(max_embeds=4, host_bytes=1000)
    encode(outputs, CAT, 1.0)
    encode(outputs, DOG, 2.0)
    assert outputs.store.on_device == {DOG}
    lease = outputs.reserve(CAT, "again", 0, 4)
    assert lease.outcome is Outcome.HIT
    assert torch.equal(outputs.get(CAT), output(1.0))
    assert outputs.store.on_device == {CAT}
    outputs.assert_invariants()


def test_an_item_evicted_and_encoded_again_before_anybody_looked_stays() -> None:
    outputs = joined(max_embeds=4)
    encode(outputs, CAT, 1.0)
    encode(outputs, DOG, 2.0)
    encode(outputs, CAT, 1.0)
    assert torch.equal(outputs.get(CAT), output(1.0))
    outputs.assert_invariants()


def test_a_stale_lease_stores_nothing() -> None:
    outputs = joined()
    lease = outputs.reserve(CAT, "r", 0, 4)
    outputs.manager.release_request("r")
    with pytest.raises(StateError, match="commit"):
        outputs.commit(lease, output(1.0))
    assert outputs.store.num_bytes == 0
    fresh = outputs.reserve(CAT, "r", 0, 4)
    outputs.commit(fresh, output(2.0))
    with pytest.raises(StateError, match="commit"):
        outputs.commit(lease, output(1.0))
    assert torch.equal(outputs.get(CAT), output(2.0))


def test_an_output_that_cannot_be_kept_leaves_the_lease_open() -> None:
    outputs = joined()
    lease = outputs.reserve(CAT, "r", 0, 4)
    with pytest.raises(WrongTypeError):
        outputs.commit(lease, object())
    assert outputs.abort(lease) == []
    outputs.assert_invariants()


def test_clearing_the_manager_frees_device_and_host() -> None:
    outputs = joined(max_embeds=4, host_bytes=1000)
    encode(outputs, CAT, 1.0)
    encode(outputs, DOG, 2.0)
    outputs.manager.clear()
    outputs.follow()
    stats = outputs.store.stats()
    assert (stats["device_bytes"], stats["host_bytes"]) == (0, 0)
    assert outputs.reserve(CAT, "r", 0, 4).outcome is Outcome.RESERVED


def test_events_that_were_not_told_are_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_table, "_MAX_PENDING_EVENTS", 2)
    outputs = joined(max_embeds=64)
    for number in range(5):
        encode(outputs, EncoderKey(content=str(number)), number)
    outputs.manager.trim()
    assert outputs.manager.stats()["events_dropped"] > 0
    outputs.follow()
    assert outputs.store.num_bytes == 0


def test_only_empty_ones_are_joined() -> None:
    store = EncoderOutputStore()
    store.put(CAT, output(1.0), 4)
    manager = SharedEncoderCacheManager(SharedEncoderCacheConfig(max_embeds=8))
    with pytest.raises(StateError, match="empty"):
        SharedEncoderOutputs(manager, store)
