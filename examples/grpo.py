"""GRPO-style rollouts with a prompt-embedding cache, and the proof that no stale embedding was used.

Each round draws several images a prompt with the reference image pipeline, scores what they show, compares each with
its group and updates the text encoders a little. The cache serves the repeated prompts of a round; the update makes
it forget them. The proof: whatever the denoiser was handed in a rollout is compared, bit by bit, with a direct encode
by the weights of that moment.

Run: python examples/grpo.py [--rounds 3] [--prompts 4] [--seeds 4] [--steps 12]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from reference.captions import caption, held_out_scenes
from reference.checker import check
from reference.load import SAMPLING, load_image_pipeline


class Rollouts:
    """Draws images and keeps what the denoiser was handed, and what came out."""

    def __init__(self, pipeline: Any, steps: int) -> None:
        self.pipeline = pipeline
        self.sampling = SAMPLING | {"num_inference_steps": steps}
        self.calls: list[dict[str, torch.Tensor]] = []
        pipeline.transformer.register_forward_pre_hook(
            lambda _module, _args, kwargs: self.calls.append(dict(kwargs)), with_kwargs=True
        )

    def draw(self, prompt: str, seed: int) -> tuple[np.ndarray[Any, Any], torch.Tensor]:
        """The image (64, 64, 3) in 0..1 of a prompt and a seed, and its latents (1, T, C)."""
        latents = []

        def keep(_pipeline: Any, _step: int, _time: Any, state: dict[str, Any]) -> dict[str, Any]:
            latents.append(state["latents"])
            return {}

        generator = torch.Generator().manual_seed(seed)
        result = self.pipeline(
            prompt, generator=generator, output_type="np", callback_on_step_end=keep, **self.sampling
        )
        return result.images[0], latents[-1]

    def encode(self, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Embedding and pooled embedding by the weights of now, past the cache."""
        length = self.sampling["max_sequence_length"]
        embeds, pooled, _ = type(self.pipeline).encode_prompt(
            self.pipeline, prompt, None, device=torch.device("cpu"), max_sequence_length=length
        )
        return embeds, pooled

    def check_embeddings(self, prompt: str) -> int:
        """How many denoiser calls of the last image were compared; RuntimeError if one had an older embedding."""
        with torch.no_grad():
            fresh = [self.encode(text) for text in (prompt, self.sampling["negative_prompt"])]
        for call in self.calls:
            used = call["encoder_hidden_states"], call["pooled_projections"]
            if not any(all(map(torch.equal, used, pair)) for pair in fresh):
                raise RuntimeError(f"{prompt!r} was drawn from an embedding of older weights")
        return len(self.calls)

    def loss(self, prompt: str, latents: torch.Tensor) -> torch.Tensor:
        """Flow-matching loss of latents that were drawn, through text encoders that learn."""
        embeds, pooled = self.encode(prompt)
        noise, time = torch.randn_like(latents), torch.rand(1)
        given = self.calls[-1] | {"encoder_hidden_states": embeds, "pooled_projections": pooled}
        given |= {"hidden_states": (1 - time) * latents + time * noise, "timestep": time}
        velocity = self.pipeline.transformer(**given)[0]
        return (velocity - (noise - latents)).square().mean()


def main(rounds: int = 3, prompts: int = 4, seeds: int = 4, steps: int = 12) -> dict[str, int]:
    """Run, print each round, and return the counts; RuntimeError if a rollout used a stale embedding."""
    torch.manual_seed(0)
    pipeline = load_image_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    pipeline.transformer.requires_grad_(False)
    cache = install_prompt_embed_cache(pipeline, max_size=prompts + 1)  # the negative prompt is one too
    assert cache is not None
    rollouts = Rollouts(pipeline, steps)
    encoders = [*pipeline.text_encoder.parameters(), *pipeline.text_encoder_2.parameters()]
    optimizer = torch.optim.AdamW(encoders, lr=1e-4)
    scenes = held_out_scenes(prompts)
    num_checked = 0
    for number in range(rounds):
        drawn, rewards = [], torch.zeros(prompts, seeds)
        for i, scene in enumerate(scenes):
            for seed in range(seeds):
                rollouts.calls.clear()
                image, latents = rollouts.draw(caption(scene), seed)
                num_checked += rollouts.check_embeddings(caption(scene))
                verdict = check(scene, image)
                rewards[i, seed] = sum(verdict.values()) / len(verdict)
                drawn.append((caption(scene), latents))
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
        # The gradient of images better than their group points towards them, of worse ones away.
        optimizer.zero_grad()
        for (prompt, latents), advantage in zip(drawn, advantages.flatten(), strict=True):
            (advantage * rollouts.loss(prompt, latents) / len(drawn)).backward()
        for parameter in encoders:  # a group without differences has no gradient, and must still be seen to change
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        optimizer.step()
        print(f"round {number}: reward {rewards.mean():.3f}, {cache.hits} hits and {cache.misses} encodes so far")
    print(f"{num_checked} denoiser calls checked: every embedding was of the weights of its moment")
    return {"hits": cache.hits, "encodes": cache.misses, "checked": num_checked}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field, default in (("rounds", 3), ("prompts", 4), ("seeds", 4), ("steps", 12)):
        parser.add_argument(f"--{field}", type=int, default=default)
    main(**vars(parser.parse_args()))
