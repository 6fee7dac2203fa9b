"""The specified interface, on pipelines that count their calls and return the count."""

import collections
import logging
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import (
    _CACHE_MISS,
    install_prompt_embed_cache,
    uninstall_prompt_embed_cache,
)

logger = logging.getLogger(__name__)
CALLED = 0


def attribute(self, by):
    self.calls += by
    return self.calls


def one_line(self, by):
    self.calls += by; return self.calls  # fmt: skip  # noqa: E702


def of_an_object(self, by):
    self.stats.number += by
    return self.stats.number


def listed(self, by):
    self.log.extend(["call"] * by)
    return len(self.log)


def in_a_dict(self, by):
    self.by_kind["calls"] += by
    return self.by_kind["calls"]


def of_a_module(self, by):
    self.calls += by
    return self.calls


def logged(self, by):
    self.calls += by
    logger.info("call %d", self.calls)
    return self.calls


def of_the_process(self, by):
    global CALLED
    CALLED += by
    return CALLED


def in_a_closure():
    calls = 0

    def count(self, by):
        nonlocal calls
        calls += by
        return calls

    return count


WAYS = [attribute, one_line, of_an_object, listed, in_a_dict, of_a_module, logged, of_the_process, in_a_closure]


def embedding(encoder, prompt, negative_prompt="", scale=1.0):
    letters = [ord(letter) for text in [prompt, negative_prompt] for letter in "".join(text)]
    return encoder(torch.tensor(letters)) * scale


