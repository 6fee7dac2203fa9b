"""The tensors behind the encoder cache."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from omnireuse.errors import ConfigError, StateError, WrongTypeError
from omnireuse.stores.disk import DiskTier
from omnireuse.stores.redis import RedisTier
from omnireuse.stores.tier import Tier, TieredStore
from omnireuse_engines.vllm import EncoderKey, new_weights_epoch
from omnireuse_engines.vllm.outputs import EncoderOutputStore
from omnireuse_engines.vllm.write_behind import WriteBehind

CAT = EncoderKey(content="cat")


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
    other.reset("v2")
    assert other.load(CAT, 4) is None
    tier.close()


@pytest.mark.parametrize("kind", ["disk", "redis"])
@pytest.mark.parametrize("weights", ["", "step 17"])
def test_after_a_reset_nothing_of_before_is_found_in_any_tier_however_late_it_is_written(
    kind: str, weights: str, tmp_path, request
) -> None:
    class Slow(DiskTier if kind == "disk" else RedisTier):
        gate = threading.Event()

        def put(self, *args: object, **kwargs: object) -> bool:
            assert self.gate.wait(30)
            return super().put(*args, **kwargs)

    if kind == "disk":
        tier = Slow(tmp_path, max_bytes=1 << 20)
    else:
        tier = Slow(request.getfixturevalue("redis_url"), namespace="reset", timeout_s=5.0)
    writer = WriteBehind(tier)
    store = EncoderOutputStore(host_bytes=1000, outer=writer, weights="v1")
    store.put(EncoderKey("dog"), output(5.0), 4)
    store.drop(EncoderKey("dog"))  # in host memory, and waits to be written
    store.put(CAT, output(1.0), 4)
    store.reset(weights)
    assert store.stats()["device_entries"] == store.stats()["host_entries"] == 0
    tier.gate.set()
    writer.close()
    assert tier.counts["writes"] == 2
    assert store.load(CAT, 4) is store.load(EncoderKey("dog"), 4) is None
    after = EncoderOutputStore(outer=tier, weights=weights or "another")  # a replica that was told the same
    EncoderOutputStore(outer=tier, weights="v1").put(CAT, output(7.0), 4)  # one that was not told yet
    assert after.load(CAT, 4) is store.load(CAT, 4) is None
    other = EncoderOutputStore(outer=tier, weights="v1")
    other.reset(weights)
    other.put(CAT, output(2.0), 4)
    assert (store.load(CAT, 4) is not None) == (weights != "")
    store.assert_invariants()


def test_a_reset_to_the_same_weights_is_refused() -> None:
    store = EncoderOutputStore(outer=DictTier(), weights="v1")
    with pytest.raises(ConfigError, match="must not be the name of the weights before"):
        store.reset("v1")
    store.reset("v2")
    store.reset("v1")  # back to what is kept under that name


def test_a_new_epoch_is_nobody_elses_and_that_of_a_digest_is_everybodys() -> None:
    assert new_weights_epoch("a" * 64) == new_weights_epoch("a" * 64) != new_weights_epoch("b" * 64)
    assert new_weights_epoch() != new_weights_epoch()


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


@pytest.mark.parametrize("how", ["dead", "breaks off", "half a value"])
def test_a_tier_that_fails_is_a_counted_miss(how: str) -> None:
    near, far = DictTier(), DictTier()
    store = EncoderOutputStore(outer=TieredStore([near, far]), weights="w")
    store.put(CAT, output(1.0), 4)
    store.drop(CAT)
    for tier in (near, far):
        tier.is_dead, tier.breaks_off = how == "dead", how == "breaks off"
        if how == "half a value":
            tier.values = {key: data[: len(data) // 2] for key, data in tier.values.items()}
    assert store.load(CAT, 4) is None
    assert store.stats()["load_misses"] == 1
    assert near.counts["corrupt" if how == "half a value" else "failed_read"] == 1
    store.assert_invariants()


def test_numpy_is_refused() -> None:
    with pytest.raises(WrongTypeError, match="numpy"):
        EncoderOutputStore().put(CAT, np.zeros(3), 3)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(StateError, match="must be on the device"):
        EncoderOutputStore().get(CAT)
