"""The two halves of vLLM's connector without vLLM: what they promise each other, through aborts, faults and delays."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from omnireuse.errors import ConfigError
from omnireuse.stores.tier import CircuitBreaker, Tier, TieredStore
from omnireuse_engines.vllm import new_weights_epoch
from omnireuse_engines.vllm.options import ConnectorOptions
from omnireuse_engines.vllm.outputs import EncoderOutput, EncoderOutputStore
from omnireuse_engines.vllm.planner import SchedulerHalf
from omnireuse_engines.vllm.plans import Item, StepPlan, StepReport
from omnireuse_engines.vllm.worker import WorkerHalf

CPU = torch.device("cpu")


class FlakyTier(Tier):
    """A dict that fails, forgets and damages values at random, or takes its time."""

    name = "flaky"

    def __init__(self, rng: random.Random, values: dict[str, bytes], fault: float = 0.0) -> None:
        super().__init__(namespace="test", breaker=CircuitBreaker(max_failures=10**9))
        self.rng, self.values, self.fault, self.seconds = rng, values, fault, 0.0

    def _read(self, full: str) -> bytes | None:
        time.sleep(self.seconds)
        self._fail()
        data = self.values.get(full)
        return data[:-7] if data and self.rng.random() < self.fault else data

    def _write(self, full: str, data: bytes) -> bool:
        self._fail()
        self.values[full] = data
        return True

    def _delete(self, full: str) -> None:
        self.values.pop(full, None)

    def _keys(self, prefix: str) -> Iterator[str]:
        return iter(())

    def _fail(self) -> None:
        if self.rng.random() < self.fault:
            raise ConnectionError("gone")


def request(name: str, *items: tuple[str, int], data: object = "media") -> SimpleNamespace:
    features = [
        SimpleNamespace(identifier=each, mm_position=SimpleNamespace(offset=0, length=size), data=data)
        for each, size in items
    ]
    return SimpleNamespace(request_id=name, mm_features=features, get_num_encoder_embeds=lambda index: items[index][1])


def expected(identifier: str, size: int, weights: int = 0) -> torch.Tensor:
    return torch.full((size, 4), float(int(identifier) + 100 * weights))


def step(encodes: dict[str, list[int]] | None = None, freed: tuple[str, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(
        scheduled_encoder_inputs=encodes or {}, free_encoder_mm_hashes=list(freed), total_num_scheduled_tokens=1
    )


def planner(tier: Tier | None = None, **options: object) -> SchedulerHalf:
    clock, consumes = options.pop("clock", time.monotonic), options.pop("consumes", True)
    return SchedulerHalf(
        ConnectorOptions(**options), None if tier is None else TieredStore([tier]), "w", produces=True,
        consumes=consumes, can_encode=lambda feature: feature.data is not None, clock=clock,
    )  # fmt: skip


def wait_for(half: SchedulerHalf, asked: SimpleNamespace) -> None:
    deadline = time.monotonic() + 30
    while not half.is_available(asked, 0):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 250), marks=pytest.mark.slow)], ids=len)
def test_random_schedules_of_aborts_faults_new_weights_and_late_reports_leave_nothing_behind(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 schedules: every output that reaches a device is right, and nothing is under way at the end."""
    put = EncoderOutputStore.put
    faults = random.Random(0)

    def fails_at_times(self: EncoderOutputStore, *args: object, **kwargs: object) -> EncoderOutput:
        if kwargs.get("outer", True) and faults.random() < 0.05:
            raise MemoryError("no more pinned memory")
        return put(self, *args, **kwargs)

    monkeypatch.setattr(EncoderOutputStore, "put", fails_at_times)
    values: dict[str, bytes] = {}
    num_loads, weights = 0, 0  # the weights go on over schedules: each finds the outer tier that the last one left
    for seed in seeds:
        rng = random.Random(seed)
        digest = f"{weights:032x}"
        tier = FlakyTier(rng, values, fault=0.1)
        half = planner(tier, host_bytes=rng.choice([0, 400, 2000]), fetch_seconds=30.0, weights=digest)
        workers = [WorkerHalf(TieredStore([tier]), "w"), WorkerHalf(None, "w")]
        caches: list[dict[str, torch.Tensor]] = [{}, {}]
        late: deque[StepReport] = deque()
        alive: dict[str, SimpleNamespace] = {}
        for number in range(30):
            if rng.random() < 0.6:
                items = [(str(rng.randrange(20)), rng.choice([4, 6])) for _ in range(rng.randint(1, 3))]
                alive[f"r{number}"] = request(f"r{number}", *dict(items).items())
            if rng.random() < 0.1:  # an update in place, of which vLLM's runner and the scheduler's half are told
                weights += 1
                half.reset(rng.choice(["", f"{weights:032x}"]))
                for cache in caches:
                    cache.clear()
            for name in [name for name in alive if rng.random() < 0.1]:
                half.finished(alive.pop(name))  # aborted, perhaps while its outputs are read or saved
            encodes: dict[str, list[int]] = {}
            freed = tuple(each for each in caches[0] if rng.random() < 0.3)
            on_device = dict(caches[0])
            for each in freed:
                del on_device[each]
            for name, asked in alive.items():
                if not half.is_available(asked, 0):
                    continue
                for index, feature in enumerate(asked.mm_features):
                    if feature.identifier in on_device:
                        continue
                    if not half.has(feature.identifier):
                        encodes.setdefault(name, []).append(index)
                    half.allocated(asked, index)
                    size = asked.get_num_encoder_embeds(index)
                    on_device[feature.identifier] = expected(feature.identifier, size, weights)
            for name in [name for name in encodes if rng.random() < 0.1]:
                for index in encodes.pop(name):  # preempted in the same pass: never encoded
                    on_device.pop(alive[name].mm_features[index].identifier)
            plan = half.plan(step(encodes, freed))
            reports = []
            for worker, cache in zip(workers, caches, strict=True):
                for each in freed:
                    del cache[each]
                worker.begin(plan, cache, CPU)
                for name, indices in encodes.items():
                    for index in indices:
                        identifier = alive[name].mm_features[index].identifier
                        cache[identifier] = expected(identifier, alive[name].get_num_encoder_embeds(index), weights)
                        worker.save(identifier, cache[identifier])
                reports.append(worker.report())
                for identifier, output in on_device.items():
                    assert torch.equal(cache[identifier], output)
            num_loads += len(plan.loads)
            told = [each for each in reports if each is not None]
            late.append(told[0].aggregate(told[1]) if len(told) == 2 else told[0] if told else StepReport())
            while len(late) > rng.randint(0, 1):  # asynchronous scheduling plans ahead of the report
                half.reported(late.popleft())
        for report in late:
            half.reported(report)
        for asked in alive.values():
            half.finished(asked)
        stats = half.stats()
        assert stats["saving"] == stats["fetching"] == 0
        assert "reports_unknown" not in stats
        assert stats["host_bytes"] <= 2000
        for worker in workers:
            worker.close()
        half.close()
    assert num_loads > 0


