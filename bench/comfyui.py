"""Step reuse inside ComfyUI beside ComfyUI's own EasyCache and LazyCache nodes and fewer steps, in the same runs.

    scripts/comfyui_venv.sh /tmp/comfyui
    COMFYUI=/tmp/comfyui/ComfyUI /tmp/comfyui/bin/python -m bench comfyui
    COMFYUI=/tmp/comfyui/ComfyUI /tmp/comfyui/bin/python -m bench comfyui --samplers all --cfg 1.5 6 --no-other-caches

Held-out captions on the small Flux, guidance 6 by default, PSNR in dB of the decoded image to the full run of the same
sampler and noise. Counted are the calls of the model, each with both parts of guidance in one batch. "Tuned" has made
three pictures of further captions before. Sweeps over samplers or guidance are written to ``comfyui_samplers.json``.

EasyCache adds to the model's input in place. Where the model computes in half precision, that input is a copy. In
float32, as here, it is the solver's own latents, which would be spoiled, so EasyCache is handed a copy.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from bench._common import new_parser, new_table, write_record
from omnireuse.errors import StateError
from omnireuse.pipelines.pictures import capped_psnr
from omnireuse_engines.comfyui import attach, plan_for
from omnireuse_lab.record import environment
from reference.case import IMAGES

SAMPLERS = ("euler", "dpmpp_2m", "heun", "euler_ancestral", "dpmpp_sde")
CFG = 6.0
SPEEDUPS = (1.6, 2.5)
TUNED_ON = 3
EASY_CACHE = (0.05, 0.1, 0.3)
LAZY_CACHE = (0.1, 0.3)
Variant = tuple[str, Callable[[Any], Any], int]


def main(arguments: list[str] | None = None) -> None:
    """Run, show a table and write ``comfyui.json``."""
    parser = new_parser("comfyui", __doc__)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), help="names, or all")
    parser.add_argument("--cfg", nargs="+", type=float, default=[CFG])
    parser.add_argument("--no-other-caches", action="store_true", help="leave EasyCache and LazyCache out")
    options = parser.parse_args(arguments)
    if "COMFYUI" not in os.environ:
        raise StateError("bench comfyui: COMFYUI must name ComfyUI's folder; scripts/comfyui_venv.sh makes one")
    os.environ |= {"OMNIREUSE_TUNE": "1", "OMNIREUSE_CACHE_DIR": tempfile.mkdtemp()}
    given, name = f"--prompts {options.prompts} --steps {options.steps}", "comfyui"
    if options.samplers != list(SAMPLERS) or options.cfg != [CFG]:
        name = "comfyui_samplers"
        given += f" --samplers {' '.join(options.samplers)} --cfg {' '.join(f'{cfg:g}' for cfg in options.cfg)}"
    if options.no_other_caches:
        given += " --no-other-caches"
    bench = Bench(options.prompts, options.steps, other_caches=not options.no_other_caches)
    names = bench.host.comfy.samplers.SAMPLER_NAMES if options.samplers == ["all"] else options.samplers
    found: dict[str, Any] = {}
    for cfg in options.cfg:
        at = f" at {cfg:g}" if len(options.cfg) > 1 else ""
        for sampler in track(names, f"samplers at cfg {cfg:g}"):
            found[f"{sampler}{at}"] = bench.measure(sampler, cfg)
            record = {"command": f"python -m bench comfyui {given}", "environment": environment(), "samplers": found}
            write_record(record, options.out, name, quiet=True)
    show(found, Console())
    print(f"wrote {options.out / name}.json")


class Bench:
    """One model with its prompts."""

    def __init__(self, prompts: int, steps: int, *, other_caches: bool = True) -> None:
        from engines.tests.hosts.comfyui import host

        self.host, self.steps, self.model, self._other_caches = host, steps, host.load_model(), other_caches
        pipe = IMAGES.load(None)
        self._vae = pipe.vae
        self._prompts = range(prompts)
        scenes = IMAGES.held_out(prompts + TUNED_ON, seed=1000)
        self.conditions = [self._condition(pipe, IMAGES.caption(scene)) for scene in scenes]
        self.negative = self._condition(pipe, "")

    def _condition(self, pipe: Any, prompt: str) -> list[Any]:
        with torch.no_grad():
            tokens, pooled, _ = pipe.encode_prompt(prompt, prompt, max_sequence_length=20)
        return [[tokens, {"pooled_output": pooled}]]

    def measure(self, sampler: str, cfg: float) -> dict[str, Any]:
        """For each variant: calls of the model, and PSNR of each prompt; "error" where a cache fails."""
        full = [self._run(self.model, sampler, cfg, self.steps, which) for which in self._prompts]
        found: dict[str, Any] = {"full": {"calls": full[0][1]}}
        for name, change, steps in self._variants(sampler, cfg):
            try:
                runs = [self._run(change(self.model), sampler, cfg, steps, which) for which in self._prompts]
            except Exception as error:
                if "Cache" not in name:
                    raise
                found[name] = {"error": f"{type(error).__name__}: {error}"}
                continue
            found[name] = {
                "calls": statistics.mean(calls for _, calls in runs),
                "psnr": [capped_psnr(image, truth) for (image, _), (truth, _) in zip(runs, full, strict=True)],
            }
        return found

    def _variants(self, sampler: str, cfg: float) -> Iterator[Variant]:
        yield "Omnireuse, default", lambda model: attach(model, plan_for()), self.steps
        tuned = attach(self.model, plan_for(), tune=True)
        for which in range(len(self._prompts), len(self.conditions)):
            self._run(tuned, sampler, cfg, self.steps, which)
        yield "Omnireuse, tuned", lambda _: tuned, self.steps
        for speedup in SPEEDUPS:
            yield (
                f"Omnireuse, speedup {speedup:g}",
                lambda model, speedup=speedup: attach(model, plan_for(speedup=speedup)),
                self.steps,
            )
        if self._other_caches:
            yield from self._variants_of_comfyui()
        for speedup in sorted((2.0, *SPEEDUPS)):
            yield f"{round(self.steps / speedup)} steps", lambda model: model, round(self.steps / speedup)

    def _variants_of_comfyui(self) -> Iterator[Variant]:
        from comfy_extras import nodes_easycache as easy

        for node, name, thresholds in (
            (easy.EasyCacheNode, "EasyCache", EASY_CACHE),
            (easy.LazyCacheNode, "LazyCache", LAZY_CACHE),
        ):
            for threshold in thresholds:
                yield (
                    f"{name}, threshold {threshold:g}",
                    lambda model, node=node, threshold=threshold: node.execute(
                        with_own_input(model), threshold, 0.15, 0.95, False
                    ).args[0],
                    self.steps,
                )

    def _run(self, model: Any, sampler: str, cfg: float, steps: int, which: int) -> tuple[np.ndarray, int]:
        """The image, and how often the model was called."""
        counted = model.clone()
        counter = self.host.CallCounter(counted)
        latents = self.host.sample(
            counted,
            sampler,
            steps=steps,
            cfg=cfg,
            seed=which,
            positive=self.conditions[which],
            negative=self.negative,
        )
        with torch.no_grad():
            image = self._vae.decode(
                latents.clone() / self._vae.config.scaling_factor + self._vae.config.shift_factor
            ).sample
        return (image[0].permute(1, 2, 0) / 2 + 0.5).clamp(0, 1).numpy(), len(counter.sigmas)


def with_own_input(model: Any) -> Any:
    """A clone of which every call gets a copy of the latents."""
    clone = model.clone()
    clone.add_wrapper_with_key(
        "diffusion_model", "copy", lambda executor, x, *rest, **named: executor(x.clone(), *rest, **named)
    )
    return clone


def show(samplers: dict[str, Any], console: Console) -> None:
    """One row for each sampler and variant."""
    table = new_table("calls of the model, PSNR in dB to the full run", "sampler", "variant", "calls", "mean (lowest)")
    for sampler, found in samplers.items():
        table.add_row(sampler, "full", f"{found['full']['calls']}", "")
        for name, row in found.items():
            if "error" in row:
                table.add_row("", name, "failed", row["error"])
            elif name != "full":
                shown = f"{statistics.mean(row['psnr']):.1f} ({min(row['psnr']):.0f})"
                table.add_row("", name, f"{row['calls']:.1f}", shown)
    console.print(table)
