"""The front page's pictures: faces in full, tuned, and with as few plain steps; and quality by computed steps.

    python -m bench faces [--people 2] [--fronts bench/results/compare_faces.json] [--out out/bench]

The people are the first held-out ones of a seed that was chosen by its captions, before any picture was made. For each
number of computed steps the pipeline is tuned with an empty cache folder on three other captions.
"""

from __future__ import annotations

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
from reference.case import FACES
from reference.drawing import Array
from reference.figures import WIDTH

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

SEED = 20_001
COMPUTED = (14, 9, 7)
AMPLIFIED = 5
PANEL = 1.28
"""Inches that a picture is wide."""
FEWER = "fewer uniform steps"

Column = tuple[str, Array]


def main(arguments: list[str] | None = None) -> None:
    """Make the pictures, and write ``faces.png`` and, with a third of the steps alone, ``faces-phone.png``."""
    parser = new_parser("faces", __doc__)
    parser.add_argument("--people", type=int, default=2)
    parser.add_argument("--fronts", type=Path, help="draw a record of bench compare, and make no pictures")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.fronts:
        for name, stacked in (("fronts.png", False), ("fronts-phone.png", True)):
            draw_fronts(read_comparison(options.fronts), options.out / name, stacked=stacked)
        print(f"wrote {options.out / 'fronts.png'}")
        return
    with no_warnings(), torch.no_grad():
        columns = made(options.people)
    draw(columns, options.out / "faces.png")
    draw([columns[0], *columns[3:5]], options.out / "faces-phone.png")
    print(f"wrote {options.out / 'faces.png'}")


def made(people: int) -> list[Column]:
    """The full pictures, then for each number of steps those of the tuned pipeline and of as many plain steps."""
    player = Player({"case": FACES.name, "guided": True}, people + PICTURES, judged=people, seed=SEED)
    columns = [(f"{STEPS} steps", player.full())]
    for computed in COMPUTED:
        with player.tuned(range(people, people + PICTURES), computed_steps=computed):
            columns.append((f"omnireuse\n{computed} computed", player.run()))
        columns.append((f"without it\n{computed} steps", player.run(steps=computed)))
    return columns


def draw(columns: list[Column], path: Path) -> None:
    """Two rows for each person: the pictures, and their differences to the full one with the PSNR in dB."""
    (_, full), people = columns[0], len(columns[0][1])
    lefts = [0.0]
    for number in range(1, len(columns)):
        lefts.append(lefts[-1] + (1.15 if number % 2 else 1.02))
    wide, high = lefts[-1] + 1, 0.42 + people * 2.12
    figure = plt.figure(figsize=(PANEL * wide, PANEL * high))

    def panel(left: float, top: float, picture: Array) -> Axes:
        made = figure.add_axes((left / wide, 1 - (top + 1) / high, 1 / wide, 1 / high))
        made.imshow(picture.clip(0, 1), interpolation="lanczos")
        made.axis("off")
        return made

    for left, (title, pictures) in zip(lefts, columns, strict=True):
        for row, (picture, whole) in enumerate(zip(pictures, full, strict=True)):
            top = 0.42 + row * 2.12
            shown = panel(left, top, picture)
            if not row:
                shown.set_title(title, fontsize=10, pad=4)
            if pictures is full:
                continue
            difference = panel(left, top + 1.02, 1 - AMPLIFIED * abs(picture - whole))
            difference.text(2, 61, f"{psnr(picture, whole):.0f} dB", fontsize=9, color="0.25", backgroundcolor="white")
        if pictures is full:
            for row in range(people):
                said = f"difference\nto it, × {AMPLIFIED}"
                figure.text(
                    0.5 / wide, 1 - (0.42 + row * 2.12 + 1.52) / high, said, ha="center", va="center", fontsize=9
                )
    figure.savefig(path, dpi=100)
    plt.close(figure)


OURS = {
    "omnireuse, tuned": ("-", {"omnireuse, tuned on 3 pictures"}),
    "omnireuse, untuned": (":", {"omnireuse, default", "omnireuse, speedup=…"}),
}
MOST = 5
OTHERS = ("tab:orange", "tab:blue", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:olive", "tab:cyan")


def draw_fronts(comparison: Comparison, path: Path, *, stacked: bool) -> None:
    """How close each method comes, by computed steps: this library's default, fewer steps, and of all other caches and
    solvers the five that are closest with half of the steps. Panels stand side by side, or one above another."""
    rows, columns, size = (
        (len(comparison.cases), 1, (4.2, 7.4)) if stacked else (1, len(comparison.cases), (WIDTH, 5.2))
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
            colour = colours.setdefault(name, OTHERS[len(colours) % len(OTHERS)])
            _line(panel, fronts[name], name, color=colour, lw=1.2)
        _line(panel, fronts[FEWER], FEWER, color="0.55", lw=1.4, ls="--")
        for name, (dashes, methods) in OURS.items():
            points = front(point for point in case.points if point.method in methods)
            _line(panel, points, name, color="#0f9b87", lw=2.4, ls=dashes)
        guidance = f"guidance {case.guidance:g}" if case.guidance > 1 else "no guidance"
        panel.set(
            title=guidance,
            xlabel=f"computed steps of {case.steps}",
            xlim=(6, 21),
            ylim=(10, 78),
            xticks=range(6, 21, 2),
        )
        place = {"loc": "lower right"} if stacked else {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
        handles, names = panel.get_legend_handles_labels()
        handles, names = handles[-2:] + handles[:-2], names[-2:] + names[:-2]  # this library's own come first
        panel.legend(handles, names, fontsize=7.5 if stacked else 9, frameon=stacked, **place)
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
