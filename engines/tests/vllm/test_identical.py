"""The caches in a running engine: the same tokens, states and speech as without them, for less work."""

from __future__ import annotations

import pytest

from omnireuse.core.prefix_cache import OmniTensorPrefixCache
from omnireuse_engines.vllm.engine import Engine, EngineConfig, Request, Result, TinyOmniModel
from omnireuse_engines.vllm.engine.conversation import converse, made_up_conversations
from omnireuse_engines.vllm.engine.request import Sequence, largest_difference
from omnireuse_engines.vllm.engine.trace import PromptBuilder, Trace, random_trace, serve

OFF = {"share_encodes": False, "share_prefixes": False}
ROOMY = {"encoder_step_embeds": 10_000, "encoder_cache_embeds": 10_000, "num_blocks": 256}
TIGHT = {"num_blocks": 12, "encoder_cache_embeds": 32, "encoder_step_embeds": 32, "max_step_tokens": 48}
TOLERANCE = 1e-9
"""On states of order 1, where a preemption, a hit on a decoded block or a chunk cut by the encoder's budget changes the
shapes of the arithmetic."""


@pytest.fixture(scope="module")
def model() -> TinyOmniModel:
    return TinyOmniModel(seed=0)


def run(model: TinyOmniModel, trace: Trace, **config: object) -> tuple[Engine, dict[int, Result]]:
    engine = Engine(model, EngineConfig(**config))
    results = dict(serve(engine, trace, after_step=engine.assert_invariants))
    assert results.keys() >= {index for index, arrival in enumerate(trace) if arrival.abort_step is None}
    return engine, results


@pytest.mark.parametrize("seed", range(3))
def test_with_room_everything_is_bit_equal_for_less_work(model: TinyOmniModel, seed: int) -> None:
    trace = random_trace(model, seed, 25)
    off, expected = run(model, trace, **ROOMY, **OFF)
    on, results = run(model, trace, **ROOMY)
    assert largest_difference(results, expected) == 0.0
    assert on.counts["encode"] < off.counts["encode"]
    assert on.counts["prefill"] + on.counts["prefix hit"] == off.counts["prefill"]
    assert on.counts["prefix hit"] > 0
    assert len({result.codes for result in expected.values()}) > 5, "the model answers the same to everything"


@pytest.mark.parametrize("cache", ["share_encodes", "share_prefixes"])
def test_each_cache_alone_is_bit_equal(model: TinyOmniModel, cache: str) -> None:
    trace = random_trace(model, 3, 20)
    off, expected = run(model, trace, **ROOMY, **OFF)
    on, results = run(model, trace, **{**ROOMY, **OFF, cache: True})
    assert largest_difference(results, expected) == 0.0
    saved = "encode" if cache == "share_encodes" else "prefill"
    assert on.counts[saved] < off.counts[saved]


@pytest.mark.parametrize("seed", [0, 1])
def test_under_pressure_the_tokens_are_the_same(model: TinyOmniModel, seed: int) -> None:
    trace = random_trace(model, seed, 25, aborted=0.3)
    off, expected = run(model, trace, **TIGHT, **OFF)
    on, results = run(model, trace, **TIGHT, encoder_host_bytes=200_000)
    assert largest_difference(results, expected) <= TOLERANCE
    assert off.counts["preempt"]
    assert on.counts["preempt"]
    assert sum(result.num_preemptions for result in results.values())
    assert on.counts["abort"]
    assert on.counts["load"], "nothing came back from host memory"
    assert on.counts["encode"] < off.counts["encode"]
    assert on.scheduler.encoder_cache.shared.stats()["evicted"]


def test_rows_of_a_block_that_changed_hands_are_told_without_being_freed(
    model: TinyOmniModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OmniTensorPrefixCache, "free_blocks", lambda *_: None)
    trace = random_trace(model, 1, 25, aborted=0.3)
    _, expected = run(model, trace, **TIGHT, **OFF)
    on, results = run(model, trace, **TIGHT)
    assert on.counts["prefix hit"]
    assert largest_difference(results, expected) <= TOLERANCE


def test_conversations_hit_on_what_was_decoded(model: TinyOmniModel) -> None:
    talks = made_up_conversations(model, users=2, turns=3, seed=0)
    off, on = Engine(model, EngineConfig(**OFF)), Engine(model, EngineConfig())
    expected, results = converse(off, talks), converse(on, talks)
    assert results.keys() == expected.keys()
    assert len(results) == 6
    assert largest_difference(results, expected) <= TOLERANCE
    assert on.counts["prefill"] < 0.6 * off.counts["prefill"]


def test_an_id_that_comes_again_in_the_step_of_its_abort_is_a_new_request(model: TinyOmniModel) -> None:
    build = PromptBuilder(model)

    def make(image: int, tokens: list[int]) -> Request:
        token_ids, images = build.join([build.image(image), tokens])
        return Request(request_id="same", token_ids=token_ids, images=images)

    engine = Engine(model)
    for number in range(3):
        engine.add(make(number, [5, 6, 7 + number]))
        engine.step()
        assert engine.abort("same")
    engine.add(make(9, [5, 6, 7]))
    (result,) = engine.run()
    engine.assert_invariants()
    fresh = Engine(model, EngineConfig(**OFF))
    fresh.add(make(9, [5, 6, 7]))
    (expected,) = fresh.run()
    assert largest_difference({0: result}, {0: expected}) == 0.0


def test_tenants_share_nothing(model: TinyOmniModel) -> None:
    build, engine = PromptBuilder(model), Engine(model)
    token_ids, images = build.join([build.image(0), list(range(2, 40))])
    for tenant in ("a", "b", "a"):
        engine.add(Request(request_id=tenant, token_ids=token_ids, images=images, tenant=tenant))
        list(engine.run())
    assert engine.counts["encode"] == 2
    hits = [mark.request_id for mark in engine.marks if mark.kind == "prefix hit"]
    assert hits == ["a"]


# --- the comparison can fail


def test_a_block_hash_that_forgets_the_images_is_noticed(model: TinyOmniModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(sequence: Sequence, size: int) -> list[str]:
        return [str(sequence.token_ids[: stop + size]) for stop in range(0, len(sequence.token_ids) - size + 1, size)]

    monkeypatch.setattr(Sequence, "hash_blocks", forgetful)
    assert shown_two_images(model) > TOLERANCE


def shown_two_images(model: TinyOmniModel, **config: object) -> float:
    build = PromptBuilder(model)
    results, expected = {}, {}
    engine = Engine(model, EngineConfig(**config))
    for number in range(2):
        token_ids, images = build.join([build.image(number), [5, 6, 7]])
        request = Request(request_id=str(number), token_ids=token_ids, images=images)
        engine.add(request)
        (results[number],) = engine.run()
        alone = Engine(model, EngineConfig(**OFF))
        alone.add(request)
        (expected[number],) = alone.run()
    return largest_difference(results, expected)
