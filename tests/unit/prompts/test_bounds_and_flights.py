"""Bytes bound the cache, one encode serves all who wait, and errors are theirs alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import (
    _CACHE_MISS,
    PromptEmbedCache,
    bump_epoch,
    install_prompt_embed_cache,
)
from omnireuse.errors import UnsupportedModelError

from .conftest import Pipeline

KILO = 256  # float32 values


def test_bytes_bound_the_cache_by_true_storage():
    cache = PromptEmbedCache(max_size=100, max_bytes=3 * 1024)
    for name in "abcd":
        cache.put(name, torch.zeros(KILO))
    assert cache.details()["num_bytes"] == 3 * 1024
    assert cache.get("a") is _CACHE_MISS
    same = torch.zeros(KILO)
    cache.put("shared", (same, same))
    assert cache.details()["num_bytes"] == 3 * 1024


def test_an_oversize_value_is_refused_alone(caplog):
    cache = PromptEmbedCache(max_bytes=2048)
    cache.put("a", torch.zeros(KILO))
    cache.put("big", torch.zeros(3 * KILO))
    assert cache.get("big") is _CACHE_MISS
    assert cache.get("a") is not _CACHE_MISS
    assert cache.details()["refused"] == 1
    assert "exceed max_bytes=2048" in caplog.text


class Slow(Pipeline):
    """Encodes only once let through."""

    def __init__(self, error=None):
        super().__init__()
        self.entered, self.gate, self.error = threading.Semaphore(0), threading.Event(), error

    def encode_prompt(self, prompt):
        self.num_encodes += 1
        self.entered.release()
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return self.text_encoder(prompt).detach()


def in_threads(pipeline, cache, num=4):
    """Results of that many concurrent calls, all waiting before the encode is let through."""
    with ThreadPoolExecutor(num) as pool:
        futures = [pool.submit(pipeline.encode_prompt, "p") for _ in range(num)]
        assert pipeline.entered.acquire(timeout=10)
        pipeline.gate.set()
        return [f.exception() or f.result() for f in futures]


def test_threads_that_miss_together_encode_once():
    pipeline = Slow()
    cache = install_prompt_embed_cache(pipeline)
    results = in_threads(pipeline, cache)
    assert pipeline.num_encodes == 1
    assert all(torch.equal(r, results[0]) for r in results)
    assert (cache.misses, cache.hits) == (1, 3)


def test_a_failing_encode_fails_its_waiters_with_its_own_error_and_is_not_cached():
    error = RuntimeError("the encoder is out of memory")
    pipeline = Slow(error)
    cache = install_prompt_embed_cache(pipeline)
    results = in_threads(pipeline, cache)
    assert {type(r) for r in results} == {RuntimeError}
    assert error in results
    pipeline.error = None
    before = pipeline.num_encodes
    pipeline.encode_prompt("p")
    assert pipeline.num_encodes == before + 1
    assert len(cache.store) == 1


def test_a_coroutine_function_is_refused():
    class Async(Pipeline):
        async def encode_prompt(self, prompt):
            return self.text_encoder(prompt)

    with pytest.raises(UnsupportedModelError, match="must be a plain function, got a coroutine function"):
        install_prompt_embed_cache(Async())


def test_a_function_that_asks_for_itself_does_not_wait_for_itself():
    class Nested(Pipeline):
        def encode_prompt(self, prompt):
            self.num_encodes += 1
            return torch.ones(1) if self.num_encodes > 1 else self.encode_prompt(prompt) * 2

    pipeline = Nested()
    install_prompt_embed_cache(pipeline)
    assert pipeline.encode_prompt("p").item() == 2
    assert pipeline.num_encodes == 2


def test_eight_threads_of_calls_gets_and_puts_lose_no_count_and_encode_each_prompt_once():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline, max_size=64)
    per_thread, num_prompts = 200, 20

    def work(seed):
        for i in range(per_thread):
            if i % 10 == 9:
                cache.put((seed, i % 3), i)
            elif i % 10 == 8:
                assert cache.get((seed, (i - 9) % 3)) in (_CACHE_MISS, i - 9)
            else:
                pipeline.encode_prompt(f"p{(i * 31 + seed) % num_prompts}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert pipeline.num_encodes == num_prompts
    assert sorted(pipeline.prompts) == sorted(f"p{i}" for i in range(num_prompts))
    assert cache.hits + cache.misses == 8 * per_thread * 9 // 10
    assert len(cache.store) == num_prompts + 8 * 3


class Stopping(Pipeline):
    """Stops in the middle of encoding one prompt."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def encode_prompt(self, prompt):
        self.num_encodes += 1
        if prompt == "other":
            self.entered.set()
            assert self.gate.wait(10)
        return self.text_encoder(prompt).detach()


def test_a_hit_beside_another_encode_encodes_nothing():
    pipeline = Stopping()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("first")
    thread = threading.Thread(target=pipeline.encode_prompt, args=("other",))
    thread.start()
    assert pipeline.entered.wait(10)
    pipeline.encode_prompt("first")
    pipeline.gate.set()
    thread.join(10)
    pipeline.encode_prompt("other")
    assert (cache.hits, cache.misses, pipeline.num_encodes) == (2, 2, 2)


def step_uncounted(pipeline):
    optimizer = torch.optim.AdamW(pipeline.text_encoder.parameters(), lr=0.1, fused=True)
    pipeline.text_encoder("abc").sum().backward()
    optimizer.step()


def write_and_tell(pipeline):
    pipeline.text_encoder.out.weight.data.add_(1)
    bump_epoch(pipeline)


@pytest.mark.parametrize("update", [step_uncounted, write_and_tell])
def test_an_update_during_an_encode_leaves_nothing_of_before_and_those_who_wait_encode_once(update):
    pending = [update]

    class Updated(Slow):
        def encode_prompt(self, prompt):
            out = super().encode_prompt(prompt)
            while pending:
                pending.pop()(self)
            return out

    pipeline = Updated()
    cache = install_prompt_embed_cache(pipeline)
    old, *others = in_threads(pipeline, cache)
    new = pipeline.text_encoder("p").detach()
    assert sum(torch.equal(result, new) for result in (old, *others)) == 3
    assert torch.equal(pipeline.encode_prompt("p"), new)
    assert (pipeline.num_encodes, cache.details()["outdated"]) == (2, 1)


def test_eight_threads_of_mixed_operations_lose_nothing():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline, max_size=8, max_bytes=4096)
    twin = Pipeline()
    want = {f"p{i}": twin.encode_prompt(f"p{i}")[0] for i in range(16)}
    per_thread = 60

    def work(seed):
        for i in range(per_thread):
            prompt = f"p{(seed * 7 + i * i) % 16}"
            assert torch.equal(pipeline.encode_prompt(prompt)[0], want[prompt])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert cache.hits + cache.misses == 8 * per_thread
    assert cache.details()["num_bytes"] <= 4096
    assert len(cache.store) <= 8


def test_a_generator_result_passes_through_and_is_counted():
    class Generating(Pipeline):
        def encode_prompt(self, prompt):
            self.num_encodes += 1
            return (self.text_encoder(c) for c in prompt)

    pipeline = Generating()
    cache = install_prompt_embed_cache(pipeline)
    assert [len(list(pipeline.encode_prompt("ab"))) for _ in range(2)] == [2, 2]
    assert (pipeline.num_encodes, cache.bypassed_by["result"]) == (2, 2)
