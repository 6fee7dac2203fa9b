"""What vLLM 0.33's own tests ask of an encoder-cache connector, asked of ours. Run it: scripts/vllm_venv.sh.

The left column is `tests/v1` of vLLM 0.33.0. "Ours" says where `EncoderOutputConnector` differs on purpose.

ec_connector/unit/test_ec_example_connector.py
    initialization_*, role_assignment                         test_each_side_has_its_role_and_refuses_the_others_calls
    has_cache_item_*                                          test_all_some_or_none_of_three_are_there
    update_state_*, build_connector_meta_*, state_cleared_*   test_a_plan_carries_what_was_allocated_once
    save_caches_producer_*, start_load_caches_consumer_*      test_what_was_saved_is_loaded_bit_for_bit
    save_caches_consumer_skips, ..._skip_existing             test_a_consumer_saves_nothing_and_leaves_what_is_there
    start_load_caches_pins_device_*, non_cuda_*               test_loads_go_to_the_current_device
    save_empty_cache                                          test_what_was_saved_is_loaded_bit_for_bit[empty]
    load_nonexistent_cache                                    test_what_was_promised_and_is_nowhere_raises
    bind_*, clear_*, get_connector_metadata*                  test_a_step_without_a_plan_raises
    metadata_preserves_repeated_*, audio_metadata_*           test_a_producer_names_its_items
    generate_filename*                                        none: the example's own file names
ec_connector/unit/cpu/scheduler/test_scheduler.py
    offload_reuse_cycle, multiple_mm_items_per_request        test_an_output_is_there_once_every_worker_has_said_so
    load_needs_every_participant_before_unpin                 the same
    connector_keys_on_identifier_not_mm_hash                  the same
    cpu_region_fifo_eviction, load_pin_*, late_report_*       test_what_is_loaded_may_leave_the_host_in_the_same_step
    loads_only_serves_*, repeated_reload_*, not_emitted_*     test_a_plan_carries_what_was_allocated_once
    region_full_skips_save_and_never_blocks                   test_a_full_host_tier_skips_a_save
    producer_only_*, consumer_only_*, save_not_emitted_*      test_who_loads_and_who_saves
    has_cache_item_false_when_not_consumer                    ours: true for what disk or Redis has; see
                                                              test_neither_role_encodes_what_is_there
    update_connector_output_ignores_*                         test_a_report_of_something_else_changes_nothing
    has_pending_push_work_*                                   test_nothing_is_pending_after_a_step. Ours: a save is
                                                              confirmed by its own step, so no further one is needed
    shutdown_*                                                test_after_shutdown_nothing_is_there
ec_connector/unit/cpu/worker/test_worker.py
    save_caches_noop_when_not_in_saves, *_for_non_save_rank   test_who_loads_and_who_saves
    start_load_caches_works_on_all_ranks, *_round_trips_*     test_an_output_is_there_once_every_worker_has_said_so
    save_survives_*_free_*, load_buffer_survives_eviction_*   test_what_was_saved_is_loaded_bit_for_bit, and
                                                              test_what_is_loaded_may_leave_the_host_in_the_same_step
    blocks, pinning and descriptors                           none: the memory region of vLLM's connector
ec_connector/unit/cpu/test_connector.py
    *_role_builds_only_*, request_finished_forwards_*         test_each_side_has_its_role_..., names_its_items
    v1_model_runner_is_rejected                               ours: both runners; `Engine(runner=...)`
    factory_registered, test_ec_connector_factory.py          every test: the factory finds it by its module's path
ec_connector/unit/test_ec_connector_metrics.py, cpu/test_metrics.py
    all that is of the connector                              test_counts_are_told_once_and_add_up
ec_connector/unit/test_ec_output_aggregator.py, test_worker_ec_connector.py
    all                                                       vLLM's own classes, around ours in every `Engine`
ec_connector/unit/test_ec_transfer_params.py
    free_request_calls_ec_connector_*                         test_a_producer_names_its_items
core/test_scheduler.py
    ec_connector_text_only_request                            test_text_alone_carries_nothing
    cache_hit_external_load, cache_miss_*, multiple_requests  test_local_before_connector_before_encoder
    with_partial_cache_hit_multi_round                        test_local_before_connector_before_encoder
    unable_to_allocate, allocate_encoder_tokens_with_*        test_a_load_waits_for_room
    priority_*_ec_connector_preemption_and_resumption         test_a_preempted_request_comes_back_to_its_outputs
    ensure_cache_available_defers_*, waits_for_embeddings_*   test_a_request_waits_for_a_read_and_others_run
    defers_running_request_*, pending_prefetch_only_*         test_only_what_is_still_to_come_is_read
    encoder_input_skipped_when_connector_already_has_*        test_neither_role_encodes_what_is_there
    unavailable_encoder_input_fails_*                         test_vllm_connector.py, a producer encodes for a consumer
    scheduler_ec_connector_stats, update_connector_output_*   test_counts_are_told_once_and_add_up
    free_encoder_inputs_notifies_*                            none: ours keeps nothing for an item of a request
"""

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