def test_a_producer_encodes_what_is_nowhere_and_writes_again_what_is_on_the_device_alone() -> None:
    values: dict[str, bytes] = {}
    tier = FlakyTier(random.Random(0), values, fault=0.0)
    half, worker = planner(tier, consumes=False), WorkerHalf(TieredStore([tier]), "w")
    first, cache = request("a", ("7", 4)), {}
    wait_for(half, first)
    assert not half.has("7")
    half.allocated(first, 0)
    worker.begin(half.plan(step({"a": [0]})), cache, CPU)
    cache["7"] = expected("7", 4)
    worker.save("7", cache["7"])
    half.finished(first)
    written = wait_for_values(values)
    for lost in (False, True):
        if lost:
            values.clear()
        again = request(f"again {lost}", ("7", 4))
        wait_for(half, again)
        assert half.has("7") is not lost
        assert half.is_available(again, 0)  # asked twice in a pass, and planned once
        plan = half.plan(step())
        assert plan.encodes.keys() == ({"7"} if lost else set())
        worker.begin(plan, cache, CPU)
        worker.rewrite(cache)
        half.finished(again)
    assert wait_for_values(values) == written
    assert half.is_available(request("running", ("7", 4)), 1)  # its own output, which may still wait to be written
    assert half.plan(step()).encodes == {}
    half.close()
    worker.close()


def wait_for_values(values: dict[str, bytes]) -> dict[str, bytes]:
    deadline = time.monotonic() + 30
    while not values:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return dict(values)


def test_a_late_read_is_given_up_and_the_tiers_are_left_alone_for_a_while() -> None:
    now = [0.0]
    tier = FlakyTier(random.Random(0), {})
    tier.seconds = 0.2
    half = planner(tier, clock=lambda: now[0], fetch_seconds=1.0)
    for number in range(3):
        asked = request(f"r{number}", (str(number), 4))
        assert not half.is_available(asked, 0)
        now[0] += 1.0
        assert half.is_available(asked, 0)
        assert not half.has(str(number))
    assert half.counts == {"fetches": 3, "fetches_late": 3}
    assert half.is_available(request("next", ("9", 4)), 0)  # not asked: the circuit is open
    assert half.counts["fetches"] == 3
    half.close()


