"""What vLLM's own tests (`tests/v1` of 0.33.0) ask of an encoder-cache connector, asked of ours."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm.version", reason="needs vllm; scripts/vllm_venv.sh builds a venv that has it")

import torch
from vllm.distributed.ec_transfer import ec_transfer_state
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.platforms import current_platform
from vllm.v1.outputs import ECConnectorOutput
from vllm.v1.request import Request, RequestStatus

from engines.tests.hosts.vllm.engine import Engine, ec, encode
from engines.tests.hosts.vllm.host import make_config, make_request
from omnireuse.stores.disk import DiskTier

pytestmark = pytest.mark.integration

OURS, EXAMPLE = "EncoderOutputConnector", "ECExampleConnector"
THREE = {"a": encode("a", 4), "b": encode("b", 6), "c": encode("c", 8)}


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(type(current_platform), "device_type", "cpu")
    yield
    ec_transfer_state._EC_CONNECTOR_AGENT = None


def disk(folder: Path) -> dict[str, object]:
    return {"disk": str(folder), "disk_bytes": 1 << 24, "weights": "0" * 64, "fetch_seconds": 30.0}


def connect(
    side: str, role: str, folder: Path, name: str = OURS, *, rank: int = 0, device: str = "cpu", **extra: object
) -> ECConnectorBase:
    if name == EXAMPLE:
        extra = {"shared_storage_path": str(folder)}
    config = make_config(ec=ec(role, **extra or disk(folder)))
    config.ec_transfer_config.ec_connector = name
    config.parallel_config.rank, config.device_config.device_type = rank, device
    return ECConnectorFactory.create_connector(config, ECConnectorRole[side])


def ask(name: str, *items: tuple[str, int], has_media: bool = True) -> Request:
    return make_request(name, list(items), random.Random(0), 0, has_media=has_media)


def available(scheduler: ECConnectorBase, request: Request, computed: int = 0) -> None:
    deadline = time.monotonic() + 60
    while not scheduler.ensure_cache_available(request, computed):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def plan(
    scheduler: ECConnectorBase,
    request: Request | None = None,
    allocate: tuple[int, ...] = (),
    encodes: tuple[int, ...] = (),
) -> object:
    """One pass of the scheduler: inputs get room, and some of them are to be encoded."""
    for index in (*allocate, *encodes):
        scheduler.update_state_after_alloc(request, index)
    scheduled = {request.request_id: list(encodes)} if request and encodes else {}
    return scheduler.build_connector_meta(
        SimpleNamespace(scheduled_encoder_inputs=scheduled, free_encoder_mm_hashes=[], total_num_scheduled_tokens=1)
    )


def work(
    worker: ECConnectorBase,
    plan: object,
    encoded: dict[str, torch.Tensor],
    cache: dict[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """A worker's part of the step; returns its encoder cache."""
    cache = {} if cache is None else cache
    worker.bind_connector_metadata(plan)
    if worker.is_producer:
        worker.start_save_caches(encoder_cache=cache)
    if worker.is_consumer:
        worker.start_load_caches(cache)
    for identifier, output in encoded.items():
        cache[identifier] = output
        worker.save_caches(cache, identifier)
    return cache


def tell(scheduler: ECConnectorBase, *workers: ECConnectorBase) -> None:
    """What the workers did reaches the scheduler, joined as vLLM joins it."""
    reports = [each for each in (worker.build_connector_worker_meta() for worker in workers) if each is not None]
    if reports:
        joined = reports[0]
        for other in reports[1:]:
            joined = joined.aggregate(other)
        scheduler.update_connector_output(ECConnectorOutput(ec_connector_worker_meta=joined))


def store(folder: Path, outputs: dict[str, torch.Tensor], name: str = OURS) -> None:
    """Have a producer encode them."""
    scheduler, worker = (connect(side, "ec_producer", folder, name) for side in ("SCHEDULER", "WORKER"))
    request = ask("stored", *((identifier, output.shape[0]) for identifier, output in outputs.items()))
    work(worker, plan(scheduler, request, encodes=tuple(range(len(outputs)))), outputs)
    for half in (worker, scheduler):
        half.shutdown()


