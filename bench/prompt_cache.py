"""What the prompt-embedding cache costs: a hit and a miss beside the plain call, by the size of the encoder.

    python -m bench prompt_cache [--before REVISION] [--rounds N]

Each version is measured in a process of its own: the one of this checkout, and that of REVISION, taken from git. They
take turns, the best of all rounds counts, and a miss and the plain call alternate. All times are processor time of one
thread. A call of an encoder that is 16 wide costs what Python makes of its layers; at 512 arithmetic counts, too. Those
of Flux's size have no data (the meta device): of them only the hit is measured.
"""

from __future__ import annotations

import argparse
import functools
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from bench._common import new_parser, new_table, write_record
from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from tests.helpers.prompt_pipelines import tokenizer

TOP = Path(__file__).parents[1]
FIGURES = ("plain_us", "hit_us", "miss_us")


class Tiny:
    """encode_prompt with one small layer."""

    def __init__(self) -> None:
        self.text_encoder, self.style = torch.nn.Linear(4, 4), "plain"

    @torch.no_grad()
    def encode_prompt(self, prompt: str) -> torch.Tensor:
        """Some numbers."""
        return self.text_encoder(torch.full((1, 4), float(len(prompt + self.style))))


class Layered:
    """encode_prompt with a tokenizer and a CLIP of so many layers of a width."""

    def __init__(self, num_layers: int, width: int) -> None:
        sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": 2, "vocab_size": 128}
        config = CLIPTextConfig(num_hidden_layers=num_layers, bos_token_id=3, eos_token_id=1, **sizes)
        self.text_encoder, self.tokenizer = CLIPTextModel(config).eval(), tokenizer()

    @torch.no_grad()
    def encode_prompt(self, prompt: str) -> torch.Tensor:
        """The last hidden state."""
        ids = self.tokenizer(prompt, return_tensors="pt").input_ids
        return self.text_encoder(ids).last_hidden_state


class FluxSized:
    """encode_prompt with the encoders of Flux, a CLIP-L and a T5-XXL of 416 weights together."""

    def __init__(self) -> None:
        clip = {"num_hidden_layers": 12, "intermediate_size": 3072, "num_attention_heads": 12}
        t5 = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"}
        with torch.device("meta"):
            self.text_encoder = CLIPTextModel(CLIPTextConfig(hidden_size=768, **clip)).eval()
            self.text_encoder_2 = T5EncoderModel(T5Config(**t5)).eval()
        self.outputs = torch.zeros(1, 512, 4096, dtype=torch.bfloat16), torch.zeros(1, 768)

    @torch.no_grad()
    def encode_prompt(self, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Stored tensors, after a run of the encoders without data."""
        ids = torch.zeros(1, len(prompt), dtype=torch.int64, device="meta")
        self.text_encoder(ids), self.text_encoder_2(ids)
        return self.outputs


CASES: dict[str, Callable[[], Any]] = {
    "tiny pipeline": Tiny,
    "CLIP of 24 layers, 16 wide": functools.partial(Layered, 24, 16),
    "CLIP of 24 layers, 512 wide": functools.partial(Layered, 24, 512),
    "encoders of Flux": FluxSized,
}


def best_us(function: Callable[[], Any], number: int, repeats: int) -> float:
    """Microseconds of this thread's processor time a call, best of many short repeats."""
    return min(timeit.repeat(function, number=number, repeat=repeats, timer=time.thread_time)) / number * 1e6


def measure() -> None:
    """Print the figures of the version that this process has imported, by case."""
    torch.set_num_threads(1)
    found = {}
    for name, make in CASES.items():
        plain, cached = make(), make()
        install_prompt_embed_cache(cached)
        for prompt in ("a cat", "a dog", "a cat"):
            cached.encode_prompt(prompt)
        hit = best_us(functools.partial(cached.encode_prompt, "a cat"), 10, 200)
        if name == "encoders of Flux":
            found[name] = {"hit_us": hit}
            continue
        prompts, pairs = itertools.count(), []
        for _ in range(40):
            prompt = f"a cat {next(prompts)}"
            pairs.append([best_us(functools.partial(each.encode_prompt, prompt), 1, 1) for each in (plain, cached)])
        plain_us, miss_us = map(min, zip(*pairs, strict=True))
        found[name] = {"plain_us": plain_us, "hit_us": hit, "miss_us": miss_us}
    print(json.dumps(found))


def measured(source: Path) -> dict[str, dict[str, float]]:
    """The figures of the package in a folder, in a process of its own."""
    paths = os.pathsep.join(map(str, (source, TOP)))
    command = [sys.executable, "-c", "from bench import prompt_cache; prompt_cache.measure()"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]  # what `measure` printed


def unpacked(revision: str, folder: str) -> Path:
    """The sources of a revision."""
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=TOP, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return Path(folder) / "src"


def main(options: list[str] | None = None) -> None:
    """Measure, print a table and write the record."""
    parser: argparse.ArgumentParser = new_parser("prompt_cache", __doc__)
    parser.add_argument("--before", metavar="REVISION", help="measure the package of this revision as well")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each version")
    arguments = parser.parse_args(options)
    with tempfile.TemporaryDirectory() as folder:
        sources = {"now": TOP / "src"}
        if arguments.before:
            sources = {arguments.before: unpacked(arguments.before, folder)} | sources
        rounds = [(version, measured(source)) for _ in range(arguments.rounds) for version, source in sources.items()]
    rows = []
    for case, version in itertools.product(CASES, sources):
        each = [found[case] for name, found in rounds if name == version]
        best = {figure: round(min(one[figure] for one in each), 1) for figure in FIGURES if figure in each[0]}
        rows.append({"case": case, "version": version, **best})
    table = new_table("Microseconds a call", "case", "version", "plain call", "hit", "miss")
    for row in rows:
        table.add_row(row["case"], row["version"], *[str(row.get(figure, "")) for figure in FIGURES])
    Console().print(table)
    write_record({"rows": rows, "torch": torch.__version__}, arguments.out, "prompt_cache")


if __name__ == "__main__":
    main()
