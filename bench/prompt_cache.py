"""What a prompt-embedding hit costs: in the process, on disk and in Redis, alone and from eight threads.

``python -m bench prompt_cache [--operations 100000]``. The encoders have the structure of CLIP-L and T5-XXL but no data
(the meta device) and return stored tensors of the true shapes: the cache's own cost remains. Best of several repeats.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import socket
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cachetools
import torch
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from omnireuse.core.stores.disk import DiskTier
from omnireuse.core.stores.redis import RedisTier
from omnireuse.core.stores.tier import Tier
from omnireuse.diffusion.cache.prompt_embed_cache import (
    PromptCacheOptions,
    PromptEmbedCache,
    install_prompt_embed_cache,
    uninstall_prompt_embed_cache,
)
from omnireuse.diffusion.prompts.keys import KeyRules, freeze


class FluxSized:
    """encode_prompt with Flux's signature, encoders and shapes: 77 CLIP and 512 T5 tokens."""

    def __init__(self) -> None:
        with torch.device("meta"):
            self.text_encoder = CLIPTextModel(
                CLIPTextConfig(hidden_size=768, num_hidden_layers=12, intermediate_size=3072, num_attention_heads=12)
            ).eval()
            self.text_encoder_2 = T5EncoderModel(
                T5Config(d_model=4096, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu")
            ).eval()
        self.outputs = (torch.zeros(1, 512, 4096, dtype=torch.bfloat16), torch.zeros(1, 768), torch.zeros(512, 3))

    def encode_prompt(
        self,
        prompt: str,
        prompt_2: str | None = None,
        device: torch.device | None = None,
        num_images_per_prompt: int = 1,
        prompt_embeds: torch.Tensor | None = None,
        pooled_prompt_embeds: torch.Tensor | None = None,
        max_sequence_length: int = 512,
        lora_scale: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Stored tensors; the encoders are read only, as far as the cache can tell."""
        if self.text_encoder is None or self.text_encoder_2 is None:
            raise ValueError("no encoders")
        _ = (self.text_encoder, self.text_encoder_2)
        return self.outputs


def best_us(function: Callable[[], Any], number: int = 10, repeats: int = 500) -> float:
    """Microseconds a call, best of many short repeats: one of them falls between the machine's other work."""
    return min(timeit.repeat(function, number=number, repeat=repeats)) / number * 1e6


def row(what: str, value: float, unit: str = "us") -> None:
    """One line of the table."""
    print(f"{what:<74}{value:>12.2f} {unit}")


def hits_in_process() -> None:
    """A whole hit, keys included, with and without reading all 415 version counters."""
    prompt = "a photograph of an astronaut riding a horse on the beach at sunset, " * 5
    for weights in ("versions", "told"):
        pipeline = FluxSized()
        install_prompt_embed_cache(pipeline, options=PromptCacheOptions(weights=weights))
        device = torch.device("cpu")
        call = functools.partial(
            pipeline.encode_prompt,
            prompt=prompt,
            prompt_2=None,
            device=device,
            num_images_per_prompt=1,
            prompt_embeds=None,
            pooled_prompt_embeds=None,
            max_sequence_length=512,
            lora_scale=None,
        )
        call()
        row(f"hit, 77-token CLIP + 512-token T5, weights={weights!r}", best_us(call))
        uninstall_prompt_embed_cache(pipeline)


def keys() -> None:
    """Time to make the key of one prompt, by its length."""
    for length in (100, 1_000, 10_000, 100_000, 1_000_000):
        text = "x" * length
        row(f"key of a prompt of {length:,} characters", best_us(lambda text=text: freeze(text, KeyRules()), 3, 50))


def beside_others() -> None:
    """get of a present key, beside caches that know nothing of types, bytes or threads."""
    cache = PromptEmbedCache()
    cache.put("prompt", torch.zeros(1))
    other: cachetools.LRUCache[str, torch.Tensor] = cachetools.LRUCache(32)
    other["prompt"] = torch.zeros(1)
    cached = functools.lru_cache(32)(lambda text: text)
    cached("prompt")
    row("PromptEmbedCache.get of a text", best_us(lambda: cache.get("prompt")))
    row("cachetools.LRUCache.get", best_us(lambda: other.get("prompt")))
    row("functools.lru_cache", best_us(lambda: cached("prompt")))


def threads(operations: int) -> None:
    """Eight threads of gets, puts and calls; the counts must add up and no prompt may be encoded twice."""
    pipeline = FluxSized()
    pipeline.text_encoder = pipeline.text_encoder_2 = torch.nn.Linear(1, 1).eval()
    encoded: list[str] = []

    def encode_prompt(prompt: str) -> torch.Tensor:
        encoded.append(prompt)
        return torch.zeros(8)

    pipeline.encode_prompt = encode_prompt  # type: ignore[method-assign]  # a counting stand-in
    cache = install_prompt_embed_cache(pipeline, max_size=2048)
    assert cache is not None

    def work(seed: int) -> None:
        for i in range(operations):
            if i % 10 == 9:
                cache.put((seed, i % 7), i)
            else:
                pipeline.encode_prompt(f"prompt {(i * 31 + seed) % 1000}")

    start = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    seconds = time.perf_counter() - start
    calls = 8 * (operations - operations // 10)
    if cache.hits + cache.misses != calls or len(encoded) != len(set(encoded)):
        raise SystemExit(
            f"lost or duplicated: {cache.details()}, {len(encoded)} encodes of {len(set(encoded))} prompts"
        )
    row(f"8 threads x {operations:,} mixed operations, none lost, none encoded twice", seconds * 1e6 / calls)


def tiers() -> None:
    """A 4 MB entry, from the byte store to tensors."""
    value = (torch.randn(1, 512, 4096).bfloat16(), torch.randn(1, 768), None)

    def measure(tier: Tier) -> None:
        assert tier.put("k", value)
        row(f"hit of a 4 MB entry, {tier.name}", best_us(lambda: tier.lookup("k"), 1, 10) / 1000, "ms")

    with tempfile.TemporaryDirectory() as directory:
        measure(DiskTier(directory, max_bytes=1 << 30))
        server = shutil.which("redis-server") or shutil.which("valkey-server")
        if server is None:
            print("hit of a 4 MB entry, redis: skipped, no redis-server or valkey-server here")
            return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL)
        try:
            tier = RedisTier(f"redis://127.0.0.1:{port}/0", timeout_s=10)
            while not tier.put("up", 1):
                tier.breaker.report(ok=True)
                time.sleep(0.05)
            measure(tier)
            tier.close()
        finally:
            process.terminate()
            process.wait(10)


def rollout() -> None:
    """64 prompts x 8 seeds through a small T5 on the CPU, with and without the cache."""
    torch.manual_seed(0)
    encoder = T5EncoderModel(T5Config(d_model=256, d_ff=512, d_kv=32, num_heads=8, num_layers=4, vocab_size=128)).eval()

    class Pipeline:
        text_encoder = encoder

        @torch.no_grad()
        def encode_prompt(self, prompt: str) -> torch.Tensor:
            tokens = torch.tensor([[ord(c) % 128 for c in prompt.ljust(64)[:64]]])
            return self.text_encoder(tokens).last_hidden_state

    def run(pipeline: Pipeline) -> float:
        start = time.perf_counter()
        for prompt in range(64):
            for _ in range(8):
                pipeline.encode_prompt(f"prompt number {prompt}")
        return time.perf_counter() - start

    pipeline = Pipeline()
    row("rollout 64 prompts x 8 seeds, without the cache", run(pipeline), "s")
    cache = install_prompt_embed_cache(pipeline, max_size=64)
    assert cache is not None
    row(f"rollout 64 prompts x 8 seeds, with it ({64} encodes)", run(pipeline), "s")
    if (cache.misses, cache.hits) != (64, 448):
        raise SystemExit(f"expected 64 encodes and 448 hits, got {cache.stats()}")


def main(options: list[str] | None = None) -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(prog="bench prompt_cache", description=__doc__)
    parser.add_argument("--only", choices=["hits", "keys", "others", "tiers", "rollout", "threads"], help="one part")
    parser.add_argument("--operations", type=int, default=100_000, help="of each of the eight threads")
    arguments = parser.parse_args(options)
    parts: dict[str, Callable[[], None]] = {
        "hits": hits_in_process,
        "keys": keys,
        "others": beside_others,
        "tiers": tiers,
        "rollout": rollout,
        "threads": lambda: threads(arguments.operations),
    }
    for name, part in parts.items():
        if arguments.only in (None, name):
            part()


if __name__ == "__main__":
    main()
