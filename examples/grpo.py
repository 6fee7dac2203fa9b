"""GRPO-style rollouts with a prompt-embedding cache, and the proof that no stale embedding was used.

Each round draws several images a prompt, scores them, compares each with its group and updates the text encoder's
weights a little. The cache serves the repeated prompts of a round; the update makes it forget them. The proof: every
embedding that a rollout used is compared, bit by bit, with a direct encode by the weights of that moment.

Run: python examples/grpo.py [--rounds 3] [--prompts 4] [--seeds 4]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache


class TinyPipeline:
    """A text-to-image pipeline small enough to train in a second: characters in, eight by eight pixels out."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.text_encoder = nn.Sequential(nn.Embedding(128, 16), nn.Linear(16, 16)).eval()
        self.decoder = nn.Linear(16, 64)

    def encode_prompt(self, prompt: str) -> torch.Tensor:
        """One row of 16 numbers."""
        return self.text_encoder(torch.tensor([[min(ord(c), 127) for c in prompt]])).mean(1)

    def __call__(self, prompt: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The image of a prompt and a seed, and the embedding it was made from."""
        with torch.no_grad():
            embedding = self.encode_prompt(prompt)
        noise = torch.randn(1, 16, generator=torch.Generator().manual_seed(seed))
        return self.decoder(embedding + 0.1 * noise), embedding


def reward(image: torch.Tensor) -> torch.Tensor:
    """Brighter is better."""
    return image.mean()


def main(rounds: int = 3, prompts: int = 4, seeds: int = 4) -> dict[str, int]:
    """Run, print each round, and return the counts; RuntimeError if a rollout used a stale embedding."""
    pipeline = TinyPipeline()
    cache = install_prompt_embed_cache(pipeline, max_size=prompts)
    optimizer = torch.optim.AdamW(pipeline.text_encoder.parameters(), lr=1e-2)
    names = [f"scene number {i}" for i in range(prompts)]
    num_checked = 0
    for number in range(rounds):
        used, advantages = [], []
        for name in names:
            group = [pipeline(name, seed) for seed in range(seeds)]
            rewards = torch.stack([reward(image).detach() for image, _ in group])
            advantages.append((rewards - rewards.mean()) / (rewards.std() + 1e-6))
            used += [(name, embedding) for _, embedding in group]
        for name, embedding in used:
            with torch.no_grad():
                fresh = TinyPipeline.encode_prompt(pipeline, name)  # past the cache
            if not torch.equal(embedding, fresh):
                raise RuntimeError(f"round {number}: {name!r} was drawn from an embedding of older weights")
            num_checked += 1
        loss = torch.zeros(())
        for name, advantage in zip(names, advantages, strict=True):
            embedding = TinyPipeline.encode_prompt(pipeline, name)  # with gradients, so past the cache
            for seed in range(seeds):
                noise = torch.randn(1, 16, generator=torch.Generator().manual_seed(seed))
                loss = loss - advantage[seed] * reward(pipeline.decoder(embedding + 0.1 * noise))
        loss = loss - 0.1 * sum(reward(pipeline.decoder(TinyPipeline.encode_prompt(pipeline, n))) for n in names)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"round {number}: {cache.hits} hits, {cache.misses} encodes so far")
    counts = {"hits": cache.hits, "encodes": cache.misses, "checked": num_checked}
    print(f"{num_checked} embeddings used, all of the weights of their moment; {counts['encodes']} encodes")
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in ("rounds", "prompts", "seeds"):
        parser.add_argument(f"--{field}", type=int, default={"rounds": 3}.get(field, 4))
    main(**vars(parser.parse_args()))
