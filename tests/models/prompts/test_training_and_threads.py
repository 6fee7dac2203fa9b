"""Training and threads beside the prompt cache of real diffusers pipelines."""

import threading

import torch

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from tests.helpers.prompt_pipelines import ALL, flux, stable_diffusion

from .test_pipelines import same


def test_an_update_of_the_denoiser_keeps_every_entry():
    pipeline, kwargs = stable_diffusion(), ALL["sd"][1]
    cache = install_prompt_embed_cache(pipeline)
    weights = list(pipeline.unet.parameters())
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    for _ in range(3):
        with torch.no_grad():
            for prompt in "ab":
                pipeline.encode_prompt(prompt=prompt, **kwargs)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert (cache.hits, cache.misses, len(cache.store)) == (4, 2, 2)


def test_an_encoder_in_training_gets_its_gradients_at_each_step():
    pipelines, call = [flux(), flux()], {"prompt": "a cat"} | ALL["flux"][1]
    cache = install_prompt_embed_cache(pipelines[0])
    for _ in range(3):
        steps = []
        for pipeline in pipelines:
            with torch.no_grad():
                pipeline.encode_prompt(**call)
                pipeline.encode_prompt(**call)
            found = [each for each in pipeline.encode_prompt(**call) if each is not None and each.requires_grad]
            pipeline.text_encoder.zero_grad()
            sum(each.square().sum() for each in found).backward()
            torch.optim.SGD(pipeline.text_encoder.parameters(), lr=1e-4).step()
            steps.append([found, [weight.grad for weight in pipeline.text_encoder.parameters()]])
        same(*steps)
    assert any(grad is not None and grad.any() for grad in steps[0][1])
    assert (cache.hits, cache.misses, cache.bypassed_by["gradient"]) == (3, 3, 3)


def test_eight_threads_encode_equal_prompts_once():
    pipeline, kwargs = flux(), ALL["flux"][1]
    with torch.no_grad():
        want = {prompt: pipeline.encode_prompt(prompt=prompt, **kwargs) for prompt in "abc"}
    cache = install_prompt_embed_cache(pipeline)
    together, found = threading.Barrier(8), []

    @torch.no_grad()
    def work():
        together.wait()
        found.extend([(prompt, pipeline.encode_prompt(prompt=prompt, **kwargs)) for prompt in "abcabc"])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), cache.misses, cache.hits) == (48, 3, 45)
    for prompt, got in found:
        same(got, want[prompt])
