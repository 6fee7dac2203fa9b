"""Lists of prompts are looked up one by one, where that was proven to give the same bits, and never elsewhere."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import PromptCacheOptions, install_prompt_embed_cache
from omnireuse.prompts.rows import plan_rows
from omnireuse.stores.disk import DiskTier
from tests.helpers.prompt_families import ALL
from tests.helpers.sweep import sweep
from tests.models.prompts.test_pipelines import same

from .conftest import Pipeline

WHOLE = {"cogview4", "latte", "qwen_image", "sd3", "sdxl"}
"""Families whose lists stay whole, on a CPU in float32; docs/prompt-embeddings.md says why."""


class Rowwise(Pipeline):
    """Each row depends on its own prompt only; two images a prompt on demand; one output shared by all."""

    @torch.no_grad()
    def encode_prompt(self, prompt, negative_prompt=None, images=1, device=None):
        self.num_encodes += 1
        self.prompts.append(list(prompt))
        rows = [self.text_encoder(p).repeat(images, 1, 1) for p in prompt]
        return torch.cat(rows), torch.arange(3), None


class Mixing(Pipeline):
    """Each row depends on the whole batch, as padding to the longest does."""

    @torch.no_grad()
    def encode_prompt(self, prompt):
        self.num_encodes += 1
        return torch.cat([self.text_encoder(p) for p in prompt]) * len(prompt)


class PadsToTheLongest(Pipeline):
    """Rows of one shape whose values depend on the longest prompt of the list, as pads that are not masked."""

    @torch.no_grad()
    def encode_prompt(self, prompt):
        self.num_encodes += 1
        longest = max(map(len, prompt))
        return torch.cat([self.text_encoder(p) * longest for p in prompt])


def test_rows_that_depend_on_the_longest_are_found_out_by_a_list_of_one_length():
    pipeline, twin = PadsToTheLongest(), PadsToTheLongest()
    cache = install_prompt_embed_cache(pipeline)
    for prompts in (["aa", "bb"], ["aa", "longer"], ["longer", "bb"]):
        same(pipeline.encode_prompt(prompts), twin.encode_prompt(prompts))
    assert cache.details()["row_hits"] == cache.details()["row_misses"] == 0


def test_a_list_whose_prompts_cannot_be_encoded_alone_stays_whole():
    class OnlyLists(Rowwise):
        def encode_prompt(self, prompt):
            if len(prompt) == 1:
                raise ValueError("a list, please")
            return super().encode_prompt(prompt)

    pipeline = OnlyLists()
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(2):
        same(pipeline.encode_prompt(["a", "b"]), Rowwise().encode_prompt(["a", "b"]))
    assert (pipeline.num_encodes, cache.hits) == (1, 1)


def test_a_single_prompt_after_its_list_is_a_hit():
    pipeline = Rowwise()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt(["a", "b"])
    before = pipeline.num_encodes
    got = pipeline.encode_prompt(["a"])
    assert pipeline.num_encodes == before
    same(got, Rowwise().encode_prompt(["a"]))
    assert cache.hits == 1


def test_one_missing_row_is_encoded_alone_and_more_with_their_list():
    pipeline, twin = Rowwise(), Rowwise()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt(["a", "b"])
    pipeline.encode_prompt(["a", "b", "c", "d"])
    pipeline.prompts.clear()
    same(pipeline.encode_prompt(["a", "x", "x", "y"]), twin.encode_prompt(["a", "x", "x", "y"]))
    assert pipeline.prompts == [["a", "x", "x", "y"]]
    same(pipeline.encode_prompt(["y", "z", "a", "z"]), twin.encode_prompt(["y", "z", "a", "z"]))
    assert pipeline.prompts == [["a", "x", "x", "y"], ["z"]]
    assert (cache.details()["row_hits"], cache.details()["row_misses"]) == (5, 3)


def test_several_images_a_prompt_and_negative_lists_stay_in_order():
    pipeline, twin = Rowwise(), Rowwise()
    install_prompt_embed_cache(pipeline)
    for prompts in (["a", "b"], ["b", "c"], ["c", "a"]):
        args = (prompts, ["n"] * 2, 3)
        same(pipeline.encode_prompt(*args), twin.encode_prompt(*args))
    assert pipeline.prompts[-1] == ["c"]


def test_rows_that_depend_on_their_batch_are_never_taken_apart():
    pipeline, twin = Mixing(), Mixing()
    cache = install_prompt_embed_cache(pipeline)
    for prompts in (["a", "b"], ["a", "c"], ["a", "b"]):
        same(pipeline.encode_prompt(prompts), twin.encode_prompt(prompts))
    assert cache.details()["row_hits"] == cache.details()["row_misses"] == 0


def test_new_weights_need_new_rows_and_a_new_proof():
    pipeline = Rowwise()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt(["a", "b"])
    with torch.no_grad():
        pipeline.text_encoder.out.weight.add_(1)
    twin = Rowwise()
    with torch.no_grad():
        twin.text_encoder.out.weight.add_(1)
    same(pipeline.encode_prompt(["b", "a"]), twin.encode_prompt(["b", "a"]))
    assert pipeline.prompts[-3:] == [["b"], ["a"], ["b", "b a"]]


def test_a_list_too_long_for_the_cache_does_not_flush_it():
    pipeline = Rowwise()
    cache = install_prompt_embed_cache(pipeline, max_size=4)
    pipeline.encode_prompt(["a"])
    pipeline.encode_prompt([str(i) for i in range(10)])
    pipeline.encode_prompt(["a"])
    assert cache.hits == 1


@pytest.mark.parametrize(
    "bound",
    [
        {"prompt": "a"},
        {"prompt": ["a"]},
        {"prompt": ("a", "b")},
        {"prompt": ["a", 1]},
        {"prompt": ["a", "b"], "image": [1, 2]},
        {"prompt": ["a", "b"], "negative_prompt": ["n"]},
        {"prompt": ["a", "b"], "sizes": (1, 2)},
    ],
    ids=str,
)
def test_what_may_not_go_row_by_row_is_left_whole(bound):
    assert plan_rows(bound) is None


class Gated(Rowwise):
    """Lists are encoded only once let through."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Semaphore(0), threading.Event()

    def encode_prompt(self, prompt):
        self.entered.release()
        assert self.gate.wait(10)
        return super().encode_prompt(prompt)


