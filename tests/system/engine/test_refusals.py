"""What the engine refuses, and the blocks it hands out."""

from __future__ import annotations

import pytest
import torch

from omnireuse.errors import ConfigError, StateError
from reference.engine import Engine, EngineConfig, Request, TinyOmniModel, image_tokens
from reference.engine.blocks import BlockPool
from reference.engine.request import Image


@pytest.fixture(scope="module")
def model() -> TinyOmniModel:
    return TinyOmniModel(seed=0)


def test_the_same_seed_is_the_same_model(model: TinyOmniModel) -> None:
    state = torch.get_rng_state()
    twin = TinyOmniModel(seed=0)
    assert torch.equal(state, torch.get_rng_state()), "building a model moved the caller's random numbers"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"max_step_tokens": 8}, "at least block_size"),
        ({"encoder_cache_embeds": 15}, "embeddings of one image"),
        ({"encoder_step_embeds": 15}, "embeddings of one image"),
    ],
)
def test_sizes_that_cannot_work(model: TinyOmniModel, config: dict[str, int], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Engine(model, EngineConfig(**config))


PIXELS = torch.zeros(3, 32, 32)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"token_ids": ()}, "must have a prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"token_ids": (5,) * 64}, "must fit in the KV cache"),
        ({"token_ids": (5, 1, 5)}, "placeholder"),
        ({"token_ids": image_tokens(15), "images": (Image(pixels=PIXELS, offset=0, num_embeds=16),)}, "placeholder"),
        ({"token_ids": image_tokens(16), "images": (Image(pixels=PIXELS, offset=0, num_embeds=16),) * 2}, "one image"),
    ],
)
def test_requests_that_cannot_be_served(model: TinyOmniModel, fields: dict[str, object], match: str) -> None:
    engine = Engine(model, EngineConfig(num_blocks=4))
    with pytest.raises(ConfigError, match=match):
        engine.add(Request(**{"request_id": "r", "token_ids": (5,), **fields}))
    assert engine.is_idle


def test_a_name_is_taken_while_its_request_is_alive(model: TinyOmniModel) -> None:
    engine = Engine(model)
    engine.add(Request(request_id="r", token_ids=(5,)))
    with pytest.raises(StateError, match="alive"):
        engine.add(Request(request_id="r", token_ids=(5,)))
    assert engine.abort("r")
    assert not engine.abort("r")


def test_blocks_keep_their_content_until_they_are_handed_out_again() -> None:
    pool = BlockPool(3)
    first = pool.allocate(2)
    pool.publish(first[0], "a")
    pool.publish(first[1], "ab")
    pool.publish(first[0], "other")
    pool.release(first)
    assert pool.find_prefix(["a", "ab", "abc"]) == first
    pool.take(first[:1])
    assert pool.allocate(2) == [2, first[1]]
    assert pool.drain_evicted() == [first[1]]
    assert pool.find_prefix(["a", "ab"]) == first[:1]
    with pytest.raises(StateError, match="free blocks"):
        pool.allocate(1)
    pool.assert_invariants()
