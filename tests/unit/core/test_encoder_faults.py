"""Random fault schedules over the shared encoder cache and its tensors: nothing leaked, nothing stale."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest
import torch

from omnireuse.core.encoder_outputs import EncoderOutputStore, SharedEncoderOutputs
from omnireuse.core.shared_encoder_cache import (
    EncoderKey,
    ItemTooLargeError,
    Lease,
    Outcome,
    SharedEncoderCacheConfig,
    SharedEncoderCacheManager,
)
from omnireuse.core.shared_encoder_cache.policies import POLICIES
from omnireuse.core.stores.tier import CircuitBreaker, Tier
from omnireuse.core.stores.tiered import TieredStore
from omnireuse.errors import StateError


class FaultyTier(Tier):
    """Keeps bytes; dead when told so, and otherwise now and then fails, or hands back a part or another's value."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(namespace="", breaker=CircuitBreaker(max_failures=2, pause_s=5.0, clock=lambda: self.now))
        self.rng, self.values, self.is_dead, self.now = rng, dict[str, bytes](), False, 0.0

    def _fault(self) -> None:
        if self.is_dead or self.rng.random() < 0.1:
            raise ConnectionResetError("gone")

    def _read(self, full: str) -> bytes | None:
        self._fault()
        data = self.values.get(full)
        if data is not None and self.rng.random() < 0.2:
            return self.rng.choice([data[: self.rng.randrange(len(data))], *self.values.values()])
        return data

    def _write(self, full: str, data: bytes) -> bool:
        self._fault()
        self.values[full] = data
        return True

    def _delete(self, full: str) -> None:
        self._fault()
        self.values.pop(full, None)

    def _keys(self, prefix: str) -> list[str]:  # type: ignore[override]  # never asked here
        raise NotImplementedError

    def close(self) -> None:
        pass


NUM_ITEMS = 4
POLICY_NAMES = sorted(POLICIES)  # once: it asks every installed package for entry points, which takes milliseconds


@cache
def truth(item: int, epoch: int) -> torch.Tensor:
    """What the encoder gives for an item of 1 to 4 embeddings with these weights."""
    return torch.full((1 + item % 4, 2), float(item + 100 * epoch))


