"""Profiles that the node *Omnireuse calibrate* makes, beside the node *Omnireuse*, at equal numbers of computed steps.

    scripts/comfyui_venv.sh /tmp/comfyui
    COMFYUI=/tmp/comfyui/ComfyUI /tmp/comfyui/bin/python -m bench comfyui_profile

The small Flux in ComfyUI's samplers, 28 steps. Each profile is made on captions of its own, and judged on others with
other noise: PSNR in dB of the decoded image to the full run of the same sampler and noise. Writes
``comfyui_profile.json``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench._common import new_table, no_warnings, write_record
from omnireuse import Profile
from omnireuse.errors import StateError
from omnireuse.lab.record import environment
from omnireuse.pipelines.closeness import bootstrap, capped_psnr

STEPS, SPEEDUPS = 28, (2.0, 3.0, 4.0)
SEED, SEED_OF_JUDGED = 5, 77
"""Of captions."""


def main(arguments: list[str] | None = None) -> None:
    """Run, show a table and write the record."""
    parser = argparse.ArgumentParser(prog="python -m bench comfyui_profile", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sampler", default="euler")
    parser.add_argument("--cfg", type=float, default=6.0)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--judged", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    if "COMFYUI" not in os.environ:
        raise StateError("bench comfyui_profile: COMFYUI must name ComfyUI's folder; scripts/comfyui_venv.sh makes one")
    with no_warnings():
        rows = list(Bench(options.prompts, options.judged).rows(options.sampler, options.cfg))
    given = f"--sampler {options.sampler} --cfg {options.cfg:g} --prompts {options.prompts} --judged {options.judged}"
    command = f"python -m bench comfyui_profile {given}"
    write_record({"command": command, "environment": environment(), "rows": rows}, options.out, "comfyui_profile")
    show(rows, Console())


class Bench:
    """One model with captions to calibrate on, and captions to judge on."""

    def __init__(self, prompts: int, judged: int) -> None:
        from tests.hosts.comfyui import host, shapes

        self._host, self._shapes, self._model = host, shapes.Shapes(), host.load_model()
        self._nodes = host.nodes().NODE_CLASS_MAPPINGS
        captions = self._shapes.captions(judged, seed=SEED_OF_JUDGED)
        self._judged = list(map(self._shapes.encode, captions))
        others = [each for each in self._shapes.captions(prompts + judged, seed=SEED) if each not in captions]
        self._searched = list(map(self._shapes.encode, others[:prompts]))
        self._negative = self._shapes.encode("")

    def rows(self, sampler: str, cfg: float) -> Iterator[dict[str, Any]]:
        """One for each speed-up."""
        with tempfile.TemporaryDirectory() as folder:
            path = self._calibrated(sampler, cfg, folder)
            profile = Profile.load(path)
            full = self._images(self._model, sampler, cfg)
            for speedup in SPEEDUPS:
                plan = profile.best(speedup=speedup)
                psnr = {}
                for name, node, given in (
                    ("profile", "OmnireuseProfile", ("as wired", speedup, path)),
                    ("default", "Omnireuse", (speedup, 0.0)),
                ):
                    (patched,) = self._nodes[node]().patch(self._model, *given)
                    images = self._images(patched, sampler, cfg)
                    psnr[name] = [capped_psnr(made, true) for made, true in zip(images, full, strict=True)]
                gain = bootstrap([new - old for new, old in zip(psnr["profile"], psnr["default"], strict=True)])
                yield {
                    "sampler": sampler,
                    "cfg": cfg,
                    "computed": len(plan.steps),
                    "forecaster": plan.forecaster,
                    "runs": profile.cost_in_runs,
                    "promised": plan.promised,
                    **{name: bootstrap(each).mean for name, each in psnr.items()},
                    "gain": gain.mean,
                    "low": gain.low,
                    "high": gain.high,
                }

    def _calibrated(self, sampler: str, cfg: float, folder: str) -> str:
        import folder_paths

        folder_paths.folder_names_and_paths["omnireuse"] = ([folder], {".json"})
        inputs = {
            "model": self._model,
            "latent_image": {"samples": torch.zeros(1, 8, 16, 16)},
            "vae": self._shapes,
            "seed": 0,
            "steps": STEPS,
            "cfg": cfg,
            "sampler_name": sampler,
            "scheduler": "simple",
            "denoise": 1.0,
            "name": "profile",
        }
        lists = {name: [value] for name, value in inputs.items()}
        with torch.inference_mode():
            node = self._nodes["OmnireuseCalibrate"]()
            made = node.calibrate(positive=self._searched, negative=[self._negative], **lists)
        return str(made["result"][0])

    def _images(self, model: Any, sampler: str, cfg: float) -> list[Any]:
        options = {"steps": STEPS, "cfg": cfg, "negative": self._negative}
        return [
            self._shapes.decode(self._host.sample(model, sampler, seed=10_000 + number, positive=positive, **options))[
                0
            ].numpy()
            for number, positive in enumerate(self._judged)
        ]


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """One line for each row."""
    table = new_table(
        f"PSNR in dB, {STEPS} steps", "sampler", "cfg", "computed", "weights", "runs", "promised", "profile", "default",
        "gain", "95 %",
    )  # fmt: skip
    for row in rows:
        figures = (f"{row[name]:.1f}" for name in ("runs", "promised", "profile", "default", "gain"))
        spread = f"{row['low']:.1f} to {row['high']:.1f}"
        fixed = (row["sampler"], f"{row['cfg']:g}", str(row["computed"]), row["forecaster"])
        table.add_row(*fixed, *figures, spread)
    console.print(table)