# -- one connector ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["ec_producer", "ec_consumer", "ec_both"])
@pytest.mark.parametrize("name", [OURS, EXAMPLE])
def test_each_side_has_its_role_and_refuses_the_others_calls(tmp_path: Path, name: str, role: str) -> None:
    scheduler, worker = (connect(side, role, tmp_path, name) for side in ("SCHEDULER", "WORKER"))
    for half in (scheduler, worker):
        assert (half.is_producer, half.is_consumer) == (role != "ec_consumer", role != "ec_producer")
    assert (scheduler.role, worker.role) == (ECConnectorRole.SCHEDULER, ECConnectorRole.WORKER)
    if name == OURS:
        with pytest.raises(AssertionError, match="a worker's call in the scheduler"):
            scheduler.build_connector_worker_meta()
        with pytest.raises(AssertionError, match="a scheduler's call in a worker"):
            worker.has_cache_item("a")


@pytest.mark.parametrize("name", [OURS, EXAMPLE])
def test_a_plan_carries_what_was_allocated_once(tmp_path: Path, name: str) -> None:
    store(tmp_path, THREE, name)
    scheduler, worker = (connect(side, "ec_consumer", tmp_path, name) for side in ("SCHEDULER", "WORKER"))
    assert work(worker, plan(scheduler), {}) == {}  # nothing was asked for
    request, again = ask("r", ("a", 4), ("b", 6), ("c", 8), ("none", 4)), ask("s", ("a", 4))
    available(scheduler, request)
    available(scheduler, again)
    scheduler.update_state_after_alloc(again, 0)
    loaded = work(worker, plan(scheduler, request, allocate=(0, 2, 3)), {})
    assert loaded.keys() == {"a", "c"}  # neither b, which got no room, nor what is not there; a once for two requests
    assert all(torch.equal(loaded[each], THREE[each]) for each in loaded)
    assert work(worker, plan(scheduler), {}) == {}  # the first plan took it all
    for half in (worker, scheduler):
        half.shutdown()


def test_loads_go_to_the_current_device(tmp_path: Path) -> None:
    store(tmp_path, THREE)
    scheduler, worker = (
        connect("SCHEDULER", "ec_consumer", tmp_path),
        connect("WORKER", "ec_consumer", tmp_path, device="meta"),
    )
    request = ask("r", ("a", 4))
    available(scheduler, request)
    assert work(worker, plan(scheduler, request, allocate=(0,)), {})["a"].device == torch.device("meta")
    for half in (worker, scheduler):
        half.shutdown()


