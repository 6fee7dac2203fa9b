"""Every policy with every forecaster on a trained pipeline: quality against computed steps.

    python -m bench strategies [--case image] [--prompts 8] [--steps 28 50] [--only error_control] [--out out/bench]

Held-out prompts in one batch, PSNR to the full run from the same noise, with and without guidance. Each strategy is
played at several settings of its dial, so that strategies compare at equal numbers of computed steps; beside them
stands the floor, the same solver on fewer uniform steps. Writes a table, JSON and a picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import omnireuse
from bench.step_reuse import environment
from omnireuse import BestOrder, Blend, EasyCache, ErrorControl, FixedSchedule, Hermite, Hold, Polynomial, SeaCache
from omnireuse.errors import UnknownNameError
from omnireuse.reference.captions import caption, held_out_scenes
from omnireuse.reference.load import SAMPLING, load_image_pipeline
from omnireuse.report.metrics import psnr

mpl.use("Agg")
from matplotlib import pyplot as plt

Choice = dict[str, Any]
"""What `omnireuse.enable` is called with beside the pipeline: axes, or `backend` with its options."""

FORECASTERS = {
    "hold": Hold(),
    "hold on output": Hold(),
    "polynomial": Polynomial(),
    "polynomial 2": Polynomial(order=2),
    "blend": Blend(),
    "hermite": Hermite(),
    "best order": BestOrder(),
}


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One line of the picture: a choice for each setting of a dial."""

    dial: tuple[float, ...]
    at: Callable[[float], Choice]
    forecasters: tuple[str, ...] = tuple(FORECASTERS)


#: One line each. A cache with a forecaster of its own is one with `forecasters=("own",)`.
STRATEGIES: dict[str, Strategy] = {
    "fixed": Strategy(dial=(0.64, 0.5, 0.36, 0.25), at=lambda share: {"policy": _fixed(share)}),
    "error_control": Strategy(
        dial=(0.03, 0.06, 0.15, 0.3, 0.6), at=lambda tolerance: {"policy": ErrorControl(tolerance=tolerance)}
    ),
    "easy_cache": Strategy(
        dial=(0.03, 0.05, 0.1, 0.2, 0.4), at=lambda threshold: {"policy": EasyCache(threshold=threshold)}
    ),
    "sea_cache": Strategy(
        dial=(0.05, 0.1, 0.15, 0.25, 0.5), at=lambda threshold: {"policy": SeaCache(threshold=threshold)}
    ),
    "db_cache": Strategy(
        dial=(0.05, 0.1, 0.2, 0.4),
        at=lambda threshold: {"backend": "db_cache", "residual_diff_threshold": threshold},
        forecasters=("own",),
    ),
    "mag_cache": Strategy(
        dial=(0.05, 0.1, 0.2, 0.4),
        at=lambda threshold: {"backend": "mag_cache", "mag_threshold": threshold},
        forecasters=("own",),
    ),
    "taylorseer": Strategy(
        dial=(2, 3, 4), at=lambda gap: {"backend": "taylorseer", "taylorseer_interval": int(gap)}, forecasters=("own",)
    ),
}


def _fixed(share: float) -> FixedSchedule:
    return FixedSchedule(speedup=1 / share)


class ImageCase:
    """The reference image pipeline on held-out captions."""

    def __init__(self, model: Path | None, prompts: int, seed: int) -> None:
        self.pipe: Any = load_image_pipeline(model)
        self.pipe.set_progress_bar_config(disable=True)
        self._prompts = [caption(scene) for scene in held_out_scenes(prompts, seed=seed)]
        self._seed = seed

    def run(self, *, steps: int, guided: bool) -> np.ndarray:
        """Every prompt in one batch, (B, H, W, 3) in 0..1."""
        call = SAMPLING | {"num_inference_steps": steps, "negative_prompt": [""] * len(self._prompts)}
        if not guided:
            call |= {"negative_prompt": None, "true_cfg_scale": 1.0}
        generators = [torch.Generator().manual_seed(self._seed + i) for i in range(len(self._prompts))]
        made: np.ndarray = self.pipe(self._prompts, generator=generators, output_type="np", **call).images
        return made


