"""First, do no harm: the untuned default beside holding and plain fewer steps, worst cases first, on unlike models.

    python -m bench harm [--case movements …] [--grid] [--prompts 4] [--shared ../shared] [--out out/bench]

The five pipelines of the project, and others that no constant was chosen on: a Flux that draws in pixels (from
``../shared/models/pixel_flux``, where that is beside the checkout), a small U-Net of pixels, a flow in one
dimension, a model that predicts v under a cosine schedule, and one with EDM's preconditioning and Karras' levels.
``--grid`` asks for every solver, shift, guidance and budget, and takes hours.

PSNR in dB to the full run of the same solver for each picture. A case does harm where the default's mean is more than
half a decibel below the better of fewer steps and of holding over its own steps, or its 5 % quantile more than one.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

import omnireuse
from bench import _unlike
from bench._common import Row, Rows, new_table, parser_of, record_of
from bench._pixels import trained
from bench._player import shifted, solver
from omnireuse import Steps
from reference.case import CASES
from reference.drawing import Array

SEED = 31_000
TOP = Path(__file__).resolve().parents[1]
BUDGETS = ("28:14", "28:9", "28:7", "50:25", "50:15")
MEAN, QUANTILE = 0.5, 1.0
"""dB below the better rival that are no harm, in the mean and in the 5 % quantile."""

FLOW = {f"shift {shift}": partial(shifted, shift=shift) for shift in ("1", "3", "6")} | {
    "UniPC": solver("UniPCMultistepScheduler", prediction_type="flow_prediction", use_flow_sigmas=True),
    "Heun": solver("FlowMatchHeunDiscreteScheduler"),
}
GIVEN = {name: FLOW[name] for name in FLOW if name != "Heun"}
"""Of pipelines that give the sigmas, which diffusers' Heun for flows does not take."""
NOISE = {
    "DDIM": solver("DDIMScheduler", clip_sample=False),
    "DDIM, clipped": solver("DDIMScheduler", clip_sample=True),
    "DPM++ 2M": solver("DPMSolverMultistepScheduler"),
    "UniPC": solver("UniPCMultistepScheduler"),
    "Heun": solver("HeunDiscreteScheduler"),
    "ancestral": solver("EulerAncestralDiscreteScheduler"),
}
PIXELS = {name: NOISE[name] for name in ("DDIM", "DDIM, clipped", "DPM++ 2M")}
"""Those that diffusers' pipeline without conditions can use: it scales no input, and hands a generator to each step."""
KARRAS = {
    "Euler": solver("EulerDiscreteScheduler"),
    "DPM++ 2M": solver("DPMSolverMultistepScheduler", use_karras_sigmas=True),
    "Heun": solver("HeunDiscreteScheduler", use_karras_sigmas=True),
    "ancestral": solver("EulerAncestralDiscreteScheduler"),
}
PIXEL_SHIFTS: dict[str, Callable[[Any], Any]] = {f"shift {shift}": lambda _: None for shift in ("1", "1.5", "3", "6")}


class Model:
    """A pipeline that makes pictures in so many steps.

    Attributes:
        pipe: the pipeline.
        runs: its schedulers, by name.
        usual: its usual guidance; None where it has none.
    """

    pipe: Any
    runs: Mapping[str, Callable[[Any], Any]]
    usual: float | None = None

    def use(self, run: str, guidance: float) -> None:
        """Pictures from here on have this scheduler and guidance; 1 is none."""
        self.guidance = guidance
        if (scheduler := self.runs[run](self.config)) is not None:
            self.pipe.register_modules(scheduler=scheduler)

    def make(self, steps: int) -> Array:
        """The pictures, (B, …) in 0…1."""
        torch.manual_seed(SEED)
        return np.asarray(self._made(steps))

    def full(self, run: str, guidance: float, steps: int) -> Array:
        """`use`, then `make` with nothing in its way; the latest are kept."""
        self.use(run, guidance)
        asked = run, guidance, steps
        if getattr(self, "_full", (None,))[0] != asked:
            self._full = asked, self.make(steps)
        return self._full[1]

    def _made(self, steps: int) -> Any:
        """As `make`."""
        raise NotImplementedError

    @property
    def config(self) -> Any:
        """Of the pipeline's own scheduler."""
        if not hasattr(self, "_config"):
            self._config = self.pipe.scheduler.config
        return self._config


