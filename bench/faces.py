"""The front page's pictures: one prompt in full, with as few plain steps, and tuned; and quality by computed steps.

    python -m bench faces [--fronts bench/results/compare_faces.json] [--out out/bench]

The pipeline is tuned with an empty cache folder on three other captions.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch

from bench._common import new_parser, no_warnings
from bench._player import STEPS, Player
from bench.tune import PICTURES
from omnireuse.pipelines.pictures import psnr
from omnireuse_lab.front import front
from omnireuse_lab.record import Comparison, Point, read_comparison
from reference.drawing import Array
from reference.figures import OURS, PEERS, WIDTH

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

SEED = 20_001
CASE, SHOWN, CAPTIONS = "shapes-flux", 4, 40
"""Of so many held-out captions, the one that few plain steps change most."""
COMPUTED = 12
AMPLIFIED = 3
LARGE, SMALL = 3.0, 0.34
"""Inches that a picture is wide, and the width of a difference as a share of it."""
FEWER = "fewer uniform steps"


def main(arguments: list[str] | None = None) -> None:
    """Make the pictures, and write ``lead.png`` and ``lead-phone.png``; with ``--fronts``, the plots of quality."""
    parser = new_parser("faces", __doc__)
    parser.add_argument("--fronts", type=Path, help="draw a record of bench compare, and make no pictures")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.fronts:
        for name, stacked in (("fronts.png", False), ("fronts-phone.png", True)):
            draw_fronts(read_comparison(options.fronts), options.out / name, stacked=stacked)
        print(f"wrote {options.out / 'fronts.png'}")
        return
    with no_warnings(), torch.no_grad():
        prompt, pictures = made()
    for name, columns in (("lead.png", 3), ("lead-phone.png", 2)):
        draw(prompt, pictures, options.out / name, columns)
    print(f"wrote {options.out / 'lead.png'}")


def made() -> tuple[str, tuple[Array, Array, Array]]:
    """The prompt; and its picture in full, by the tuned pipeline, and with as few plain steps."""
    player = Player({"case": CASE, "guided": True}, CAPTIONS, judged=1, seed=SEED)
    [full], [plain] = player.run([SHOWN]), player.run([SHOWN], steps=COMPUTED)
    with player.tuned(range(SHOWN + 1, SHOWN + 1 + PICTURES), computed_steps=COMPUTED):
        [reused] = player.run([SHOWN])
    print(f"{psnr(reused, full):.1f} dB reused, {psnr(plain, full):.1f} dB plain")
    return player.captions[SHOWN], (full, reused, plain)


def draw(prompt: str, pictures: tuple[Array, Array, Array], path: Path, columns: int) -> None:
    """The three pictures in so many columns; beside the first its prompt, below the others their difference to it."""
    full = pictures[0]
    head, gap, foot = 0.2, 0.05, SMALL + 0.1
    titles = (f"{STEPS} steps", f"omnireuse, {COMPUTED} computed", f"without it, {COMPUTED} steps")
    tops = [0.0] * 3 if columns == len(pictures) else [0.0, 1 + head, 1 + head]
    wide, high = columns + (columns - 1) * gap, tops[-1] + head + 1 + foot
    figure = plt.figure(figsize=(LARGE * wide, LARGE * high))

    def panel(left: float, top: float, picture: Array, side: float) -> None:
        axes = figure.add_axes((left / wide, 1 - (top + side) / high, side / wide, side / high))
        axes.imshow(picture.clip(0, 1), interpolation="lanczos")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("0.8")

    def write(left: float, top: float, text: str, **style: Any) -> None:
        figure.text(left / wide, 1 - top / high, text, **{"va": "center"} | style)

    for place, (title, picture, top) in enumerate(zip(titles, pictures, tops, strict=True)):
        left = (place if top == 0 else place - 1) * (1 + gap)
        write(left, top + head / 2, title, fontsize=17, color=OURS if place == 1 else "0.2")
        panel(left, top + head, picture, 1)
        below = top + head + 1 + gap
        if picture is full:
            corner = (0, below) if columns == len(pictures) else (1 + gap, head + 0.2)
            write(*corner, textwrap.fill(f"“{prompt}”", 28), fontsize=14, color="0.2", va="top")
        else:
            panel(left, below, 1 - AMPLIFIED * abs(picture - full), SMALL)
            said = f"difference to the\nfull picture, × {AMPLIFIED}"
            write(left + SMALL + gap, below + SMALL / 2, said, fontsize=14, color="0.2")
    figure.savefig(path, dpi=100)
    plt.close(figure)


OWN = {
    "omnireuse, tuned": ("-", {"omnireuse, tuned on 3 pictures"}),
    "omnireuse, untuned": (":", {"omnireuse, default", "omnireuse, speedup=…"}),
}
MOST = 5


def draw_fronts(comparison: Comparison, path: Path, *, stacked: bool) -> None:
    """How close each method comes, by computed steps: this library's default, fewer steps, and of all other caches and
    solvers the five that are closest with half of the steps. Panels stand side by side, or one above another."""
    rows, columns, size = (
        (len(comparison.cases), 1, (4.2, 10.2)) if stacked else (1, len(comparison.cases), (WIDTH, 5.2))
    )
    figure, panels = plt.subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
    colours: dict[str, str] = {}
    for panel, case in zip(panels.flat, comparison.cases, strict=True):
        fronts = {
            point.method: front(each for each in case.points if each.method == point.method) for point in case.points
        }
        others = {point.method for point in case.points if point.family != "ours"} - {FEWER}
        best = sorted(others, key=lambda name: -_at(fronts[name], case.steps / 2))[:MOST]
        for name in best:
            colour = colours.setdefault(name, PEERS[len(colours) % len(PEERS)])
            _line(panel, fronts[name], name, color=colour, lw=1.2)
        _line(panel, fronts[FEWER], FEWER, color="0.55", lw=1.4, ls="--")
        for name, (dashes, methods) in OWN.items():
            points = front(point for point in case.points if point.method in methods)
            _line(panel, points, name, color=OURS, lw=2.4, ls=dashes)
        guidance = f"guidance {case.guidance:g}" if case.guidance > 1 else "no guidance"
        panel.set(
            title=guidance,
            xlabel=f"computed steps of {case.steps}",
            xlim=(6, 21),
            ylim=(10, 78),
            xticks=range(6, 21, 2),
        )
        handles, names = panel.get_legend_handles_labels()
        handles, names = handles[-2:] + handles[:-2], names[-2:] + names[:-2]  # this library's own come first
        panel.legend(handles, names, fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    for panel in panels[:, 0]:
        panel.set_ylabel("PSNR to the full run, dB")
    figure.tight_layout()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def _at(points: Sequence[Point], steps: float) -> float:
    return max((point.psnr.mean for point in points if point.computed_steps <= steps), default=0.0)


def _line(panel: Axes, points: Sequence[Point], name: str, **style: Any) -> None:
    panel.plot([point.computed_steps for point in points], [point.psnr.mean for point in points], label=name, **style)


if __name__ == "__main__":
    main()