from omnireuse.errors import ConfigError, StateError
from omnireuse.stores.disk import DiskTier
from tests.hosts.vllm.engine import ROW, WIDTH, Engine, ec, encode
from tests.hosts.vllm.host import make_config, make_request

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


@pytest.mark.parametrize("role", ["ec_producer", "ec_consumer"])
def test_a_role_of_its_own_needs_a_place_to_meet(tmp_path: Path, role: str) -> None:
    with pytest.raises(ConfigError, match=f"ec_role='{role}'.: field must be 'ec_both' without disk and Redis"):
        connect("SCHEDULER", role, tmp_path, host_bytes=1000)


@pytest.mark.parametrize("role", ["ec_consumer", "ec_producer"])
@pytest.mark.parametrize("there", ["abc", "b", ""], ids=["all", "some", "none"])
@pytest.mark.parametrize("name", [OURS, EXAMPLE])
def test_all_some_or_none_of_three_are_there(tmp_path: Path, name: str, there: str, role: str) -> None:
    store(tmp_path, {each: THREE[each] for each in there}, name)
    before = sorted(tmp_path.rglob("*"))
    scheduler = connect("SCHEDULER", role, tmp_path, name)
    available(scheduler, ask("r", ("a", 4), ("b", 6), ("c", 8)))
    assert [scheduler.has_cache_item(each) for each in "abc"] == [each in there for each in "abc"]
    assert scheduler.has_cache_item("never seen") is False
    assert sorted(tmp_path.rglob("*")) == before  # to ask leaves nothing behind
    scheduler.shutdown()


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


@pytest.mark.parametrize(
    "output",
    [
        torch.randn(5, 8).half(), torch.randn(5, 8).bfloat16(), torch.randn(5, 3, 8), torch.randn(8, 5).T,
        torch.randn(9, 8)[2:7], torch.empty(0),
    ],
    ids=["half", "bfloat16", "levels", "transposed", "view", "empty"],
)  # fmt: skip
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_what_was_saved_is_loaded_bit_for_bit(tmp_path: Path, output: torch.Tensor, tier: str) -> None:
    """In its type and shape, and whatever becomes of the tensor that was saved."""
    extra = {} if tier == "disk" else {"host_bytes": 10_000}
    scheduler, worker = (connect(side, "ec_both", tmp_path, **extra) for side in ("SCHEDULER", "WORKER"))
    request, true, size = ask("r", ("x", 5)), output.clone(), output.shape[0]
    cache = work(worker, plan(scheduler, request, encodes=(0,)), {"x": output})
    output.zero_()
    del cache["x"]
    tell(scheduler, worker)
    if tier == "disk":
        for half in (worker, scheduler):
            half.shutdown()
        scheduler, worker = (connect(side, "ec_both", tmp_path) for side in ("SCHEDULER", "WORKER"))
    available(scheduler, request)
    assert scheduler.has_cache_item("x") is True
    loaded = work(worker, plan(scheduler, request, allocate=(0,)), {})["x"]
    assert (loaded.dtype, loaded.shape, loaded.shape[0]) == (true.dtype, true.shape, size)
    assert torch.equal(loaded, true)
    for half in (worker, scheduler):
        half.shutdown()