class Reference(Model):
    """One of the project's five."""

    def __init__(self, name: str, pictures: int) -> None:
        self._case = CASES[name]
        self.pipe, self.usual = self._case.load(), float(self._case.sampling[self._case.guidance])
        self.runs = NOISE if name == "shapes-sd" else GIVEN
        self._captions = [self._case.caption(scene) for scene in self._case.held_out(pictures, seed=SEED)]

    def _made(self, steps: int) -> Any:
        seeds, guidance = range(SEED, SEED + len(self._captions)), {self._case.guidance: self.guidance}
        return self._case.generate(self.pipe, self._captions, seeds, num_inference_steps=steps, **guidance)


class PixelFlux(Model):
    """The Flux in pixels, from the folder beside the checkout."""

    runs, usual = PIXEL_SHIFTS, 5.0

    def __init__(self, folder: Path, pictures: int) -> None:
        spec = importlib.util.spec_from_file_location("pixel_flux", folder / "pixel_flux.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.pipe = module.load()
        self._captions, self._latents = module.captions(pictures, 77), module.latents(pictures, 77)

    def use(self, run: str, guidance: float) -> None:
        """As of any model; the shift is the pipeline's own."""
        self.guidance, self.pipe.shift = guidance, float(run.split()[1])

    def _made(self, steps: int) -> Any:
        asked = {"num_inference_steps": steps, "guidance_scale": self.guidance}
        return (self.pipe(self._captions, latents=self._latents, **asked).clamp(-1, 1) + 1) / 2


class Pixels(Model):
    """The U-Net of `_pixels`, without guidance."""

    runs = PIXELS

    def __init__(self, folder: Path, pictures: int) -> None:
        from diffusers import DDIMScheduler, DDPMPipeline

        with torch.enable_grad():  # the first time it is trained
            unet = trained(folder, 1000).eval()
        self.pipe, self._pictures = DDPMPipeline(unet, DDIMScheduler()), pictures

    def _made(self, steps: int) -> Any:
        generators = [torch.Generator().manual_seed(SEED + place) for place in range(self._pictures)]
        # DDPMPipeline passes its generators to whatever scheduler takes them.
        return self.pipe(
            batch_size=self._pictures, generator=generators, num_inference_steps=steps, output_type="np"
        ).images


class Unlike(Model):
    """A small model of `_unlike`."""

    def __init__(self, name: str, pictures: int) -> None:
        cousin = _unlike.COUSINS[name]
        self.pipe, self.usual = _unlike.load(name), cousin.guidance
        self.runs = {"flow": FLOW, "v": NOISE, "edm": KARRAS}[cousin.kind]
        draw = torch.Generator().manual_seed(SEED)
        self._kinds = torch.arange(pictures) % _unlike.KINDS
        self._latents = torch.randn(pictures, cousin.tokens, cousin.features, generator=draw)

    def _made(self, steps: int) -> Any:
        asked = {"num_inference_steps": steps, "guidance_scale": self.guidance}
        return (self.pipe(self._kinds, latents=self._latents, **asked).clamp(-1, 1) + 1) / 2


NAMES = (*CASES, "pixel_flux", "pixels", *_unlike.COUSINS)
RECORD = {
    "runs": ("shift 1", "shift 3", "shift 6", "shift 1.5", "DDIM", "Euler", "DPM++ 2M"),
    "budgets": ("28:14", "28:9", "28:7"),
    "strengths": (1.0,),
}
"""What is asked without ``--grid``."""


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``harm.json``, and show tables."""
    parser = parser_of("harm", __doc__, NAMES, prompts=4, guidance=False)
    parser.add_argument("--grid", action="store_true", help="every solver, shift, guidance and budget")
    parser.add_argument("--shared", type=Path, default=TOP.parent / "shared", help="holds models/pixel_flux")
    show(record_of("harm", parser.parse_args(arguments), measure)["rows"], Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    for name in options.case:
        if name == "pixel_flux" and not _folder(options).is_dir():
            print(f"pixel_flux is left out: there is no {_folder(options)}")
            continue
        model: Model | None = None
        for key in track(list(_cases(name, options)), name):
            if not rows.like(key):
                model = model or _load(name, options)
                rows.add(key | judged(model, key))


def _folder(options: argparse.Namespace) -> Path:
    folder: Path = options.shared / "models" / "pixel_flux"
    return folder


def _load(name: str, options: argparse.Namespace) -> Model:
    if name in CASES:
        model: Model = Reference(name, options.prompts)
    elif name == "pixel_flux":
        model = PixelFlux(_folder(options), options.prompts)
    elif name == "pixels":
        model = Pixels(options.out / "pixels", options.prompts)
    else:
        model = Unlike(name, options.prompts)
    model.pipe.set_progress_bar_config(disable=True)
    return model


def _cases(name: str, options: argparse.Namespace) -> Iterator[Row]:
    kinds = {"pixel_flux": PIXEL_SHIFTS, "shapes-sd": NOISE, "pixels": PIXELS, "flags": NOISE, "cloth": KARRAS}
    kinds |= {"movements": FLOW}
    runs = [run for run in kinds.get(name, GIVEN) if options.grid or run in RECORD["runs"]]
    strengths = (1.0, 1.5) if options.grid else RECORD["strengths"]
    guidances = (0.0,) if name == "pixels" else (0.0, *strengths)
    for run, guidance, budget in itertools.product(runs, guidances, BUDGETS if options.grid else RECORD["budgets"]):
        steps, computed = map(int, str(budget).split(":"))
        yield {"model": name, "run": run, "guidance": guidance, "steps": steps, "computed": computed}


def judged(model: Model, key: Row) -> Row:
    """The PSNR of each picture: the default, held over its steps, and fewer steps."""
    steps, computed = key["steps"], key["computed"]
    guidance = key["guidance"] * model.usual if key["guidance"] and model.usual else 1.0
    full = model.full(key["run"], guidance, steps)
    # A step of Heun's method calls the model twice, but for the last.
    asked = 2 * computed - 1 if key["run"] == "Heun" else computed
    with omnireuse.enable(model.pipe, computed_steps=asked, tune=False) as handle:
        made = {"default": model.make(steps)}
        said = "beyond what forecasts can do" in str(handle.summary())
        at = sorted({event.step for event in handle.events if not event.reused})
    schedule = Steps(steps=tuple(at), compute_last=False)
    with omnireuse.enable(model.pipe, policy=schedule, forecaster="hold", prediction_target="output"):
        made["hold"] = model.make(steps)
    made["fewer"] = model.make(computed)
    return {"said": said, "each": {name: closeness(pictures, full) for name, pictures in made.items()}}


def closeness(made: Array, full: Array) -> list[float]:
    """PSNR of each picture in dB, at most 100."""
    errors = np.square(made.astype(np.float64) - full).reshape(len(full), -1).mean(1)
    return [round(min(-10 * np.log10(error + 1e-12), 100.0), 3) for error in errors.tolist()]


def above(row: Row) -> tuple[float, float]:
    """By how many dB the default is above the better rival: in the mean, and in the 5 % quantile."""
    each = {name: np.asarray(values) for name, values in row["each"].items()}
    means = {name: float(values.mean()) for name, values in each.items()}
    lows = {name: float(np.quantile(values, 0.05)) for name, values in each.items()}
    return (
        means["default"] - max(means["fewer"], means["hold"]),
        lows["default"] - max(lows["fewer"], lows["hold"]),
    )


def is_harm(row: Row) -> bool:
    """True if the default is worse than the better rival by more than is allowed."""
    mean, low = above(row)
    return mean < -MEAN or low < -QUANTILE


def show(rows: list[Row], console: Console) -> None:
    """The ten worst cases, and each model's mean and number of harmed cases."""
    worst = sorted(rows, key=lambda row: above(row)[0])[:10]
    table = new_table("the ten worst cases: dB", "case", "fewer", "hold", "default", "above", "quantile")
    for row in worst:
        mean, low = above(row)
        figures = [f"{np.mean(row['each'][name]):.1f}" for name in ("fewer", "hold", "default")]
        table.add_row(title(row), *figures, f"{mean:+.1f}", f"{low:+.1f}")
    console.print(table)
    table = new_table("each model", "model", "cases", "harmed", "said so", "worst", "mean above")
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        gains, harmed = [above(row)[0] for row in own], [row for row in own if is_harm(row)]
        said = sum(row["said"] for row in harmed)
        table.add_row(name, str(len(own)), str(len(harmed)), str(said), f"{min(gains):+.1f}", f"{np.mean(gains):+.1f}")
    console.print(table)


def title(row: Row) -> str:
    """The case in words."""
    strength = {0.0: "none", 1.0: "guided"}.get(row["guidance"], f"{row['guidance']:g} times guided")
    return f"{row['model']}, {row['run']}, {strength}, {row['computed']} of {row['steps']}"


if __name__ == "__main__":
    main()
