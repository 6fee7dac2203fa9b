"""What a prompt-embedding hit costs: in the process, by the size of the encoder, on disk, in Redis, and in a rollout.

    python -m bench prompt_cache [--only PART]

For ``hits`` the encoders have the structure of CLIP-L and T5-XXL but no data (the meta device) and return stored
tensors of the true shapes: the cache's own cost remains. Best of several repeats. ``rollout`` encodes for real.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from omnireuse.diffusion.cache.prompt_embed_cache import (
    install_prompt_embed_cache,
)
from omnireuse.stores.disk import DiskTier
from omnireuse.stores.redis import RedisTier
from omnireuse.stores.tier import Tier
from reference.captions import caption, held_out_scenes
from reference.load import SAMPLING, load_image_pipeline
from tests.helpers.prompt_pipelines import tokenizer

CLIP_L = {"num_hidden_layers": 12, "intermediate_size": 3072, "num_attention_heads": 12}


class FluxSized:
    """encode_prompt with Flux's signature, encoders and shapes: 77 CLIP and 512 T5 tokens."""

    def __init__(self) -> None:
        with torch.device("meta"):
            self.text_encoder = CLIPTextModel(CLIPTextConfig(hidden_size=768, **CLIP_L)).eval()
            t5 = T5Config(d_model=4096, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu")
            self.text_encoder_2 = T5EncoderModel(t5).eval()
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
        """Stored tensors, after a run of the encoders without data."""
        ids = torch.zeros(1, 77, dtype=torch.int64, device="meta")
        self.text_encoder(ids), self.text_encoder_2(ids)
        return self.outputs


def best_us(function: Callable[[], Any], number: int = 10, repeats: int = 500) -> float:
    """Microseconds a call, best of many short repeats: one of them falls between the machine's other work."""
    return min(timeit.repeat(function, number=number, repeat=repeats)) / number * 1e6


def row(what: str, value: float, unit: str = "us") -> None:
    """One line of the table."""
    print(f"{what:<74}{value:>12.2f} {unit}")


def hits_in_process() -> None:
    """A whole hit, keys and the look at 416 weights included."""
    prompt = "a photograph of an astronaut riding a horse on the beach at sunset, " * 5
    pipeline = FluxSized()
    install_prompt_embed_cache(pipeline)
    call = functools.partial(
        pipeline.encode_prompt,
        prompt=prompt,
        prompt_2=None,
        device=torch.device("cpu"),
        num_images_per_prompt=1,
        prompt_embeds=None,
        pooled_prompt_embeds=None,
        max_sequence_length=512,
        lora_scale=None,
    )
    call()
    row("hit, 77-token CLIP + 512-token T5", best_us(call))


class Layered:
    """encode_prompt with a tokenizer and a CLIP of so many layers, all of them small."""

    def __init__(self, num_layers: int) -> None:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 128}
        config = CLIPTextConfig(num_hidden_layers=num_layers, bos_token_id=3, eos_token_id=1, **sizes)
        self.text_encoder, self.tokenizer = CLIPTextModel(config).eval(), tokenizer()

    @torch.no_grad()
    def encode_prompt(self, prompt: str) -> torch.Tensor:
        """The last hidden state."""
        ids = self.tokenizer(prompt, return_tensors="pt").input_ids
        return self.text_encoder(ids).last_hidden_state


class Tiny:
    """encode_prompt with one small layer."""

    def __init__(self) -> None:
        self.text_encoder, self.style = torch.nn.Linear(4, 4), "plain"

    @torch.no_grad()
    def encode_prompt(self, prompt: str) -> torch.Tensor:
        """Some numbers."""
        return self.text_encoder(torch.full((1, 4), float(len(prompt + self.style))))


def layers() -> None:
    """A whole hit, and what a miss adds to the call, by the size of the encoder."""
    for what, pipeline in (
        ("tiny pipeline", Tiny()),
        *((f"CLIP of {n} layers", Layered(n)) for n in (1, 24, 96)),
    ):
        prompts = itertools.count()

        def encode(p: Any = pipeline, prompts: Any = prompts) -> None:
            p.encode_prompt(f"a cat {next(prompts)}")

        plain = best_us(encode, 1, 40)
        install_prompt_embed_cache(pipeline)
        encode()
        missed = best_us(encode, 1, 40)
        pipeline.encode_prompt("a cat")
        row(f"{what}: hit", best_us(functools.partial(pipeline.encode_prompt, "a cat"), 10, 200))
        row("... call without the cache", plain)
        row("... miss, from the second one on", missed)


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


PROMPTS, SEEDS = 64, 8


def rollout() -> None:
    """64 prompts x 8 seeds through ``encode_prompt`` of the reference image pipeline; its images, on fewer of them."""
    pipeline = load_image_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    prompts = [caption(scene) for scene in held_out_scenes(PROMPTS)]

    def encode(names: list[str]) -> float:
        start = time.perf_counter()
        with torch.no_grad():
            for name in names:
                for _ in range(SEEDS):
                    for text in (name, SAMPLING["negative_prompt"]):
                        pipeline.encode_prompt(text, max_sequence_length=SAMPLING["max_sequence_length"], device="cpu")
        return time.perf_counter() - start

    def draw(names: list[str], steps: int = 4) -> float:
        start = time.perf_counter()
        for name in names:
            for seed in range(2):
                generator = torch.Generator().manual_seed(seed)
                pipeline(name, generator=generator, **SAMPLING | {"num_inference_steps": steps})
        return time.perf_counter() - start

    encode(prompts[:1])
    row(f"reference pipeline, {PROMPTS} prompts x {SEEDS} seeds, encode_prompt without the cache", encode(prompts), "s")
    row("... 4 prompts x 2 seeds drawn in 4 steps without the cache", draw(prompts[:4]), "s")
    cache = install_prompt_embed_cache(pipeline, max_size=2 * PROMPTS)
    assert cache is not None
    row(f"... encode_prompt with it ({PROMPTS + 1} encodes)", encode(prompts), "s")
    if (cache.misses, cache.hits) != (PROMPTS + 1, 2 * PROMPTS * SEEDS - PROMPTS - 1):
        raise SystemExit(f"expected {PROMPTS + 1} encodes, got {cache.stats()}")
    row("... drawn with it", draw(prompts[:4]), "s")
    row("... bytes of its entries", cache.details()["num_bytes"] / 2**20, "MiB")


PARTS: dict[str, Callable[[], None]] = {"hits": hits_in_process, "layers": layers, "tiers": tiers, "rollout": rollout}


def main(options: list[str] | None = None) -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench prompt_cache", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=PARTS, help="one part")
    arguments = parser.parse_args(options)
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            part()


if __name__ == "__main__":
    main()