@pytest.mark.parametrize("name", [OURS, EXAMPLE])
def test_a_consumer_saves_nothing_and_leaves_what_is_there(tmp_path: Path, name: str) -> None:
    store(tmp_path, THREE, name)
    scheduler, worker = (connect(side, "ec_consumer", tmp_path, name) for side in ("SCHEDULER", "WORKER"))
    before, request = sorted(tmp_path.rglob("*")), ask("r", ("a", 4), ("b", 6), ("d", 4))
    available(scheduler, request)
    kept = torch.zeros(4, WIDTH)
    cache = work(worker, plan(scheduler, request, (0, 1), encodes=(2,)), {"d": encode("d", 4)}, {"a": kept})
    assert cache["a"] is kept
    assert torch.equal(cache["b"], THREE["b"])
    for half in (worker, scheduler):
        half.shutdown()
    assert sorted(tmp_path.rglob("*")) == before


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
def test_what_was_promised_and_is_nowhere_raises(tmp_path: Path, name: str) -> None:
    """vLLM has planned without an encode: the step cannot go on."""
    extra = {"host_bytes": 10_000}
    scheduler, worker, other = (
        connect(side, "ec_both", tmp_path, name, **extra) for side in ("SCHEDULER", "WORKER", "WORKER")
    )
    request = ask("r", ("a", 4))
    work(worker, plan(scheduler, request, encodes=(0,)), {"a": THREE["a"]})
    tell(scheduler, worker)
    available(scheduler, request)
    promised = plan(scheduler, request, allocate=(0,))
    if name == EXAMPLE:
        next(tmp_path.rglob("*.safetensors")).unlink()
    with pytest.raises(StateError if name == OURS else FileNotFoundError):
        work(other, promised, {})


@pytest.mark.parametrize("name", [OURS, EXAMPLE])
def test_a_step_without_a_plan_raises(tmp_path: Path, name: str) -> None:
    scheduler, worker = (connect(side, "ec_both", tmp_path, name) for side in ("SCHEDULER", "WORKER"))
    with pytest.raises(AssertionError):
        worker.start_load_caches({})
    worker.bind_connector_metadata(plan(scheduler))
    worker.start_load_caches({})
    worker.clear_connector_metadata()
    with pytest.raises(AssertionError):
        worker.start_load_caches({})


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


def test_an_output_is_there_once_every_worker_has_said_so(tmp_path: Path) -> None:
    extra = {"host_bytes": 10_000}
    scheduler = connect("SCHEDULER", "ec_both", tmp_path, **extra)
    workers = [connect("WORKER", "ec_both", tmp_path, rank=rank, **extra) for rank in (0, 1)]
    request = ask("r", ("a", 4), ("b", 6))
    for feature in request.mm_features:
        feature.mm_hash = "another key, of the processor's cache"
    for kept_by in (1, 2):  # the second worker runs out of memory once
        asked = plan(scheduler, request, encodes=(0, 1))
        available(scheduler, request)
        assert not scheduler.has_cache_item("a")
        for worker in workers[:kept_by]:
            work(worker, asked, {each: THREE[each] for each in "ab"})
        for worker in workers[kept_by:]:
            work(worker, asked, {})
        tell(scheduler, *workers)
        available(scheduler, request)
        there = [scheduler.has_cache_item(each) for each in ("a", "b", "another key, of the processor's cache")]
        assert there == ([True, True, False] if kept_by == 2 else [False] * 3)
    loads = plan(scheduler, request, allocate=(0, 1))
    for worker in workers:
        loaded = work(worker, loads, {})
        assert all(torch.equal(loaded[each], THREE[each]) for each in "ab")


def test_what_is_loaded_may_leave_the_host_in_the_same_step(tmp_path: Path) -> None:
    """The oldest leaves first, loads come before drops, and a loaded tensor does not change any more."""
    extra = {"host_bytes": 2 * 4 * ROW}
    scheduler, worker = (connect(side, "ec_both", tmp_path, **extra) for side in ("SCHEDULER", "WORKER"))
    outputs = {each: encode(each, 4) for each in "abcd"}
    for each in "ab":
        work(worker, plan(scheduler, ask(each, (each, 4)), encodes=(0,)), {each: outputs[each]})
        tell(scheduler, worker)
    request = ask("r", ("a", 4), ("c", 4), ("d", 4))
    available(scheduler, request)
    loaded = work(
        worker, plan(scheduler, request, allocate=(0,), encodes=(1, 2)), {each: outputs[each] for each in "cd"}
    )
    tell(scheduler, worker)
    available(scheduler, every := ask("all", *((each, 4) for each in "abcd")))
    assert [scheduler.has_cache_item(each) for each in "abcd"] == [False, False, True, True]
    assert torch.equal(loaded["a"], outputs["a"])
    assert scheduler.stats()["host_bytes"] == 2 * 4 * ROW
    assert work(worker, plan(scheduler, every, allocate=(2, 3)), {}).keys() == {"c", "d"}


