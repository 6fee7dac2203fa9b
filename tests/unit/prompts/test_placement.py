"""Where entries are kept. An accelerator is needed for the real thing; the rules are tested on any machine."""

import pytest
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from omnireuse.prompts import entry as entry_module

from .conftest import Pipeline


def installed():
    pipeline = Pipeline()
    return pipeline, install_prompt_embed_cache(pipeline)


@pytest.fixture
def pretended(monkeypatch):
    """Takes the CPU for an accelerator."""
    monkeypatch.setattr(entry_module, "is_on_accelerator", lambda leaf: isinstance(leaf, torch.Tensor))


@pytest.mark.usefixtures("pretended")
def test_release_frees_the_device_and_entries_come_back():
    pipeline, cache = installed()
    want = pipeline.encode_prompt("abc", "bad")
    size = sum(t.nbytes for t in want)
    assert cache.device_bytes() == size
    assert cache.details()["num_bytes"] == (size)
    assert cache.release() == size
    assert cache.device_bytes() == 0
    assert cache.release() == 0
    for _ in range(2):
        got = pipeline.encode_prompt("abc", "bad")
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert cache.device_bytes() == size
    assert (cache.hits, cache.misses) == (2, 1)


@pytest.mark.usefixtures("pretended")
def test_what_came_back_is_guarded_again():
    pipeline, cache = installed()
    want = pipeline.encode_prompt("abc")[0].clone()
    cache.release()
    pipeline.encode_prompt("abc")[0].zero_()
    assert torch.equal(pipeline.encode_prompt("abc")[0], want)
    assert cache.details()["mutated"] == 1


def test_on_the_cpu_nothing_is_kept_twice():
    pipeline, cache = installed()
    value = pipeline.encode_prompt("abc")[0]
    assert cache.details()["num_bytes"] == value.nbytes
    assert cache.release() == 0
    assert pipeline.encode_prompt("abc")[0] is pipeline.encode_prompt("abc")[0]


def test_spellings_of_one_device_meet():
    pipeline, cache = installed()
    for device in (None, "cpu", torch.device("cpu")):
        pipeline.encode_prompt("abc", device=device)
    assert (cache.hits, cache.misses) == (2, 1)


class Placed(Pipeline):
    @torch.no_grad()
    def encode_prompt(self, prompt, device=None):
        self.num_encodes += 1
        return self.text_encoder(prompt).to(device), torch.arange(3)


def test_each_device_has_entries_of_its_own():
    pipeline = Placed()
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(2):
        assert pipeline.encode_prompt("abc", "cpu")[0].device.type == "cpu"
        assert pipeline.encode_prompt("abc", "meta")[0].device.type == "meta"
    assert (cache.hits, cache.misses) == (2, 2)


def test_a_device_that_no_torch_knows_is_left_to_the_function():
    pipeline, cache = installed()
    pipeline.encode_prompt("abc", device="no such device")
    assert cache.bypassed_by["signature"] == 1


@pytest.mark.parametrize("draws", [False, True])
def test_a_device_that_the_encoding_starts_is_asked_whether_it_drew(monkeypatch, draws):
    class Starting(Placed):
        def encode_prompt(self, prompt, device=None):
            made = torch.Generator().manual_seed(3)
            if draws:
                torch.rand(1, generator=made)
            monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
            monkeypatch.setattr(torch.cuda, "default_generators", (made,))
            return super().encode_prompt(prompt, device)

    pipeline = Starting()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    assert (cache.misses, cache.bypassed_by.get("random", 0)) == ((0, 1) if draws else (1, 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_released_entries_return_to_the_device_of_each_tensor():
    pipeline = Placed()
    cache = install_prompt_embed_cache(pipeline)
    want = pipeline.encode_prompt("abc", "cuda:0")[0]
    assert cache.release() == want.nbytes
    got, fixed = pipeline.encode_prompt("abc", "cuda:0")
    assert (got.device, fixed.device.type) == (torch.device("cuda:0"), "cpu")
    assert torch.equal(got, want)
    assert pipeline.num_encodes == 1