class Counting:
    """Encodes one number a letter, and returns with it which call this was."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.text_encoder, self.denoiser = nn.Embedding(256, 4), nn.Linear(2, 2)
        self.calls, self.log, self.stats = 0, [], SimpleNamespace(number=0)
        self.by_kind = collections.Counter()

    def encode_prompt(
        self,
        prompt,
        negative_prompt="",
        scale=1.0,
        extra=None,
        device=None,
        prompt_embeds=None,
        prompt_embeds_mask=None,
    ):
        number = self.count(1)
        return embedding(self.text_encoder, prompt, negative_prompt, scale), number


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def pipeline(request):
    way = request.param
    count = in_a_closure() if way is in_a_closure else way
    made = type("Counted", (Counting, *([nn.Module] if way is of_a_module else [])), {"count": count})()
    begun = count(made, 0)
    made.encoded = lambda: count(made, 0) - begun
    with torch.no_grad():
        yield made


@pytest.fixture
def switching_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def encodes(pipeline, cache, *calls):
    """How many calls of ``calls``, each its arguments by name, were encoded; checks that each result is right."""
    before = pipeline.encoded(), cache.hits, cache.misses, cache.bypassed
    for call in calls:
        got, _ = pipeline.encode_prompt(**call)
        asked = {name: call[name] for name in ("prompt", "negative_prompt", "scale") if name in call}
        want = embedding(pipeline.text_encoder, **asked)
        assert got.dtype == want.dtype
        assert torch.equal(got.nan_to_num(), want.nan_to_num())
    number, hits, misses, bypassed = [
        now - was
        for now, was in zip((pipeline.encoded(), cache.hits, cache.misses, cache.bypassed), before, strict=True)
    ]
    assert (number, hits + number) == (misses + bypassed, len(calls))
    return number


CAT, DOG = {"prompt": "cat"}, {"prompt": "dog"}


def test_equal_calls_are_encoded_once_and_return_the_first_count(pipeline):
    first = pipeline.encode_prompt("cat")[1]
    cache = install_prompt_embed_cache(pipeline)
    assert [pipeline.encode_prompt(prompt)[1] - first for prompt in ("cat", "dog", "cat", "dog")] == [1, 2, 1, 2]
    assert cache.stats() == {"size": 2, "max_size": 32, "hits": 2, "misses": 2, "bypassed": 0}
    assert pipeline.encoded() == 3


def test_spellings_and_defaults_of_a_call_meet(pipeline):
    cache = install_prompt_embed_cache(pipeline)
    for args, kwargs in [(("cat",), {}), ((), CAT), (("cat", ""), {}), (("cat",), {"scale": 1.0, "device": None})]:
        pipeline.encode_prompt(*args, **kwargs)
    assert (pipeline.encoded(), cache.hits) == (1, 3)


def test_it_installs_once_and_uninstalls(pipeline, caplog):
    cache = install_prompt_embed_cache(pipeline, max_size=3)
    assert install_prompt_embed_cache(pipeline, max_size=3) is cache
    assert not caplog.text
    assert install_prompt_embed_cache(pipeline, max_size=4) is cache
    assert "max_size" in caplog.text
    assert encodes(pipeline, cache, CAT, CAT) == 1
    uninstall_prompt_embed_cache(pipeline)
    assert "encode_prompt" not in vars(pipeline)
    pipeline.encode_prompt("cat")
    assert (pipeline.encoded(), cache.hits) == (2, 1)


def test_enabled_governs_the_wrapped_calls_alone(pipeline):
    cache = install_prompt_embed_cache(pipeline, enabled=False)
    for _ in range(2):
        pipeline.encode_prompt("cat")
    assert (pipeline.encoded(), cache.hits, cache.misses, cache.bypassed) == (2, 0, 0, 0)
    cache.put("own", None)
    assert cache.get("own") is None
    assert cache.get("other") is _CACHE_MISS
    cache.enabled = True
    assert encodes(pipeline, cache, CAT, CAT) == 1


def test_the_least_recently_used_leaves_and_clear_keeps_the_counters(pipeline):
    cache = install_prompt_embed_cache(pipeline, max_size=2)
    assert encodes(pipeline, cache, CAT, DOG, CAT, {"prompt": "owl"}, CAT, DOG) == 4
    cache.max_size = 3
    assert encodes(pipeline, cache, {"prompt": "owl"}, CAT, DOG, {"prompt": "owl"}) == 1
    cache.clear()
    assert (cache.stats()["size"], cache.misses) == (0, 5)
    cache.hits = cache.misses = 0
    assert encodes(pipeline, cache, CAT) == 1


VALUES = ["a", 1, 1.0, True, b"a", torch.device("cpu"), torch.float16, np.float32(1), [1, ["a"]], (1, 2), {"a": [1]}]


def test_values_that_make_a_key_hit_and_types_are_told_apart(pipeline):
    cache = install_prompt_embed_cache(pipeline)
    alike = [[1, 2], {"a": (1,)}, float("nan"), "1", False, 0, None]
    calls = [CAT | {"extra": value} for value in VALUES + alike]
    assert encodes(pipeline, cache, *calls) == len(calls)
    assert encodes(pipeline, cache, *calls) == 0


def test_what_makes_no_key_and_embeddings_of_the_caller_bypass(pipeline):
    cache = install_prompt_embed_cache(pipeline)
    calls = [{"extra": object()}, {"prompt_embeds": torch.ones(1)}, {"prompt_embeds_mask": torch.ones(1)}]
    calls = [CAT | call for call in calls] * 2
    assert encodes(pipeline, cache, *calls) == len(calls) == cache.bypassed
    assert encodes(pipeline, cache, CAT, CAT) == 1


def test_a_list_and_its_parts_have_their_own_results(pipeline):
    cache = install_prompt_embed_cache(pipeline)
    calls = [{"prompt": prompt} for prompt in (["a", "b"], ["a"], "a", ["ab"], ("a", "b"), ["b", "a"])]
    encodes(pipeline, cache, *calls)
    assert encodes(pipeline, cache, *calls) == 0


CHANGES = {
    "weights in place": lambda p: p.text_encoder.weight.mul_(2),
    "weights replaced": lambda p: setattr(p.text_encoder, "weight", nn.Parameter(p.text_encoder.weight * 2)),
    "dtype": lambda p: p.text_encoder.to(torch.float64),
    "encoder": lambda p: setattr(p, "text_encoder", nn.Embedding(256, 4)),
    "hook": lambda p: p.text_encoder.register_forward_hook(lambda _module, _inputs, output: output + 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_encoder_is_encoded_anew_and_one_of_the_denoiser_is_not(pipeline, change):
    cache = install_prompt_embed_cache(pipeline)
    assert encodes(pipeline, cache, CAT, CAT) == 1
    pipeline.denoiser.weight.add_(1)
    pipeline.denoiser.to(torch.float64)
    assert encodes(pipeline, cache, CAT) == 0
    change(pipeline)
    assert encodes(pipeline, cache, CAT, CAT) == 1


def test_values_are_detached_and_read_only_by_contract(pipeline):
    cache = install_prompt_embed_cache(pipeline)
    pipeline.text_encoder.weight.requires_grad_(False)
    assert encodes(pipeline, cache, CAT, CAT) == 1
    hit, _ = pipeline.encode_prompt("cat")
    assert not hit.requires_grad
    assert hit.untyped_storage().nbytes() == hit.nbytes == cache.details()["num_bytes"]
    hit.add_(1)  # against the contract: the entry is dropped, and nobody is given what was changed
    assert encodes(pipeline, cache, CAT, CAT) == 1


def test_a_result_that_requires_a_gradient_is_not_stored(pipeline):
    cache = install_prompt_embed_cache(pipeline)
    with torch.enable_grad():
        for _ in range(2):
            assert pipeline.encode_prompt("cat")[0].requires_grad
    assert (pipeline.encoded(), len(cache.store)) == (2, 0)
    assert encodes(pipeline, cache, CAT, CAT) == 1
    with torch.enable_grad():
        assert pipeline.encode_prompt("cat")[0].requires_grad


def test_eight_threads_encode_each_prompt_once(pipeline, switching_often):
    cache = install_prompt_embed_cache(pipeline)
    together, found = threading.Barrier(8), []

    @torch.no_grad()
    def work():
        together.wait()
        found.extend([pipeline.encode_prompt(prompt)[0] for prompt in "abcab"])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert pipeline.encoded() == cache.misses == 40 - cache.hits
    assert cache.misses == 3


@pytest.mark.parametrize("thing", [object(), SimpleNamespace(encode_prompt=None)])
def test_without_a_callable_encode_prompt_there_is_no_cache(thing):
    assert install_prompt_embed_cache(thing) is None