@pytest.mark.parametrize("digest", ["", "b" * 64])
def test_after_a_reset_host_memory_and_outer_tiers_have_nothing_and_late_reports_change_nothing(digest: str) -> None:
    values: dict[str, bytes] = {}
    tier = FlakyTier(random.Random(0), values)
    half, worker = planner(tier, weights="a" * 64), WorkerHalf(TieredStore([tier]), "w")
    wait_for(half, asked := request("a", ("7", 4)))
    half.allocated(asked, 0)
    worker.begin(half.plan(step({"a": [0]})), {}, CPU)
    worker.save("7", expected("7", 4))
    report = worker.report()
    half.reset(digest)
    half.reported(report)
    wait_for_values(values)  # written after the reset, or before
    wait_for(half, asked)
    assert not half.has("7")
    half.allocated(asked, 0)
    plan = half.plan(step({"a": [0]}))
    assert plan.loads == plan.values == {}
    assert plan.drops == [Item.of("7", 4, new_weights_epoch("a" * 64)).key]
    assert half.stats()["host_bytes"] == 0
    half.reset("c" * 64)
    half.reset(digest)
    deadline = time.monotonic() + 30
    while half.is_available(bare := request("bare", ("7", 4), data=None), 0) or not half.take_unavailable():
        assert time.monotonic() < deadline  # the device has it no more, and there is no media to encode
    half.finished(bare)
    half.is_available(asked, 0)
    half.allocated(asked, 0)
    plan = half.plan(step({"a": [0]}))
    worker.begin(plan, {}, CPU)
    worker.save("7", expected("7", 4, 1))
    half.reported(worker.report())
    half.is_available(asked, 0)
    assert half.has("7")  # that of the new weights
    assert half.counts["resets"] == 3
    assert "reports_unknown" not in half.stats()
    with pytest.raises(ConfigError, match=r"must (be a digest|not be the digest of the weights before)"):
        half.reset(digest or "step 17")
    half.finished(asked)
    half.close()
    worker.close()


def test_what_is_nowhere_and_cannot_be_encoded_fails_that_request_alone() -> None:
    values: dict[str, bytes] = {}
    tier = FlakyTier(random.Random(0), values)
    half = planner(tier)
    asked = request("bare", ("1", 4), data=None)
    deadline = time.monotonic() + 30
    while not (lost := half.take_unavailable()):
        assert time.monotonic() < deadline
        assert not half.is_available(asked, 0)
    assert lost == {"bare"}
    assert half.take_unavailable() == set()
    wait_for(half, request("whole", ("1", 4)))
    half.close()


def test_two_workers_keep_what_both_have_kept() -> None:
    cat, dog = Item.of("cat", 4).key, Item.of("dog", 4).key
    joined = StepReport({cat: 64, dog: 64}).aggregate(StepReport({cat: 64}, {dog}))
    assert joined == StepReport({cat: 64}, {dog})


def test_a_step_without_tokens_keeps_its_drops_for_the_next() -> None:
    """vLLM's first model runner does not hand the plan of such a step to the connector."""
    half, worker = planner(host_bytes=64), WorkerHalf(None, "")
    plans: list[StepPlan] = []
    for number in range(2):
        asked = request(f"r{number}", (str(number), 4))
        half.is_available(asked, 0)
        half.allocated(asked, 0)
        plans.append(half.plan(step({f"r{number}": [0]})))
        worker.begin(plans[-1], {}, CPU)
        worker.save(str(number), expected(str(number), 4))
        half.reported(worker.report())
    empty = SimpleNamespace(scheduled_encoder_inputs={}, free_encoder_mm_hashes=[], total_num_scheduled_tokens=0)
    assert half.plan(empty) == StepPlan()
    assert [plan.drops for plan in [*plans, half.plan(step())]].count([Item.of("0", 4).key]) == 1


@pytest.mark.parametrize("weights", ["", "w", "sha256 of the checkpoint", "0" * 31, "g" * 64, 7])
def test_a_name_that_two_models_may_share_is_no_name_of_weights(weights: object) -> None:
    with pytest.raises(ConfigError, match=r"weights=.*digest .* in hexadecimal.*sha256sum computes one"):
        ConnectorOptions(redis="redis://x", weights=weights)
    ConnectorOptions(redis="redis://x", weights="0123456789abcdef" * 4)
    ConnectorOptions(weights="")


def test_an_output_larger_than_the_host_tier_is_not_kept() -> None:
    half, worker = planner(host_bytes=100), WorkerHalf(None, "")
    for number, size in enumerate((4, 8)):  # 64 and 128 bytes
        asked = request(f"r{number}", (str(number), size))
        half.is_available(asked, 0)
        half.allocated(asked, 0)
        plan = half.plan(step({f"r{number}": [0]}))
        worker.begin(plan, {}, CPU)
        worker.save(str(number), expected(str(number), size))
        report = worker.report()
        if report is not None:
            half.reported(report)
    assert plan.keeps == set()
    assert half.counts["no_room"] == 1
    assert half.stats()["host_bytes"] == 64
