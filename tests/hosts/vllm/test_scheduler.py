"""vLLM's own scheduler with our encoder cache manager, loaded by name; the model runner is played.

Run it in a venv with vLLM: scripts/vllm_venv.sh.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

pytest.importorskip("vllm.version", reason="needs vllm; scripts/vllm_venv.sh builds a venv that has it")

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from tests.hosts.vllm.host import make_config, make_request, make_scheduler

pytestmark = pytest.mark.integration


@dataclass
class Runner:
    """A model runner that refuses to run on an output it does not have, or counts it."""

    is_strict: bool
    num_missing: int = 0
    outputs: set[str] = field(default_factory=set)
    num_encodes: int = 0
    num_embeds: int = 0

    def run(self, scheduler: Scheduler, plan: object) -> ModelRunnerOutput:
        self.outputs -= set(plan.free_encoder_mm_hashes)
        for name, input_ids in plan.scheduled_encoder_inputs.items():
            for input_id in input_ids:
                feature = scheduler.requests[name].mm_features[input_id]
                self.outputs.add(feature.identifier)
                self.num_encodes += 1
                self.num_embeds += feature.mm_position.length
        names, sampled = list(plan.num_scheduled_tokens), []
        for name in names:
            request = scheduler.requests[name]
            end = request.num_computed_tokens
            start = end - plan.num_scheduled_tokens[name]
            for feature in request.mm_features:
                place = feature.mm_position
                if place.offset < end and start < place.offset + place.length:
                    is_missing = feature.identifier not in self.outputs
                    assert not (is_missing and self.is_strict), f"{name} runs on {feature.identifier}, never encoded"
                    self.num_missing += is_missing
            sampled.append([7] if end >= request.num_tokens else [])
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)}, sampled_token_ids=sampled
        )


def workload(seed: int) -> list[list[tuple[str, int]]]:
    """A few images asked for again and again, between many that are seen once."""
    rng = random.Random(seed)
    requests = []
    for number in range(120):
        items = []
        for part in range(rng.randint(1, 3)):
            hot = rng.random() < 0.4
            items.append(
                (f"hot {rng.randrange(4)}", 24) if hot else (f"once {number}.{part}", rng.choice([16, 32, 48]))
            )
        if rng.random() < 0.2:
            items.append(items[0])  # the same image twice in one request
        requests.append(items)
    return requests


def serve(scheduler: Scheduler, seed: int) -> tuple[set[str], set[str], Runner, int]:
    """Serve the workload, a few requests at a time, aborting some; returns finished, aborted, runner, preemptions."""
    shared = getattr(scheduler.encoder_cache_manager, "shared", None)
    rng, runner = random.Random(seed), Runner(is_strict=shared is not None)
    todo = [make_request(f"r{k}", items, rng, k) for k, items in enumerate(workload(seed))]
    to_abort = {f"r{k}" for k in range(5, 120, 13)}
    finished: set[str] = set()
    aborted: set[str] = set()
    num_preempted = 0
    for step in range(20_000):
        while todo and len(scheduler.requests) < 8:
            scheduler.add_request(todo.pop(0))
        for name in sorted(to_abort & set(scheduler.requests)):
            if scheduler.requests[name].num_computed_tokens > 10 and step % 2:
                scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                aborted.add(name)
                to_abort.discard(name)
        before = {request.request_id for request in scheduler.running}
        plan = scheduler.schedule()
        num_preempted += len(before - {request.request_id for request in scheduler.running})
        output = runner.run(scheduler, plan)
        for outputs in scheduler.update_from_output(plan, output).values():
            finished |= {o.request_id for o in outputs.outputs if o.finish_reason is not None}
        if shared is not None:
            shared.assert_invariants()
            assert runner.outputs >= set(shared._entries)
        if not todo and not scheduler.has_unfinished_requests():
            return finished, aborted, runner, num_preempted
    raise AssertionError(f"the scheduler spins: {len(todo)} to come, {len(scheduler.requests)} alive")


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
def test_vllms_scheduler_serves_the_same_requests_with_fewer_encodes(
    monkeypatch: pytest.MonkeyPatch, scheduling: str, seed: int
) -> None:
    results = []
    for ours in (False, True):
        scheduler = make_scheduler(monkeypatch, make_config(ours=ours, scheduling=scheduling))
        assert type(scheduler.encoder_cache_manager).__module__.startswith("omnireuse" if ours else "vllm")
        results.append(serve(scheduler, seed))
        assert not scheduler.requests
    stats = scheduler.encoder_cache_manager.shared.stats()
    assert stats["entries"] == stats["idle_entries"]  # nobody is left who holds anything
    (finished, aborted, runner, preempted), (our_finished, our_aborted, our_runner, our_preempted) = results
    num_items = sum(len(items) for items in workload(seed))
    print(
        f"\n{scheduling} seed {seed}: {num_items} items, encodes {runner.num_encodes} -> "
        f"{our_runner.num_encodes}, embeddings {runner.num_embeds} -> {our_runner.num_embeds}, "
        f"preempted {preempted} -> {our_preempted}, run without an output {runner.num_missing} -> 0"
    )
    assert our_finished | our_aborted == finished | aborted == {f"r{k}" for k in range(120)}
    assert our_preempted > 0
    assert len(our_aborted) > 0
    assert our_runner.num_encodes < runner.num_encodes < num_items
