"""The protocol of the caches' papers on any model: 200 prompts of DrawBench, 28 and 50 steps, all methods.

    python -m bench drawbench MODEL --prompts drawbench.csv [--only METHOD …] [--call JSON] [--out out/drawbench]

Per picture PSNR and SSIM to the full run, and LPIPS, CLIP score and ImageReward where they are installed; of each
method's setting nearest to half of the work the latency and the peak memory. Killed and started again, it goes on where
it was. docs/compare.md says where the prompts come from, how long it takes, and where results go.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from bench._scores import load_scores
from omnireuse.cli.options import read_prompts
from omnireuse.errors import ConfigError, StateError
from omnireuse_lab.compare.run import compare_pipeline, show
from omnireuse_lab.peers import peers_among

CALIBRATION = Path(__file__).parent / "calibration_prompts.txt"
"""Prompts for methods that calibrate themselves, none of DrawBench's."""


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``results.json`` and its page."""
    parser = argparse.ArgumentParser(prog="python -m bench drawbench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", help="id on the Hugging Face Hub, or folder, of a diffusers pipeline")
    parser.add_argument("--prompts", type=Path, help="one prompt a line, or CSV with a column Prompts")
    parser.add_argument("--steps", type=int, nargs="+", default=[28, 50])
    parser.add_argument("--guidance", type=float, nargs="+", default=[], help="default: that of the pipeline")
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="methods or families; default: all")
    parser.add_argument("--profile", type=Path, nargs="+", default=[])
    parser.add_argument("--calibration-prompts", type=Path, default=CALIBRATION)
    parser.add_argument("--time", type=int, default=8, metavar="N", help="prompts for latency and memory; 0 is none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument(
        "--call", type=lambda text: dict(json.loads(text)), default={}, metavar="JSON", help="arguments of the pipeline"
    )
    parser.add_argument("--out", type=Path, default=Path("out/drawbench"), help="folder; one for each model")
    options = parser.parse_args(arguments)
    if options.model is None or options.prompts is None:
        raise ConfigError("drawbench: MODEL and --prompts must be given; docs/compare.md says where the prompts are")
    file = options.out / "results.json"
    comparison = compare_pipeline(
        options.model,
        read_prompts(options.prompts, "drawbench(--prompts"),
        steps=options.steps,
        guidance=options.guidance,
        profiles=options.profile,
        only=options.only,
        methods=peers_among(options.only),
        calibration_prompts=read_prompts(options.calibration_prompts, "drawbench(--calibration-prompts"),
        seed=options.seed,
        timed=options.time,
        scores=load_scores(),
        device=options.device,
        dtype=options.dtype,
        out=file,
        command=f"python -m bench drawbench {options.model} --call '{json.dumps(options.call)}'",
        **options.call,
    )
    show(comparison, file, Console())
    if not comparison.complete:
        raise StateError(f"drawbench: interrupted; {file} holds what was measured, the same command goes on")


if __name__ == "__main__":
    main()