@pytest.mark.parametrize("name", [OURS, EXAMPLE])
def test_a_producer_names_its_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every place of an item that a request repeats, and what it takes to skip the media; a consumer names nothing."""
    monkeypatch.setattr(PlaceholderMetadataResolver, "fields_for", lambda self, modality: {"audio_num_tokens"})
    place = PlaceholderRange(offset=0, length=4, is_embed=torch.tensor([False, True, True, False]))
    request = ask("r", ("a", 4), ("b", 6), ("a", 4))
    request.mm_features.append(MultiModalFeatureSpec(data=None, modality="audio", identifier="s", mm_position=place))
    is_delayed, items = connect("SCHEDULER", "ec_producer", tmp_path, name).request_finished(request)
    assert is_delayed is False
    assert {key: item["item_indices"] for key, item in items.items()} == {"a": [0, 2], "b": [1], "s": [3]}
    assert items["s"]["metadata"] == {"audio_num_tokens": [2]}
    assert connect("SCHEDULER", "ec_producer", tmp_path, name).request_finished(ask("text")) == (False, None)
    assert connect("SCHEDULER", "ec_consumer", tmp_path, name).request_finished(request) == (False, None)
    if name == OURS:
        engine = Engine(monkeypatch, ec("ec_producer", **disk(tmp_path)))
        engine.serve([ask("r", ("a", 4), ("b", 6), ("a", 4))])
        assert engine.told["r"].keys() == {"a", "b"}
        engine.close()


# -- the host tier ---------------------------------------------------------------------------------------------------


def test_who_loads_and_who_saves(tmp_path: Path) -> None:
    """Only what the plan names, each output once, and one worker of several writes."""
    scheduler = connect("SCHEDULER", "ec_both", tmp_path)
    workers = [connect("WORKER", "ec_both", tmp_path, rank=rank) for rank in (0, 1)]
    request = ask("r", ("a", 4), ("b", 6))
    for _ in range(2):  # the second time it is there already
        asked = plan(scheduler, request, encodes=(0,))
        for worker in reversed(workers):
            work(worker, asked, {each: THREE[each] for each in "abc"})
        tell(scheduler, *workers)
    assert scheduler.stats()["host_entries"] == 1
    for worker in workers:
        worker.shutdown()
    assert len(list(tmp_path.rglob("*.orv"))) == 1
    producer = connect("SCHEDULER", "ec_producer", tmp_path)
    assert plan(producer, ask("s", ("d", 4)), encodes=(0,)).keeps == set()
    consumer = connect("SCHEDULER", "ec_consumer", tmp_path)
    assert plan(consumer, ask("s", ("d", 4)), encodes=(0,)).keeps == set()


def test_counts_are_told_once_and_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = Engine(monkeypatch, ec(**disk(tmp_path)), num_workers=2)
    connector = engine.scheduler.get_ec_connector()
    assert connector.get_ec_connector_stats() is None
    assert engine.connectors[0].get_ec_connector_stats() is None  # a worker's counts come with its reports
    available(connector, ask("r", ("a", 4)))
    first = connector.get_ec_connector_stats()
    assert first.reduce() == {"fetches": 1, "disk_misses": 1}
    assert connector.get_ec_connector_stats() is None  # told once
    engine.serve([ask("s", ("a", 4), ("b", 6))])
    other = type(connector).build_ec_connector_stats({"fetches": 2, "loads_host": 3})
    assert first.aggregate(other).reduce() == {"fetches": 3, "disk_misses": 1, "loads_host": 3}
    assert type(connector).build_ec_connector_stats().is_empty()
    other.reset()
    assert other.is_empty()
    engine.close()


# -- in vLLM's scheduler ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", [1, 2])
def test_local_before_connector_before_encoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: int) -> None:
    """An item that a request repeats is encoded or loaded once, and what is on the device is not asked for."""
    store(tmp_path, {each: encode(each, 6) for each in "bfc"})
    engine = Engine(monkeypatch, ec("ec_consumer", **disk(tmp_path)), runner=runner)
    rounds = {"abaf": ([0], {"b", "f"}), "cdea": ([1, 2], {"c"})}
    for items, (encoded, loaded) in rounds.items():
        engine.scheduler.add_request(ask(items, *((each, 6) for each in items)))
        encodes, loads = [], set()
        while engine.scheduler.has_unfinished_requests():
            engine.step()
            encodes += engine.plan.scheduled_encoder_inputs.get(items, [])
            loads |= engine.plan.ec_connector_metadata.values.keys()
        assert (encodes, loads) == (encoded, loaded)
    engine.close()
    many = Engine(monkeypatch, ec("ec_consumer", **disk(tmp_path)), runner=runner)
    ready = [ask(f"{each}{number}", (each, 6)) for number in range(3) for each in "abcd"]
    assert len(many.serve(ready)) == 12
    assert (many.num_encodes, many.stats["loads_outer"]) == (2, 2)
    many.close()


def test_a_load_waits_for_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second request waits for blocks, and an image for its part of vLLM's encoder cache, which holds 160."""
    outputs = {f"{number}": encode(f"{number}", 48) for number in range(4)}
    store(tmp_path, outputs)
    engine = Engine(monkeypatch, ec("ec_consumer", **disk(tmp_path)), num_blocks=20)
    wanted = [ask("r", ("0", 48), ("1", 48), ("2", 48), ("3", 48)), ask("s", ("3", 48), ("2", 48))]
    for request in wanted:
        engine.scheduler.add_request(request)
    seen = 0
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        seen = max(seen, sum(len(each) for each in engine.caches[0].values()))
        assert engine.plan.scheduled_encoder_inputs == {}
    assert seen == 144
    assert {request.status for request in wanted} == {RequestStatus.FINISHED_LENGTH_CAPPED}
    engine.close()


