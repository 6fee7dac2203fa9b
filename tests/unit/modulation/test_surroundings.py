"""Offloading and adapters around a denoiser with a modulation cache."""

from typing import Any
from unittest import mock

import diffusers
import pytest
import torch
from accelerate import cpu_offload, cpu_offload_with_hook
from diffusers.hooks.group_offloading import ModuleGroup
from peft import LoraConfig

import omnireuse
from tests.helpers import tiny

from .test_rows import Denoiser, equal, run


@pytest.mark.parametrize("kind", ["block_level", "leaf_level"])
def test_groups_no_longer_stream_what_is_in_a_table(kind: str) -> None:
    want = tiny.qwen_image().run(steps=3)
    t = tiny.qwen_image()
    model = t.pipe.transformer
    model.enable_group_offload(torch.device("cpu"), torch.device("cpu"), kind, num_blocks_per_group=1)
    streamed: list[int] = []

    def onload(group: Any) -> None:
        streamed.extend(p.nbytes for module in group.modules for p in module.parameters())
        streamed.extend(p.nbytes for p in group.parameters)

    with mock.patch.object(ModuleGroup, "onload_", onload):
        assert torch.equal(t.run(steps=3), want)
        before = sum(streamed)
        cache = omnireuse.install_modulation_cache(t.pipe, release="cpu")
        assert cache is not None
        assert torch.equal(t.run(steps=3), want)
        assert torch.equal(t.run(steps=3), want)
        streamed.clear()
        assert torch.equal(t.run(steps=3), want)
        after, found = sum(streamed), cache.details()
        assert found["released_bytes"]
        name = "released_bytes" if kind == "block_level" else "weight_bytes"  # a leaf with a row is not called at all
        assert before - after == found[name] * 6  # three steps of two branches
        omnireuse.uninstall_modulation_cache(t.pipe)
        streamed.clear()
        assert torch.equal(t.run(steps=3), want)
        assert sum(streamed) == before


def test_model_offload_leaves_weights_where_they_are() -> None:
    want = tiny.qwen_image().run(steps=3)
    t = tiny.qwen_image()
    cpu_offload_with_hook(t.pipe.transformer, execution_device=torch.device("cpu"))
    cache = omnireuse.install_modulation_cache(t.pipe, release="disk")
    assert cache is not None
    for _ in range(3):
        assert torch.equal(t.run(steps=3), want)
    found = cache.details()
    assert found["released"] == found["projections"] - 1  # the denoiser's first parameter tells where it is
    assert found["computed"] == found["projections"] * 3
    state = t.pipe.transformer.state_dict()
    assert all(torch.equal(each, state[name]) for name, each in tiny.qwen_image().pipe.transformer.state_dict().items())


def test_sequential_offload_is_served() -> None:
    plain, cached = Denoiser([0, 2], 64), Denoiser([0, 2], 64)
    cpu_offload(cached, execution_device=torch.device("cpu"))
    cache = omnireuse.install_modulation_cache(cached)
    assert cache is not None
    for _ in range(3):
        assert equal(run(plain), run(cached))
    assert cache.details()["computed"] == 8


def adapted(t: tiny.Tiny) -> Any:
    """LoRA on the modulation of both streams, and on attention."""
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["img_mod.1", "txt_mod.1", "to_q"], init_lora_weights=False)
    t.pipe.transformer.add_adapter(config, "style")
    return t.pipe.transformer


@torch.no_grad()
def test_adapters_are_loaded_scaled_merged_and_unloaded() -> None:
    plain, cached = tiny.qwen_image(), tiny.qwen_image()
    cache = omnireuse.install_modulation_cache(cached.pipe, release="disk")
    assert cache is not None

    def agree() -> None:
        want = plain.run(steps=2)
        for _ in range(2):
            assert torch.equal(cached.run(steps=2), want)

    agree()
    assert cache.details()["released"]
    for change in (
        adapted,
        lambda t: t.pipe.transformer.set_adapters("style", 0.3),
        lambda t: t.pipe.transformer.disable_adapters(),
        lambda t: t.pipe.transformer.enable_adapters(),
        lambda t: t.pipe.transformer.fuse_lora(),
        lambda t: t.pipe.transformer.unfuse_lora(),
        lambda t: t.pipe.transformer.fuse_lora(),
        lambda t: t.pipe.transformer.unload_lora(),
    ):
        for t in (plain, cached):
            change(t)
        agree()
    assert cache.details()["changed"]


@torch.no_grad()
def test_two_pipelines_on_one_transformer_share_a_cache() -> None:
    t = tiny.qwen_image()
    want = t.run(steps=3)
    sibling = diffusers.QwenImagePipeline.from_pipe(t.pipe)
    cache = omnireuse.install_modulation_cache(t.pipe, release="disk")
    assert omnireuse.install_modulation_cache(sibling, release="disk") is cache
    assert torch.equal(tiny.Tiny(sibling, t.inputs).run(steps=3), want)
    assert torch.equal(t.run(steps=3), want)
    assert omnireuse.uninstall_modulation_cache(sibling)
    assert torch.equal(t.run(steps=3), want)


@torch.no_grad()
def test_layerwise_casting_and_saved_weights(tmp_path: Any) -> None:
    t = tiny.qwen_image()
    model = t.pipe.transformer
    model.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    want = t.run(steps=3)
    cache = omnireuse.install_modulation_cache(t.pipe, release="disk")
    assert cache is not None
    for _ in range(3):
        assert torch.equal(t.run(steps=3), want)
    assert cache.details()["reused"] > cache.details()["computed"]
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(each.float(), again[name].float()) for name, each in model.state_dict().items())
