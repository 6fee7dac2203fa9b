"""vLLM's own scheduler, model runner protocol and output aggregator around our connector; only the encoder is played.

Run it in a venv with vLLM: scripts/vllm_venv.sh.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm.version", reason="needs vllm; scripts/vllm_venv.sh builds a venv that has it")

from vllm.distributed.ec_transfer import ec_transfer_state
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.v1.request import Request, RequestStatus

from engines.tests.hosts.vllm.engine import ROW, Engine, ec
from engines.tests.hosts.vllm.host import make_config, make_request
from omnireuse.errors import ConfigError, UnknownNameError, UnsupportedModelError

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_agent() -> Iterator[None]:
    yield
    ec_transfer_state._EC_CONNECTOR_AGENT = None


def requests(
    seed: int, count: int = 60, *, share: float = 0.5, images: int = 8, repeats: float = 0.0, has_media: bool = True
) -> list[Request]:
    """A few images asked for again and again, between many that are seen once.

    Args:
        share: of what is asked for again.
        images: that are.
        repeats: share of requests with one image twice.
    """
    rng, made = random.Random(seed), []
    for number in range(count):
        items = []
        for part in range(rng.randint(1, 3)):
            hot = rng.random() < share
            items.append(
                (f"hot {rng.randrange(images)}", 24) if hot else (f"once {number}.{part}", rng.choice([16, 32, 48]))
            )
        if repeats and rng.random() < repeats:
            items.append(items[0])
        made.append(make_request(f"r{number}", items, rng, number, has_media=has_media))
    return made


NAMES = {f"r{number}" for number in range(60)}


@pytest.mark.parametrize(
    ("runner", "num_workers", "scheduling", "ours"),
    [
        (1, 1, "fcfs", True),
        (2, 2, "fcfs", False),
        (1, 2, "priority", True),
        (2, 1, "fcfs", True),
    ],
)
def test_what_left_the_device_comes_back_from_the_host(
    monkeypatch: pytest.MonkeyPatch, runner: int, num_workers: int, scheduling: str, ours: bool
) -> None:
    """Every request reads its own outputs, some are aborted while theirs are saved, and nothing is left over."""
    budget = 400 * ROW
    to_abort = frozenset(f"r{number}" for number in range(3, 60, 7))
    encodes = {}
    for host_bytes in (0, budget):
        engine = Engine(
            monkeypatch, ec(host_bytes=host_bytes), runner=runner, num_workers=num_workers,
            scheduling=scheduling, ours=ours,
        )  # fmt: skip
        finished = engine.serve(requests(3), to_abort)
        assert finished | to_abort == NAMES
        encodes[host_bytes] = engine.num_encodes
        assert engine.stats["host_bytes"] <= host_bytes
        if not host_bytes:
            assert "loads_host" not in engine.stats
        engine.close()
    assert engine.stats["loads_host"] > 0
    assert encodes[budget] < encodes[0]
    print(f"\nrunner {runner}, {num_workers} workers, {scheduling}: encodes {encodes[0]} -> {encodes[budget]}")


@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
def test_our_manager_serves_the_same_requests_with_fewer_encodes_than_vllms(
    monkeypatch: pytest.MonkeyPatch, scheduling: str
) -> None:
    """Some requests are preempted, some are aborted, and nobody is left who holds anything."""
    workload = {"seed": 3, "count": 120, "share": 0.4, "images": 4, "repeats": 0.2}
    encodes, to_abort = {}, frozenset(f"r{number}" for number in range(5, 120, 13))
    for ours in (False, True):
        engine = Engine(monkeypatch, ec(host_bytes=0), scheduling=scheduling, ours=ours)
        manager = engine.scheduler.encoder_cache_manager
        assert type(manager).__module__.startswith("omnireuse" if ours else "vllm")
        assert engine.serve(requests(**workload), to_abort) | to_abort == {f"r{number}" for number in range(120)}
        assert engine.num_preempted > 0
        encodes[ours] = engine.num_encodes
        engine.close()
    stats = manager.shared.stats()
    assert stats["entries"] == stats["idle_entries"]
    assert encodes[True] < encodes[False] < sum(len(each.mm_features) for each in requests(**workload))


@pytest.mark.parametrize("runner", [1, 2])
def test_a_restarted_engine_finds_everything_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: int
) -> None:
    options = {"disk": str(tmp_path), "disk_bytes": 1 << 24, "weights": "1" * 64, "fetch_seconds": 30.0}
    first = Engine(monkeypatch, ec(**options), runner=runner)
    assert first.serve(requests(1, 20)) == {f"r{number}" for number in range(20)}
    first.close()
    assert first.num_encodes > 20
    second = Engine(monkeypatch, ec(**options), runner=runner, num_workers=2)
    assert second.serve(requests(1, 20)) == {f"r{number}" for number in range(20)}
    assert second.num_encodes == 0
    assert second.stats["loads_outer"] > 0
    second.close()
    other = Engine(monkeypatch, ec(**options | {"weights": "2" * 64}), runner=runner)
    other.serve(requests(1, 2))
    assert other.num_encodes > 0
    assert "loads_outer" not in other.stats
    other.close()


@pytest.mark.parametrize(("runner", "num_workers", "ours"), [(1, 1, True), (2, 2, False)])
def test_an_update_of_weights_in_place_makes_everything_kept_a_miss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: int, num_workers: int, ours: bool
) -> None:
    """vLLM's own call is enough. The engine asserts that every request reads what the weights of now give."""
    options = {"disk": str(tmp_path), "disk_bytes": 1 << 24, "weights": "1" * 64, "fetch_seconds": 30.0}
    engine = Engine(monkeypatch, ec(**options), runner=runner, num_workers=num_workers, ours=ours)
    served = {f"r{number}" for number in range(12)}
    for update in range(3):
        before = engine.num_encodes
        assert engine.serve(requests(1, 12)) == served
        assert engine.num_encodes - before >= len({f.identifier for r in requests(1, 12) for f in r.mm_features})
        engine.update_weights()
        assert engine.stats["resets"] == update + 1
        assert engine.stats["host_entries"] == 0
    connector = engine.scheduler.get_ec_connector()
    connector.reset("1" * 64)  # back to the weights of the start
    engine.weights = 0
    before = engine.num_encodes
    assert engine.serve(requests(1, 12)) == served
    assert engine.num_encodes == before
    with pytest.raises(ConfigError, match="must not be the digest of the weights before"):
        connector.reset("1" * 64)
    engine.close()