def test_lists_that_overlap_in_threads_encode_a_list_and_a_lone_row_once():
    pipeline, twin = Gated(), Rowwise()
    install_prompt_embed_cache(pipeline)
    pipeline.gate.set()
    pipeline.encode_prompt(["a", "b"])
    pipeline.gate.clear()
    pipeline.prompts.clear()
    while pipeline.entered.acquire(blocking=False):
        continue
    lists = [["c", "d"], ["c", "d"], ["a", "e"], ["e", "b"]]
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(pipeline.encode_prompt, prompts) for prompts in lists]
        for _ in range(2):
            assert pipeline.entered.acquire(timeout=10)
        pipeline.gate.set()
        for future, prompts in zip(futures, lists, strict=True):
            same(future.result(10), twin.encode_prompt(prompts))
    assert sorted(pipeline.prompts) == [["c", "d"], ["e"]]


def test_rows_are_found_in_the_outer_store(tmp_path):
    for _ in range(2):
        pipeline = Rowwise()
        options = PromptCacheOptions(outside=DiskTier(tmp_path, max_bytes=1 << 20))
        cache = install_prompt_embed_cache(pipeline, options=options)
        pipeline.encode_prompt(["x", "y"])
        pipeline.prompts.clear()
        same(pipeline.encode_prompt(["a", "b"]), Rowwise().encode_prompt(["a", "b"]))
    assert pipeline.prompts == []
    assert cache.details()["outside_hits"] >= 2


@pytest.mark.parametrize("name", sweep(ALL, quick={"flux", "sdxl", "sd3", "qwen_image", "lumina2", "wan"}))
@torch.no_grad()
def test_every_family_gives_the_bits_of_the_direct_call(name):
    build, kwargs = ALL[name]
    pipeline = build()
    direct = type(pipeline).encode_prompt
    cache = install_prompt_embed_cache(pipeline)
    for prompts in (["a cat", "a dog"], ["a dog", "a bird"], ["a bird", "a cat"], ["a cat", "a cat", "x"], ["a dog"]):
        same(pipeline.encode_prompt(prompts, **kwargs), direct(pipeline, prompts, **kwargs))
    assert (cache.details()["row_hits"] > 0) is (name not in WHOLE)