class Schedule:
    """One cache and what happens to it. Every lease that is a hit is read back after every operation."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now, self.epoch = 0.0, 0
        config = SharedEncoderCacheConfig(
            max_embeds=rng.choice([4, 8, 12]), max_bytes=rng.choice([None, 64]), policy=rng.choice(POLICY_NAMES),
            ttl_seconds=rng.choice([None, 3.0]),
        )  # fmt: skip
        self.tiers = [FaultyTier(rng) for _ in range(rng.choice([0, 1, 2]))]
        store = EncoderOutputStore(
            host_bytes=rng.choice([0, 48, 256]), outer=TieredStore(self.tiers) if self.tiers else None, weights="w0"
        )
        self.manager = SharedEncoderCacheManager(config, clock=lambda: self.now)
        self.outputs = SharedEncoderOutputs(self.manager, store)
        self.to_encode: list[Lease] = []
        self.pinned: list[EncoderKey] = []
        operations: dict[Callable[[], None], int] = {
            self.show: 10, self.encode: 8, self.fail_to_encode: 1, self.commit_twice: 1, self.let_go: 3, self.finish: 4,
            self.finish_twice_and_resubmit: 1, self.jump: 2, self.toggle_tier: 1, self.trim: 3, self.resize: 1,
            self.pin: 1, self.change_weights: 1,
        }  # fmt: skip
        self.operations = [operation for operation, weight in operations.items() for _ in range(weight)]

    def run(self, num_operations: int) -> None:
        for _ in range(num_operations):
            self.rng.choice(self.operations)()
            self.check()
        self.end()

    # What may happen

    def show(self) -> None:
        item, request, position = self.rng.randrange(NUM_ITEMS), self.request(), self.rng.randrange(3)
        key, num_embeds = EncoderKey(content=str(item), weights_epoch=self.epoch), truth(item, 0).shape[0]
        shows_another = self.manager.held_positions(request).get(position, key) != key
        try:
            lease = self.outputs.reserve(key, request, position, num_embeds)
        except ItemTooLargeError:
            assert num_embeds > self.manager.config.max_embeds
        except StateError:
            assert shows_another or self.pinned
        else:
            if lease is not None and lease.outcome is Outcome.RESERVED and lease not in self.to_encode:
                self.to_encode.append(lease)

    def encode(self) -> None:
        if self.to_encode:
            self.commit(self.to_encode.pop(self.rng.randrange(len(self.to_encode))))

    def fail_to_encode(self) -> None:
        if self.to_encode:
            lost = self.outputs.abort(self.to_encode.pop())
            assert all(lease.outcome is Outcome.JOINED for lease in lost)

    def commit_twice(self) -> None:
        if self.to_encode:
            lease = self.to_encode.pop()
            self.commit(lease)
            wrong = torch.full(truth(int(lease.key.content), 0).shape, -1.0)
            with pytest.raises(StateError):
                self.outputs.commit(lease, wrong)
            with pytest.raises(StateError):
                self.outputs.abort(lease)

    def let_go(self) -> None:
        request, position = self.request(), self.rng.randrange(3)
        promoted = self.manager.release(request, position)
        self.settle(promoted=[promoted] if promoted else [])

    def finish(self) -> None:
        self.settle(promoted=self.manager.release_request(self.request()))

    def finish_twice_and_resubmit(self) -> None:
        request = self.request()
        stale = [lease for lease in self.to_encode if lease.request_id == request]
        self.settle(promoted=self.manager.release_request(request))
        assert self.manager.release_request(request) == []
        for lease in stale:
            with pytest.raises(StateError):
                self.outputs.commit(lease, torch.full((1, 2), -1.0))
        position = self.rng.randrange(3)
        item = self.rng.randrange(NUM_ITEMS)
        key, num_embeds = EncoderKey(content=str(item), weights_epoch=self.epoch), truth(item, 0).shape[0]
        if self.manager.can_fit(num_embeds):
            lease = self.outputs.reserve(key, request, position, num_embeds)
            assert lease is not None
            if lease.outcome is Outcome.RESERVED:
                self.to_encode.append(lease)

    def jump(self) -> None:
        self.now += self.rng.choice([-100.0, -1.0, 1.0, 4.0, 1000.0])
        for tier in self.tiers:
            tier.now = self.now
        if self.rng.random() < 0.5:
            self.manager.sweep()

    def toggle_tier(self) -> None:
        for tier in self.tiers:
            tier.is_dead = self.rng.random() < 0.3

    def trim(self) -> None:
        self.manager.trim(self.rng.choice([0, 4]))

    def resize(self) -> None:
        self.manager.resize(max_embeds=self.rng.choice([4, 8, 12]))

    def pin(self) -> None:
        keys = sorted(self.outputs.store.on_device, key=str)
        if self.pinned:
            self.manager.unpin(self.pinned.pop())
        elif keys and self.manager.is_ready(keys[0]):
            self.manager.pin(keys[0])
            self.pinned.append(keys[0])

    def change_weights(self) -> None:
        if self.rng.random() < 0.7:  # what is kept in lower tiers should be found there, too
            return
        self.epoch += 1
        self.manager.clear()
        self.outputs.store.clear(weights=f"w{self.epoch}")
        for lease in self.to_encode:
            with pytest.raises(StateError):
                self.outputs.commit(lease, truth(int(lease.key.content), self.epoch))
        self.to_encode.clear()
        self.pinned.clear()

    # What must hold

    def check(self) -> None:
        outputs, manager = self.outputs, self.manager
        outputs.assert_invariants()
        for key in outputs.store.on_device:
            assert manager.get_num_embeds(key) is not None
            assert torch.equal(outputs.get(key), truth(int(key.content), key.weights_epoch))
        stats = manager.stats()
        assert stats["bytes"] == outputs.store.num_bytes
        planned = {lease.key for lease in self.to_encode}
        assert len(planned) == len(self.to_encode), "two leases that have to encode one output"
        assert planned.isdisjoint(outputs.store.on_device)
        assert stats["entries"] == len(outputs.store.on_device) + len(planned), (
            "a planned output that nobody was told to encode, or the reverse"
        )
        for lease in self.to_encode:
            encoder = f"to be encoded by the first of {lease.request_id}[{lease.position}]"
            assert encoder in manager.explain(lease.key)

    def end(self) -> None:
        """Everybody leaves: nothing may be left."""
        while self.pinned:
            self.manager.unpin(self.pinned.pop())
        for number in range(4):
            self.settle(promoted=self.manager.release_request(f"r{number}"))
        self.manager.trim()
        self.outputs.assert_invariants()
        stats = self.manager.stats()
        assert (stats["entries"], stats["embeds"], stats["bytes"], self.outputs.store.num_bytes) == (0, 0, 0, 0)
        assert not self.outputs.store.on_device
        assert not any(self.manager.held_positions(f"r{number}") for number in range(4))
        assert not self.to_encode

    def request(self) -> str:
        return f"r{self.rng.randrange(4)}"

    def commit(self, lease: Lease) -> None:
        self.now += self.rng.random()
        value = truth(int(lease.key.content), lease.key.weights_epoch)
        self.outputs.commit(lease, value, encode_seconds=self.rng.random())

    def settle(self, promoted: list[Lease]) -> None:
        """Forget leases that were let go; take on those that fell to others."""
        held = self.manager.held_positions
        self.to_encode = [lease for lease in self.to_encode if held(lease.request_id).get(lease.position) == lease.key]
        self.to_encode += promoted


@pytest.mark.parametrize("num_schedules", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_fault_leaks_or_serves_what_is_stale(num_schedules: int) -> None:
    for seed in range(num_schedules):
        try:
            Schedule(seed).run(num_operations=25)
        except BaseException as error:
            raise AssertionError(f"schedule {seed}") from error
