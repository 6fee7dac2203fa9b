"""What `tolerance=`, or `quality=` without a profile, leaves, caption by caption: how close reuse is to the full run.

    python -m bench tolerance [--of quality] [--case shapes-flux …] [--run "shift 1" …] [--methods fixed untuned]
    python -m bench tolerance --case pixel_flux movements --methods tuned --prompts 20 [--shared ../shared]

A tolerance bounds the relative L1 error of the final latents, a quality the PSNR of the pictures in dB. What is asked
for is kept where nine of ten captions keep it. Four methods:

- "fixed": the untuned default with so many computed steps, by halving, to find the smallest number that keeps it;
- "untuned": `tolerance=` with `tune=False`, each caption by itself;
- "tuned": after some captions of its own that nothing is judged on, in several draws;
- "fewer": the solver with as many steps of its own as the two computed on average.

The second command takes models of `bench harm` that are unlike the project's and have no autoencoder.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import Row, Rows, in_words, new_table, parser_of, record_of
from bench._player import STEPS, Player, Runs, add_run, parts_of, said
from omnireuse.errors import ConfigError
from omnireuse.tuning.budget import JUDGED
from reference.figures import PEERS, explain, panels_of

RUNS: Runs = {
    "shapes-flux": ("shift 1", "shift 3", "shift 6"),
    "shapes-wan": ("shift 1", "shift 3", "shift 6"),
    "shapes-dev": ("shift 1", "shift 3", "shift 6"),
    "shapes-sd": ("DDIM", "DPM++ 2M, Karras", "Euler, ancestral"),
    "faces": ("shift 1.5", "shift 3"),
    "pixel_flux": ("shift 1.5", "shift 3"),
    "movements": ("shift 1", "shift 3"),
}
UNLIKE = ("pixel_flux", "movements")
METHODS = ("fixed", "untuned", "tuned", "fewer")
SEED, SHARE = 15_000, 0.9
LEAST = 1e-3
"""Errors below are drawn as this one."""


class Latents(Player):
    """Final latents, held against those of the full run by their relative L1 error."""

    asked, each, aims = "tolerance", "errors", (0.02, 0.05, 0.1, 0.2)
    """The parameter of `enable`, the name of what is judged in a row, and the values that are tried."""

    def run(self, places: Sequence[int] | None = None, steps: int | None = None, **call: Any) -> Any:
        """As of any player."""
        places = self.judged if places is None else places
        call = {**self.case.sampling, "num_inference_steps": steps or STEPS, **self.guidance, **call}
        if isinstance(call.get("negative_prompt"), str):
            call["negative_prompt"] = [call["negative_prompt"]] * len(places)
        generators = [torch.Generator().manual_seed(self.seed + place) for place in places]
        captions = [self.captions[place] for place in places]
        made = self.pipeline(captions, generator=generators, output_type="latent", **call)
        latents: torch.Tensor = getattr(made, self.case.output)
        return latents.double()

    def judge(self, made: Any, steps: int | None = None) -> list[float]:
        """The error of each judged caption."""
        axes, full = tuple(range(1, made.ndim)), self.full(steps)
        errors = (made - full).abs().sum(axes) / full.abs().sum(axes)
        return [round(error, 6) for error in errors.tolist()]

    @staticmethod
    def share(row: Row, aim: float) -> float:
        """The share of the captions that keep what is asked for."""
        return statistics.fmean(error <= aim for error in row["errors"])

    @staticmethod
    def worst(row: Row, aim: float) -> float:
        """The largest error, over the tolerance."""
        return max(row["errors"]) / aim


class Unlike(Latents):
    """What a model of `bench harm` returns, which is what it denoises.

    Args:
        part, captions, judged, seed: as for `Player`.
        shared: the folder with the weights that are not in the repository.
    """

    def __init__(self, part: Row, captions: int, *, judged: int, seed: int, shared: Path) -> None:
        from bench import harm

        folder, name = shared / "models" / "pixel_flux", part["case"]
        model: Any = harm.PixelFlux(folder, captions) if name == "pixel_flux" else harm.Unlike(name, captions)
        guidance = model.usual if part["guided"] else 1.0
        model.use(part["run"], guidance)
        self.pipeline, self.seed, self.steps, self.judged = model.pipe, seed, STEPS, range(judged)
        self.pipeline.set_progress_bar_config(disable=True)
        self.guidance, self._full = {"guidance_scale": guidance}, {}
        self._asked = getattr(model, "_captions", None) or model._kinds
        self._latents = model._latents

    def run(self, places: Sequence[int] | None = None, steps: int | None = None, **call: Any) -> Any:
        """As of any player."""
        places = list(self.judged if places is None else places)
        asked = [self._asked[place] for place in places] if isinstance(self._asked, list) else self._asked[places]
        call = {"num_inference_steps": steps or STEPS, **self.guidance, **call}
        return self.pipeline(asked, latents=self._latents[places], **call).double()


class Pictures(Player):
    """Pictures, held against those of the full run by PSNR in dB."""

    asked, each, aims = "quality", "each", (35.0, 40.0, 45.0, 50.0)

    @staticmethod
    def share(row: Row, aim: float) -> float:
        """The share of the captions that keep what is asked for."""
        return statistics.fmean(psnr >= aim for psnr in row["each"])

    @staticmethod
    def worst(row: Row, aim: float) -> float:
        """How many dB the lowest misses the quality by, as a negative number."""
        return float(min(row["each"]) - aim)


Kind = type[Latents] | type[Pictures]
KINDS: dict[str, Kind] = {kind.asked: kind for kind in (Latents, Pictures)}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``tolerance.json`` or ``quality.json`` and a picture, and show a table."""
    parser = parser_of("tolerance", __doc__, RUNS, prompts=10)
    add_run(parser)
    parser.add_argument("--of", choices=KINDS, default="tolerance", help="what is asked for")
    parser.add_argument("--aims", nargs="+", type=float, default=None, help="its values")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--draws", type=int, default=2, help="of captions to tune on")
    parser.add_argument("--shared", type=Path, default=Path("..", "shared"), help="holds models/pixel_flux")
    parser.set_defaults(case=[name for name in RUNS if name not in UNLIKE])
    options = parser.parse_args(arguments)
    kind = KINDS[options.of]
    options.aims = options.aims or list(kind.aims)
    if kind is Pictures and (unlike := set(options.case) & set(UNLIKE)):
        raise ConfigError(f"bench tolerance(--of quality --case {min(unlike)}): it makes no pictures; leave one out")
    command = "python -m bench tolerance" + (f" --of {options.of}" if kind is Pictures else "")
    rows = record_of(options.of, options, measure, command=command)["rows"]
    show(rows, kind, Console())
    if kind is Latents:
        draw(rows, options.out / "tolerance.png")


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    kind = KINDS[options.of]
    for part, method in track(list(itertools.product(parts_of(options, RUNS), options.methods)), options.of):
        playing: list[Latents | Pictures] = []

        def get(method: str, setting: float, draw: int = 0, part: Row = part, playing: list[Any] = playing) -> Row:
            key = part | {"method": method, "setting": setting, "draw": draw}
            if not rows.like(key):
                if not playing:
                    asked = {"judged": options.prompts, "seed": SEED}
                    captions = options.prompts + JUDGED * options.draws
                    is_unlike = part["case"] in UNLIKE
                    playing.append(
                        Unlike(part, captions, shared=options.shared, **asked)
                        if is_unlike
                        else kind(part, captions, **asked)
                    )
                rows.add(key | played(playing[0], method, setting, draw))
            return rows.like(key)[0]

        if method == "fixed":
            for aim in options.aims:
                smallest_kept(lambda count, aim=aim, get=get: kind.share(get("fixed", count), aim))
        elif method == "fewer":
            for count in counts_of(rows.like(part), options.aims):
                get("fewer", count)
        elif method == "tuned" or kind is Latents:
            for aim, draw in itertools.product(options.aims, range(options.draws if method == "tuned" else 1)):
                get(method, aim, draw)


