"""Real diffusers pipelines with tiny random weights: what comes out is what came out before."""

import copy
import pickle

import pytest
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache, uninstall_prompt_embed_cache
from omnireuse.prompts.wrapper import CachedEncodePrompt
from tests.helpers.prompt_pipelines import flux, stable_diffusion


def same(got, want):
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.device, got.shape) == (want.dtype, want.device, want.shape)
        assert got.is_meta or torch.equal(got, want)
    elif isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other)
    else:
        assert got == want


@pytest.mark.parametrize(
    ("build", "more"),
    [(stable_diffusion, {"negative_prompt": "bad"}), (flux, {"negative_prompt": "bad", "true_cfg_scale": 2.0})],
)
def test_images_are_the_same_with_guidance_and_negative_prompt(build, more):
    pipeline = build()
    pipeline.set_progress_bar_config(disable=True)

    def image():
        generator = torch.Generator().manual_seed(0)
        kwargs = {"height": 16, "width": 16, "num_inference_steps": 2, "output_type": "latent", "generator": generator}
        return pipeline("a cat", **kwargs, **more).images

    want = image()
    cache = install_prompt_embed_cache(pipeline)
    assert torch.equal(image(), want)
    misses = cache.misses
    assert torch.equal(image(), want)
    assert cache.misses == misses
    assert cache.details()["mutated"] == 0


@pytest.mark.parametrize("way", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))], ids=["deepcopy", "pickle"])
def test_a_copied_pipeline_has_a_cache_of_its_own(way):
    pipeline = stable_diffusion()
    install_prompt_embed_cache(pipeline, max_size=5)
    args = {"device": "cpu", "num_images_per_prompt": 1, "do_classifier_free_guidance": False}
    want = pipeline.encode_prompt("a cat", **args)[0]
    twin = way(pipeline)
    assert isinstance(twin.encode_prompt, CachedEncodePrompt)
    assert twin.encode_prompt.pipeline is twin
    assert (twin.encode_prompt.cache.max_size, len(twin.encode_prompt.cache.store)) == (5, 0)
    with torch.no_grad():
        twin.text_encoder.get_parameter(
            "embeddings.token_embedding.weight"
            if hasattr(twin.text_encoder, "embeddings")
            else "text_model.embeddings.token_embedding.weight"
        ).add_(1)
    assert not torch.equal(twin.encode_prompt("a cat", **args)[0], want)
    assert torch.equal(pipeline.encode_prompt("a cat", **args)[0], want)
    assert uninstall_prompt_embed_cache(twin)
    assert "encode_prompt" not in vars(twin)


def test_training_flux_keeps_its_embeddings_and_training_an_encoder_drops_them():
    pipeline = flux()
    cache = install_prompt_embed_cache(pipeline)
    call = {"prompt": "a cat", "prompt_2": None, "device": "cpu", "max_sequence_length": 24}
    with torch.no_grad():
        pipeline.encode_prompt(**call)
        for trained, num_misses in (("transformer", 1), ("vae", 1), ("text_encoder", 2), ("text_encoder_2", 3)):
            next(getattr(pipeline, trained).parameters()).add_(1)
            pipeline.encode_prompt(**call)
            assert cache.misses == num_misses, trained
        pipeline.tokenizer.padding_side = "left"
        pipeline.encode_prompt(**call)
        assert cache.misses == 4
        pipeline.tokenizer_2 = copy.deepcopy(pipeline.tokenizer_2)  # another one of the same content
        pipeline.encode_prompt(**call)
    assert cache.misses == 4
