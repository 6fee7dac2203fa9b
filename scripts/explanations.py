"""Make the pictures of docs/explanation and of the tutorial, with the reference pipelines of shapes and of faces.

python scripts/explanations.py            # all of them, about five minutes on one core
python scripts/explanations.py guidance   # one: reuse, guidance or tutorial
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

import omnireuse
from omnireuse_lab.report.style import LIGHT
from reference.case import CASES
from reference.figures import WIDTH, panels_of

TOP = Path(__file__).parents[1]
IMAGES = TOP / "docs" / "images"
PROMPTS = 6
SHOWN = "a smiling person with tan skin, a ginger bun, glasses and a blue shirt on a pink background"
GAIN = 10
"""How many times as bright a difference is shown."""
COLOURS = [LIGHT[name] for name in ("third", "first", "second")]
"""None of them green, which is omnireuse's alone."""
plt.rcParams |= {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LIGHT["muted"],
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "legend.frameon": False,
}


@cache
def pipeline(name: str) -> Any:
    """The pipeline of a reference case, without its progress bar."""
    loaded = CASES[name].load()
    loaded.set_progress_bar_config(disable=True)
    return loaded


@cache
def path(name: str, guidance: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noise levels (n,), and x0 and velocity (n, B, T, C) at each step of full runs, after guidance."""
    states: list[torch.Tensor] = []

    def keep(_pipe: Any, _step: int, _time: Any, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        states.append(state["latents"].clone())
        return {}

    case, pipe = CASES[name], pipeline(name)
    prompts = [case.caption(scene) for scene in case.held_out(PROMPTS, seed=5000)]
    tokens, channels = (64 // pipe.vae_scale_factor // 2) ** 2, pipe.transformer.config.in_channels
    first = torch.randn(PROMPTS, tokens, channels, generator=torch.Generator().manual_seed(0))
    given = {**case.sampling, "true_cfg_scale": guidance, "negative_prompt": [""] * PROMPTS}
    pipe(prompts, latents=first, callback_on_step_end=keep, output_type="latent", **given)
    sigmas, latents = pipe.scheduler.sigmas, torch.stack([first, *states])
    velocity = latents.diff(dim=0) / sigmas.diff().view(-1, 1, 1, 1)
    return sigmas[:-1], latents[:-1] - sigmas[:-1].view(-1, 1, 1, 1) * velocity, velocity


def relative(error: torch.Tensor, value: torch.Tensor) -> np.ndarray:
    """Norm of `error` over norm of `value`, mean over prompts; shape (n,)."""
    norms = error.flatten(2).norm(dim=2) / value.flatten(2).norm(dim=2)
    return norms.mean(1).numpy()


def line(noise: torch.Tensor, values: torch.Tensor, gap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, and the relative errors of holding and of a line over `gap` reused steps."""
    at = torch.arange(gap + 1, len(values))
    last, before = at - gap, at - gap - 1
    share = ((noise[at] - noise[last]) / (noise[last] - noise[before])).view(-1, 1, 1, 1)
    forecast = values[last] + share * (values[last] - values[before])
    return at.numpy(), relative(values[last] - values[at], values[at]), relative(forecast - values[at], values[at])


def decode(pipe: Any, latents: torch.Tensor) -> np.ndarray:
    """The picture (64, 64, 3) in 0..1 of packed latents (1, T, C)."""
    unpacked = pipe._unpack_latents(latents, 64, 64, pipe.vae_scale_factor)
    unpacked = unpacked / pipe.vae.config.scaling_factor + pipe.vae.config.shift_factor
    with torch.no_grad():
        decoded = pipe.vae.decode(unpacked).sample[0]
    return (decoded / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).numpy()


def reuse() -> Figure:
    """The face that the model expects at some steps, and its change from one step to the next."""
    _, x0, velocity = path("faces", 1.0)
    figure = plt.figure(figsize=(WIDTH, 4.2), layout="constrained")
    strips, below = figure.subfigures(2, 1, height_ratios=(1, 2.8))
    shown = (1, 4, 7, 10, 14, 18, 22, 27)
    for axes, step in zip(strips.subplots(1, len(shown)), shown, strict=True):
        axes.imshow(decode(pipeline("faces"), x0[step, :1]), interpolation="lanczos")
        axes.set_title(f"step {step + 1}", fontsize=9)
        axes.axis("off")
    axes = below.subplots()
    for name, values in (("denoised picture x0", x0), ("raw output", velocity)):
        axes.plot(np.arange(2, len(values) + 1), relative(values.diff(dim=0), values[1:]), "o-", ms=3, label=name)
    axes.set(xlabel="step", ylabel="relative change from the step before", yscale="log")
    axes.legend()
    return figure


def guidance() -> Figure:
    """Errors of forecasts over two reused steps with and without guidance."""
    figure, panes = panels_of(2, sharey=True)
    for scale, colour in ((1.0, COLOURS[0]), (3.0, COLOURS[2]), (6.0, COLOURS[1])):
        noise, x0, _ = path("shapes-flux", scale)
        steps, held, straight = line(noise, x0, gap=2)
        name = "no guidance" if scale == 1 else f"guidance {scale:g}"
        for axes, errors in zip(panes, (held, straight), strict=True):
            axes.plot(steps + 1, errors, "o-", ms=3, color=colour, label=name)
    for axes, title in zip(panes, ("holding the last x0", "a line through the last two"), strict=True):
        axes.set(title=title, xlabel="step", yscale="log")
    panes[0].set_ylabel("relative error, gap of two steps")
    panes[1].legend()
    return figure


def tutorial() -> Figure:
    """One face in full, with the default and with fewer steps, and the differences."""
    faces = pipeline("faces")

    def draw(**options: Any) -> np.ndarray:
        generator = torch.Generator().manual_seed(7)
        picture = faces(SHOWN, generator=generator, **CASES["faces"].sampling | options).images[0]
        return np.asarray(picture, float) / 255  # rounded to eight bits, as the page's script compares them

    full = draw()
    with omnireuse.enable(faces, tune=False):
        reused = draw()
    pictures = {
        "28 steps": full,
        "omnireuse\n14 computed": reused,
        "without it\n14 steps": draw(num_inference_steps=14),
    }
    figure, panes = plt.subplots(2, 3, figsize=(WIDTH, 5.8), layout="constrained")
    for (upper, lower), (title, picture) in zip(panes.T, pictures.items(), strict=True):
        upper.imshow(picture, interpolation="lanczos")
        upper.set_title(title, fontsize=16)
        lower.imshow(np.clip(1 - abs(picture - full) * GAIN, 0, 1), interpolation="lanczos")
        error = np.square(picture - full).mean()
        closeness = f"{-10 * np.log10(error):.1f} dB" if error else "identical"
        lower.set_title(f"{closeness}\ndifference × {GAIN}", fontsize=16)
        upper.axis("off")
        lower.axis("off")
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "reuse": reuse,
    "guidance": guidance,
    "tutorial": tutorial,
}


def main() -> None:
    """Write the figures that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *FIGURES], metavar="NAME", help=", ".join(FIGURES))
    for name in parser.parse_args().names or FIGURES:
        target = IMAGES / ("tutorial.png" if name == "tutorial" else f"why-{name}.png")
        FIGURES[name]().savefig(target, dpi=130)
        print(target.relative_to(TOP))


if __name__ == "__main__":
    main()