def test_a_full_host_tier_skips_a_save(tmp_path: Path) -> None:
    extra = {"host_bytes": 4 * ROW}
    scheduler, worker = (connect(side, "ec_both", tmp_path, **extra) for side in ("SCHEDULER", "WORKER"))
    work(worker, plan(scheduler, ask("r", ("a", 4)), encodes=(0,)), {"a": THREE["a"]})
    tell(scheduler, worker)
    first = plan(scheduler, ask("s", ("b", 4)), encodes=(0,))  # planned, and not yet reported
    second = ask("t", ("c", 4))
    assert scheduler.ensure_cache_available(second, 0)
    plan(scheduler, second, encodes=(0,))
    assert scheduler.stats()["no_room"] == 1
    work(worker, first, {"b": encode("b", 4)})
    tell(scheduler, worker)
    assert scheduler.stats()["host_bytes"] == 4 * ROW


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


def test_a_report_of_something_else_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    extra = {"host_bytes": 10_000}
    scheduler, worker = (connect(side, "ec_both", tmp_path, **extra) for side in ("SCHEDULER", "WORKER"))
    request = ask("r", ("a", 4))
    work(worker, plan(scheduler, request, encodes=(0,)), {"a": THREE["a"]})
    report = worker.build_connector_worker_meta()
    for meta in (object(), None, report, report):  # the last one twice
        scheduler.update_connector_output(ECConnectorOutput(ec_connector_worker_meta=meta))
    available(scheduler, request)
    assert scheduler.has_cache_item("a")
    assert scheduler.stats()["reports_unknown"] == 1
    assert "were not asked to keep" in caplog.text


def test_nothing_is_pending_after_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, ec())
    engine.scheduler.add_request(ask("r", ("a", 24), ("b", 24)))
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        assert engine.stats["saving"] == 0
        assert not engine.scheduler.get_ec_connector().has_pending_push_work()
    engine.close()


def test_after_shutdown_nothing_is_there(tmp_path: Path) -> None:
    scheduler, worker = (connect(side, "ec_both", tmp_path) for side in ("SCHEDULER", "WORKER"))
    request = ask("r", ("a", 4))
    work(worker, plan(scheduler, request, encodes=(0,)), {"a": THREE["a"]})
    tell(scheduler, worker)
    available(scheduler, request)
    assert scheduler.has_cache_item("a")
    for half in (scheduler, worker, scheduler, worker):  # twice is once
        half.shutdown()
    assert not scheduler.has_cache_item("a")


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


def test_text_alone_carries_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = Engine(monkeypatch, ec("ec_consumer", **disk(tmp_path)))
    empty = engine.scheduler.get_ec_connector().build_connector_meta(engine.scheduler.schedule())
    engine.scheduler.add_request(ask("r"))
    engine.step()
    assert engine.plan.num_scheduled_tokens == {"r": 4}
    assert engine.plan.ec_connector_metadata == empty
    assert engine.plan.scheduled_encoder_inputs == {}
    assert "fetches" not in engine.stats
    engine.close()


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


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("role", ["ec_producer", "ec_consumer", "ec_both"])
def test_neither_role_encodes_what_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: str, runner: int
) -> None:
    """A producer that starts again, or whose sibling was first, finds what is there as a consumer does."""
    store(tmp_path, THREE)
    engine = Engine(monkeypatch, ec(role, **disk(tmp_path)), runner=runner, num_workers=2)
    assert engine.serve([ask("r", ("a", 4), ("b", 6), ("c", 8))]) == {"r"}
    assert (engine.num_encodes, engine.stats["loads_outer"]) == (0, 3)
    engine.close()


@pytest.mark.parametrize("runner", [1, 2])
def test_a_producer_writes_again_what_was_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: int) -> None:
    """vLLM does not encode what its device has, so the connector would never be handed it."""
    engine = Engine(monkeypatch, ec("ec_producer", **disk(tmp_path)), runner=runner)
    engine.serve([ask("r", ("a", 4))])
    wait_for_files(tmp_path, 1)
    for file in tmp_path.glob("*.orv"):
        file.unlink()
    engine.serve([ask("s", ("a", 4))])
    wait_for_files(tmp_path, 1)
    assert engine.num_encodes == 1
    engine.close()
    consumer = Engine(monkeypatch, ec("ec_consumer", **disk(tmp_path)))
    assert consumer.serve([ask("t", ("a", 4), has_media=False)]) == {"t"}
    consumer.close()


def wait_for_files(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.orv"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