def smallest_kept(share: Callable[[int], float]) -> int:
    """The smallest number of computed steps whose share of captions is large enough, by halving."""
    below, kept = 1, STEPS
    while kept - below > 1:
        middle = (below + kept) // 2
        if share(middle) >= SHARE:
            kept = middle
        else:
            below = middle
    return kept


def counts_of(rows: Sequence[Row], aims: Sequence[float]) -> list[int]:
    """How many steps compute on average, untuned and tuned, for each that is asked for."""
    counts = set()
    for method, aim in itertools.product(("untuned", "tuned"), aims):
        own = [row["computed"] for row in rows if row["method"] == method and row["setting"] == aim]
        if own:
            counts.add(round(statistics.fmean(own)))
    return sorted(counts)


def played(player: Latents | Pictures, method: str, setting: float, draw: int) -> Row:
    """How close each judged caption is, how many steps compute on average, and what tuning says."""
    if method == "fewer":
        return {"computed": setting, player.each: player.judge(player.run(steps=int(setting)))}
    if method == "fixed":
        made, _ = player.reusing(computed_steps=int(setting), tune=False)
        return {"computed": setting, player.each: player.judge(made)}
    if method == "untuned":
        with player.enabled(tolerance=setting, tune=False) as handle:
            return judged(player, handle, one_by_one=True)
    first = len(player.judged) + JUDGED * draw
    with player.tuned(range(first, first + JUDGED), **{player.asked: setting}) as handle:
        if handle.tuning.state == "measuring":  # trial runs are due before the next picture
            player.run([first])
        follows_rule = handle.tuning.expected is None and player.asked == "tolerance"
        return judged(player, handle, one_by_one=follows_rule) | said(handle)