def test_a_producer_encodes_for_a_consumer_that_has_no_media(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = {"disk": str(tmp_path), "disk_bytes": 1 << 24, "weights": "0" * 64, "fetch_seconds": 30.0}
    producer = Engine(monkeypatch, ec("ec_producer", **options))
    ready = requests(1, 10)
    producer.serve(ready)
    items = producer.scheduler.get_ec_connector().request_finished(ready[0])[1]
    assert set(items) == {feature.identifier for feature in ready[0].mm_features}
    assert producer.stats["saving"] == producer.stats["host_entries"] == 0
    producer.close()
    consumer = Engine(monkeypatch, ec("ec_consumer", **options))
    missing = make_request("missing", [("never encoded", 16)], random.Random(0), 99, has_media=False)
    ended = consumer.serve([*requests(1, 10, has_media=False), missing])
    assert ended == {"missing", *(f"r{number}" for number in range(10))}
    assert missing.status is RequestStatus.FINISHED_ERROR
    assert consumer.num_encodes == 0
    consumer.close()


def test_an_aborted_request_leaves_its_read_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = {"disk": str(tmp_path), "disk_bytes": 1 << 24, "weights": "0" * 64, "fetch_seconds": 30.0}
    first = Engine(monkeypatch, ec(**options))
    first.serve(requests(2, 4))
    first.close()
    second = Engine(monkeypatch, ec(**options))
    for request in requests(2, 4):
        second.scheduler.add_request(request)
    second.step()
    second.scheduler.finish_requests([f"r{number}" for number in range(3)], RequestStatus.FINISHED_ABORTED)
    assert second.serve([]) == {"r3"}
    assert second.num_encodes == 0
    second.close()


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"host_byte": 1}, UnknownNameError, "did you mean 'host_bytes'"),
        ({"host_bytes": -1}, ConfigError, "host_bytes must be a number of bytes"),
        ({"disk": "/x", "weights": "0" * 64}, ConfigError, "stand beside disk_bytes"),
        ({"redis": "redis://x"}, ConfigError, "be a digest of the encoder's weights"),
    ],
)
def test_a_wrong_option_stops_the_server(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Engine(monkeypatch, ec(**extra))


def test_another_vllm_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnireuse_engines.host.version", lambda _: "0.34.1")
    with pytest.raises(ConfigError, match=r"vllm 0\.34\.1 is not supported.*tested with 0\.33"):
        Engine(monkeypatch, ec())


def test_what_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(ec=ec())
    config.model_config.is_encoder_decoder = True
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)
    config = make_config(ec=ec())
    config.parallel_config.distributed_executor_backend, config.parallel_config.world_size = "ray", 2
    with pytest.raises(ConfigError, match="distributed_executor_backend must be 'mp' for several"):
        ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)