@pytest.mark.parametrize(("where", "host_bytes"), [("local", 0), ("host", 10_000), ("nowhere", 0)])
def test_a_preempted_request_comes_back_to_its_outputs(
    monkeypatch: pytest.MonkeyPatch, where: str, host_bytes: int
) -> None:
    size, num_blocks = (10, 9) if where == "local" else (48, 17)  # the larger images take the device's place too
    engine = Engine(monkeypatch, ec(host_bytes=host_bytes), scheduling="priority", num_blocks=num_blocks)
    low, high = ask("low", ("low", 48)), ask("high", *((f"high {number}", size) for number in range(3)))
    low.priority, high.priority, low.max_tokens, high.max_tokens = 1, 0, 60, 30
    engine.scheduler.add_request(low)
    while not low.num_output_tokens:
        engine.step()
    engine.scheduler.add_request(high)
    was_preempted = False
    while not high.is_finished():
        engine.step()
        was_preempted |= low.status is RequestStatus.PREEMPTED
    before, loads = engine.num_encodes, engine.stats.get("loads_host", 0)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert was_preempted
    gained = (engine.num_encodes - before, engine.stats.get("loads_host", 0) - loads)
    assert gained == {"local": (0, 0), "host": (0, 1), "nowhere": (1, 0)}[where]
    assert low.status is RequestStatus.FINISHED_LENGTH_CAPPED
    engine.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that answers only when it is let."""
    event, lookup = threading.Event(), DiskTier.lookup

    def wait(self: DiskTier, key: str, default: object, *, namespace: str) -> object:
        assert event.wait(60)
        return lookup(self, key, default, namespace=namespace)

    monkeypatch.setattr(DiskTier, "lookup", wait)
    yield event
    event.set()


def test_a_request_waits_for_a_read_and_others_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gate: threading.Event
) -> None:
    store(tmp_path, THREE)
    engine = Engine(monkeypatch, ec("ec_consumer", **disk(tmp_path)))
    waiting = ask("waiting", ("a", 4))
    engine.scheduler.add_request(waiting)
    engine.scheduler.add_request(ask("behind"))
    for _ in range(3):
        engine.step()
        assert engine.plan.num_scheduled_tokens.keys() == {"behind"}
        assert not engine.scheduler.encoder_cache_manager.cached
    gate.set()
    available(engine.scheduler.get_ec_connector(), waiting)
    engine.step()
    assert "waiting" in engine.plan.num_scheduled_tokens
    assert engine.plan.ec_connector_metadata.values.keys() == {"a"}
    assert engine.plan.scheduled_encoder_inputs == {}
    engine.close()


def test_only_what_is_still_to_come_is_read(tmp_path: Path, gate: threading.Event) -> None:
    """An item that ends where the computed tokens end is over; a request that runs waits for one that does not."""
    scheduler = connect("SCHEDULER", "ec_consumer", tmp_path)
    request = ask("r", ("past", 16), ("boundary", 16), ("future", 32))
    end = [feature.mm_position.offset + feature.mm_position.length for feature in request.mm_features]
    assert scheduler.ensure_cache_available(request, end[2])
    assert scheduler.stats()["fetching"] == 0
    assert not scheduler.ensure_cache_available(request, end[1])
    assert scheduler.stats()["fetching"] == 1
    gate.set()
    available(scheduler, request, end[1])
    assert not scheduler.has_cache_item("future")