def judged(player: Latents | Pictures, handle: omnireuse.Handle, *, one_by_one: bool) -> Row:
    """How close the captions are as the pipeline makes them now, and the computed steps of a run on average."""
    before = len(handle.events)
    parts = [player.run([place]) for place in player.judged] if one_by_one else [player.run()]
    events = handle.events[before:]
    computed = {(event.run, event.step) for event in events if not event.reused}
    runs = len(player.judged) if one_by_one else len({event.run for event in events})
    made = torch.cat(parts) if one_by_one else parts[0]
    return {"computed": len(computed) / runs, player.each: player.judge(made)}


def figures_of(rows: Sequence[Row], kind: Kind, method: str, aim: float) -> Row | None:
    """What a method comes to in one part, over all draws; None where it was not measured."""
    own = [row for row in rows if row["method"] == method and row["setting"] == aim]
    if not own:
        return None
    fixed = [row for row in rows if row["method"] == "fixed"]
    missed = max((row["setting"] for row in fixed if kind.share(row, aim) < SHARE), default=0)
    smallest = min((row["setting"] for row in fixed if row["setting"] > missed), default=STEPS)
    computed = statistics.fmean(row["computed"] for row in own)
    fewer = next((r for r in rows if r["method"] == "fewer" and r["setting"] == round(computed)), None)
    worst = max if kind is Latents else min
    return {
        "share": statistics.fmean(kind.share(row, aim) for row in own),
        "worst": worst(kind.worst(row, aim) for row in own),
        "computed": computed,
        "fixed": smallest,
        "fewer": None if fewer is None else kind.share(fewer, aim),
    }


def show(rows: Sequence[Row], kind: Kind, console: Console) -> None:
    """For each part and what is asked for: computed steps, the share that keeps it, and the worst caption."""
    headings = ("method", "asked", "fixed", "steps", "keep it", "worst", "fewer")
    table = new_table(f"captions that keep the {kind.asked}", "run", *headings)
    every: dict[str, list[Row]] = {}
    aims = sorted({row["setting"] for row in rows if row["method"] in ("untuned", "tuned")})
    for part in dict.fromkeys(map(in_words, rows)):
        own = [row for row in rows if in_words(row) == part]
        for method, aim in itertools.product(("untuned", "tuned"), aims):
            found = figures_of(own, kind, method, aim)
            if found is not None:
                every.setdefault(method, []).append(found)
                kept = f"{found['share']:.0%}{'' if found['share'] >= SHARE else '*'}"
                fewer = "–" if found["fewer"] is None else f"{found['fewer']:.0%}"
                cells = (f"{aim:g}", str(found["fixed"]), f"{found['computed']:.1f}", kept, f"{found['worst']:.2f}")
                table.add_row(part, method, *cells, fewer)
    console.print(table)
    for method, found_of in every.items():
        kept = sum(each["share"] >= SHARE for each in found_of)
        share, computed = (statistics.fmean(each[name] for each in found_of) for name in ("share", "computed"))
        ratio = statistics.fmean(each["computed"] / each["fixed"] for each in found_of)
        console.print(
            f"{method}: kept in {kept} of {len(found_of)}, by {share:.1%} of the captions; {computed:.1f} steps "
            f"computed, {ratio:.2f} times the smallest fixed number"
        )


def draw(rows: Sequence[Row], path: Path) -> None:
    """The error that nine of ten captions stay within, over the tolerance, of every part."""
    figure, panels = panels_of(2, sharey=True)
    tolerances = sorted({row["setting"] for row in rows if row["method"] in ("untuned", "tuned")})
    cases = list(dict.fromkeys(row["case"] for row in rows))
    for panel, method in zip(panels, ("untuned", "tuned"), strict=True):
        panel.plot(tolerances, tolerances, color="0.3", lw=1, label="the tolerance")
        for part in dict.fromkeys((row["case"], row["run"], row["guided"]) for row in rows):
            points = []
            for tolerance in tolerances:
                key = (method, tolerance, *part)
                names = ("method", "setting", "case", "run", "guided")
                own = [row for row in rows if tuple(row[name] for name in names) == key]
                errors = [error for row in own for error in row["errors"]]
                if errors:
                    points.append((tolerance, max(float(np.quantile(errors, SHARE)), LEAST)))
            if points:
                style = {"color": PEERS[cases.index(part[0])], "lw": 1, "marker": "."}
                panel.plot(*zip(*points, strict=True), "-" if part[2] else "--", **style)
        for number, case in enumerate(cases):
            panel.plot([], [], color=PEERS[number], label=case)
        panel.set(xscale="log", yscale="log", xlabel="tolerance", title=method)
        panel.set_xticks(tolerances, [f"{tolerance:g}" for tolerance in tolerances])
        panel.set_xticks([], minor=True)
    panels[0].set(ylabel="relative L1 error of the latents,\n90 % quantile", ylim=(LEAST / 1.2, None))
    panels[0].set_yticks([LEAST, 1e-2, 1e-1], ["≤ 0.001", "0.01", "0.1"])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    explain(
        figure,
        "Below the grey line, nine of ten prompts keep the tolerance. Dashed: without guidance. At the bottom: "
        "every step is computed.",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
