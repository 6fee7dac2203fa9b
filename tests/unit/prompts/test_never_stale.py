"""After any change of what an embedding depends on, a call gives what a pipeline without a cache gives."""

import warnings

import pytest
import torch
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import (
    bump_epoch,
    install_prompt_embed_cache,
    uninstall_prompt_embed_cache,
)

from .conftest import Pipeline


def weight(pipeline):
    return pipeline.text_encoder.out.weight


def add_under_no_grad(p):
    with torch.no_grad():
        weight(p).add_(1)


def add_in_inference_mode(p):
    with torch.inference_mode():
        weight(p).mul_(2)


def load_state(p):
    p.text_encoder.load_state_dict({k: v + 1 for k, v in p.text_encoder.state_dict().items()})


def load_state_by_assignment(p):
    p.text_encoder.load_state_dict({k: v + 1 for k, v in p.text_encoder.state_dict().items()}, assign=True)


def step(fused):
    def change(p):
        optimizer = torch.optim.AdamW(p.text_encoder.parameters(), lr=0.1, fused=fused)
        p.text_encoder("abc").sum().backward()
        optimizer.step()

    return change


def give_other_data(p):
    weight(p).data = torch.ones(4, 4)


def give_other_data_inside_inference_mode(p):
    with torch.inference_mode():
        weight(p).data = torch.ones(4, 4)


def set_storage(p):
    with torch.no_grad():
        weight(p).set_(torch.ones(4, 4))


def quantise(p):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p.text_encoder = torch.ao.quantization.quantize_dynamic(p.text_encoder, {nn.Linear}, dtype=torch.qint8)


def quantise_in_place(p):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(p.text_encoder, {nn.Linear}, dtype=torch.qint8, inplace=True)


# What no change of test_reads.py is.
CHANGES = [add_in_inference_mode, load_state, load_state_by_assignment, step(False), step(True), give_other_data]
CHANGES += [set_storage, quantise, quantise_in_place]


def direct(pipeline, *args, **kwargs):
    """The pipeline's own encode_prompt, past any cache."""
    with torch.no_grad():
        return type(pipeline).encode_prompt(pipeline, *args, **kwargs)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_is_seen_by_the_very_next_hit(change):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    old = pipeline.encode_prompt("abc")[0]
    assert torch.equal(pipeline.encode_prompt("abc")[0], old)
    assert cache.hits == 1
    change(pipeline)
    new = pipeline.encode_prompt("abc")[0]
    assert torch.equal(new, direct(pipeline, "abc")[0])
    assert new.dtype != old.dtype or not torch.equal(new, old)
    assert torch.equal(pipeline.encode_prompt("abc")[0], new)
    assert cache.hits == 2
    uninstall_prompt_embed_cache(pipeline)


def test_weights_that_torch_does_not_count_are_not_cached():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    give_other_data_inside_inference_mode(pipeline)
    for _ in range(2):
        assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])
    assert cache.bypassed_by["uncounted"] == 2


def test_a_write_through_data_is_seen_when_told():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    weight(pipeline).data.add_(1)
    bump_epoch(pipeline)
    assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])


def test_other_data_while_the_old_is_kept_is_seen_by_the_very_next_hit():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    kept = weight(pipeline).data  # as an averaged copy of the weights is swapped in and out
    weight(pipeline).data = kept + 1
    assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])
    weight(pipeline).data = kept
    assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])
    assert cache.misses == 3


def test_what_does_not_touch_the_prompt_keeps_the_entries():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    with torch.no_grad():
        pipeline.denoiser.weight.add_(1)
    pipeline.denoiser = nn.Linear(2, 2)
    pipeline.unrelated = 3
    pipeline.text_encoder.to("cpu")
    pipeline.encode_prompt("abc")
    assert (cache.hits, cache.misses) == (1, 1)


def test_modules_that_gain_parts_elsewhere_cost_a_hit_no_look(monkeypatch):
    pipeline, layers = Pipeline(), nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("a")
    monkeypatch.setattr("omnireuse.prompts.look.Look._look", None)
    assert len(layers[1:]) == 1  # a decoder of diffusers slices a ModuleList in each call
    layers.register_parameter("more", nn.Parameter(torch.ones(1)))
    pipeline.encode_prompt("a")
    assert (cache.hits, pipeline.num_encodes) == (1, 1)


def test_entries_of_the_past_leave_memory():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    for prompt in "abc":
        pipeline.encode_prompt(prompt)
    add_under_no_grad(pipeline)
    pipeline.encode_prompt("a")
    assert len(cache.store) == 1


def test_dropout_in_training_mode_bypasses_wherever_it_is():
    pipeline = Pipeline()
    pipeline.text_encoder.out = nn.Sequential(pipeline.text_encoder.out, nn.Dropout(0.5)).eval()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    pipeline.text_encoder.out[1].train()
    assert not torch.equal(pipeline.encode_prompt("abc")[0], pipeline.encode_prompt("abc")[0])
    assert cache.bypassed_by["training"] == 2
    pipeline.text_encoder.eval()
    pipeline.encode_prompt("abc")
    assert cache.hits == 1


def test_autocast_has_entries_of_its_own():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    plain = pipeline.encode_prompt("abc")[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pipeline.encode_prompt("abc")[0].dtype == torch.bfloat16
    assert pipeline.encode_prompt("abc")[0].dtype == plain.dtype


def test_an_encode_prompt_without_source_is_watched_as_well():
    pipeline = Pipeline()
    space = {"torch": torch}
    exec("def encode(prompt): return holder[0].text_encoder(prompt).detach()", space)
    space["holder"] = [pipeline]
    pipeline.encode_prompt = space["encode"]
    cache = install_prompt_embed_cache(pipeline)
    old = pipeline.encode_prompt("abc")
    pipeline.encode_prompt("abc")
    assert cache.hits == 1
    add_under_no_grad(pipeline)
    assert not torch.equal(pipeline.encode_prompt("abc"), old)
