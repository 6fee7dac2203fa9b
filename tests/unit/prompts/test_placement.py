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


def test_the_device_argument_is_no_part_of_the_key():
    pipeline, cache = installed()
    for device in (None, "cpu", torch.device("cpu")):
        pipeline.encode_prompt("abc", device=device)
    assert (cache.hits, cache.misses) == (2, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_left_to_the_function(caplog):
    pipeline, cache = installed()
    pipeline.encode_prompt("abc", device="cpu")
    pipeline.encode_prompt("abc", device="cuda")
    assert (cache.misses, cache.details()["unplaced"]) == (2, 1)
    assert "cannot be moved to cuda" in caplog.text
    pipeline.encode_prompt("abc", device="no such device")
    assert cache.bypassed_by["signature"] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_entries_follow_the_call_between_devices():
    class Placed(Pipeline):
        @torch.no_grad()
        def encode_prompt(self, prompt, device=None):
            self.num_encodes += 1
            return self.text_encoder(prompt).to(device), torch.arange(3)

    pipeline = Placed()
    cache = install_prompt_embed_cache(pipeline)
    want = pipeline.encode_prompt("abc", "cuda:0")[0]
    for device in ("cuda:0", "cpu", "cuda:0"):
        got, fixed = pipeline.encode_prompt("abc", device)
        assert got.device == torch.device(device)
        assert fixed.device.type == "cpu"
        assert torch.equal(got.cpu(), want.cpu())
        cache.release()
    assert pipeline.num_encodes == 1