#: Cases offer `pipe` and `run(steps=, guided=)`, whose result is an array with images on its first axis.
CASES: dict[str, Callable[[Path | None, int, int], Any]] = {"image": ImageCase}


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``strategies.json`` and ``strategies.png``."""
    parser = argparse.ArgumentParser(prog="python -m bench strategies", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", choices=sorted(CASES), default="image")
    parser.add_argument("--model", type=Path, default=None, help="folder of the pipeline")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="+", default=[28, 50])
    parser.add_argument("--only", nargs="+", default=list(STRATEGIES), help="strategies by name")
    parser.add_argument("--forecasters", nargs="+", default=list(FORECASTERS))
    parser.add_argument("--guidance", nargs="+", choices=["guided", "unguided"], default=["guided", "unguided"])
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    for kind, chosen, known in (
        ("strategy", options.only, STRATEGIES),
        ("forecaster", options.forecasters, FORECASTERS),
    ):
        for name in chosen:
            if name not in known:
                raise UnknownNameError(kind, name, known)
    case = CASES[options.case](options.model, options.prompts, options.seed)
    shown = {name: value for name, value in vars(options).items() if name not in ("out", "model")}
    words = " ".join(f"--{name} {_words(value)}" for name, value in shown.items())
    record: dict[str, Any] = {
        "command": f"python -m bench strategies {words}",
        "environment": environment(),
        "rows": [],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for steps in options.steps:
        for guidance in options.guidance:
            record["rows"] += measure(case, options, steps=steps, guided=guidance == "guided")
            # Written as far as it goes: a run that is cut short keeps what it has measured.
            (options.out / "strategies.json").write_text(json.dumps(record, indent=1))
            draw(record, options.out / "strategies.png")
    show(record, Console())
    print(f"wrote {options.out / 'strategies.json'} and {options.out / 'strategies.png'}")


def _words(value: Any) -> str:
    return " ".join(
        f"'{each}'" if " " in str(each) else str(each) for each in (value if isinstance(value, list) else [value])
    )


def measure(case: Any, options: argparse.Namespace, *, steps: int, guided: bool) -> Iterator[dict[str, Any]]:
    """One row a strategy, forecaster and setting; the floor first."""
    full = case.run(steps=steps, guided=guided)
    common = {"steps": steps, "guided": guided}
    plan = [
        (name, forecaster, setting)
        for name in options.only
        for forecaster in ([f for f in options.forecasters if f in STRATEGIES[name].forecasters] or ["own"])
        for setting in STRATEGIES[name].dial
    ]
    counts = sorted({round(steps * share) for share in (0.64, 0.5, 0.36, 0.25)})
    title = f"{steps} steps, {'guided' if guided else 'unguided'}"
    for work in track([*counts, *plan], title):
        if isinstance(work, int):
            made = case.run(steps=work, guided=guided)
            yield (
                common
                | {"strategy": "fewer steps", "forecaster": "none", "setting": work, "computed": work}
                | judge(made, full)
            )
            continue
        name, forecaster, setting = work
        with omnireuse.enable(case.pipe, **_choice(name, forecaster, setting)) as handle:
            made = case.run(steps=steps, guided=guided)
            summary = handle.summary()
        told = {"computed": summary.computed_steps, "kept_bytes": summary.kept_bytes, "mean_error": summary.mean_error}
        yield common | {"strategy": name, "forecaster": forecaster, "setting": setting} | told | judge(made, full)


def _choice(name: str, forecaster: str, setting: float) -> Choice:
    choice = STRATEGIES[name].at(setting)
    if forecaster == "own":
        return choice
    quantity = "output" if forecaster.endswith("on output") else "x0"
    return {"forecaster": FORECASTERS[forecaster], "quantity": quantity} | choice


def judge(made: np.ndarray, full: np.ndarray) -> dict[str, float]:
    """PSNR to the full run, its mean and its 10% quantile over images."""
    each = [min(psnr(a, b), 100.0) for a, b in zip(made, full, strict=True)]
    return {"psnr": statistics.fmean(each), "psnr_low": float(np.quantile(each, 0.1))}


def show(record: dict[str, Any], console: Console) -> None:
    """One table a step count and guidance: strategies by rows, (computed steps / PSNR) by settings."""
    for rows in _grouped(record["rows"], "steps", "guided"):
        title = f"{rows[0]['steps']} steps, {'guided' if rows[0]['guided'] else 'unguided'}: computed / PSNR in dB"
        table = Table(title=title, box=None, title_justify="left")
        table.add_column("strategy")
        table.add_column("forecaster")
        table.add_column("from careful to bold")
        for line in _grouped(rows, "strategy", "forecaster"):
            cells = sorted((row["computed"], row["psnr"]) for row in line)[::-1]
            text = "   ".join(f"{computed:4.1f} / {value:4.1f}" for computed, value in cells)
            table.add_row(line[0]["strategy"], line[0]["forecaster"], text)
        console.print(table)


def draw(record: dict[str, Any], path: Path) -> None:
    """PSNR against computed steps: a panel a step count and guidance, a line a strategy and forecaster."""
    panels = _grouped(record["rows"], "steps", "guided")
    figure, axes = plt.subplots(1, len(panels), figsize=(7 * len(panels), 6), squeeze=False, layout="constrained")
    names = list(dict.fromkeys(row["strategy"] for row in record["rows"]))
    marks = list(dict.fromkeys(row["forecaster"] for row in record["rows"]))
    for panel, rows in zip(axes[0], panels, strict=True):
        for line in _grouped(rows, "strategy", "forecaster"):
            points = sorted((row["computed"], row["psnr"]) for row in line)
            name, forecaster = line[0]["strategy"], line[0]["forecaster"]
            floor = name == "fewer steps"
            panel.plot(
                *zip(*points, strict=True),
                color="black" if floor else f"C{names.index(name)}",
                linestyle="--" if floor else "-",
                marker="oxs^vD*P+"[marks.index(forecaster) % 9],
                label=name if floor else f"{name}, {forecaster}",
                linewidth=1,
            )
        panel.set_title(f"{rows[0]['steps']} steps, {'guided' if rows[0]['guided'] else 'unguided'}")
        panel.set_xlabel("computed steps")
        panel.set_ylabel("PSNR to the full run in dB")
        panel.grid(alpha=0.3)
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=6, loc="outside right upper")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _grouped(rows: list[dict[str, Any]], *keys: str) -> list[list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.values())


if __name__ == "__main__":
    main()
