"""Write docs/figures.md from the records in bench/results, or say which of its tables are older than their code.

python scripts/figures.py [--check | --older]
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "bench" / "results"
PAGE = TOP / "docs" / "figures.md"

HEAD = """\
# Figures

All measurements of this project. Three conclusions first:

1. **Tuned, reuse is closer to the full run than any other method that was measured, at equal work.** With 14, 9 and 7
   of 28 steps it is {faces} dB closer than the best of the other caches, solvers and spacings, on a small model of
   people that took no part in the library's development ([faces](#faces-beside-every-other-method)). On the models
   that did it is {models} dB closer ([half and a third of the steps](#half-and-a-third-of-the-steps)).
2. **Untuned, it sometimes does harm.** In {harmed} of {cases} cases the default loses to plain fewer steps or to
   holding the last output, in the worst case by {worst} dB ([First, do no harm](#first-do-no-harm)). Where:
   {pixel_flux} of the {harmed} are of a Flux that draws in pixels, with guidance; {unipc} of a flow in one dimension
   under UniPC; {pixels} of a model of pixels under DPM++ 2M; {five} (of {five_cases}) of the five pipelines with an
   autoencoder, nearly all of them guided. The summary warned in {told} of the {harmed}. If yours is like one of these,
   compare a few pictures with plain fewer steps.
3. **The denoiser's time falls with the number of computed steps.** On one H200, Flux.1 of true size was {flux} times as
   fast ({flux_most} at most, by its steps), and Qwen-Image {qwen} times ({qwen_most} at most). The weights were random:
   nobody has judged pictures of large models yet ([on a GPU](#models-of-true-size-on-a-gpu)).

How to read the tables: PSNR is in dB to the full run of the same solver from the same noise, and more is closer.
"Guided" is guidance 6, 4 on shapes-sd and 3 on faces; "none" is no guidance. Images are of shapes-flux, clips of
shapes-wan; shapes-dev, shapes-sd and faces make images too ([all pipelines](reference.md)). Ratios carry over to
other machines, times do not: the machine had two shared CPU cores, and a benchmark used one.

Each table names the records that it is made of (`bench/results`), with their day and, if it is known, their revision.
`python scripts/figures.py` writes this page. What was tried without gain is in `bench/notes`.
"""

_ROOMS, _VLLM = "src/omnireuse/", "engines/src/omnireuse_engines/vllm/"
STEPS = tuple(_ROOMS + name for name in ("loop", "policies", "forecasters", "noise", "hooks", "arguments/targets.py"))
TUNING = tuple(_ROOMS + name for name in ("tuning", "planning", "profiles", "calibration"))
"""Paths that the figures of steps, and those of tuned and calibrated plans, depend on."""

Record = dict[str, Any]
Rows = list[list[str]]


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        title: its heading.
        records: names of its records in bench/results.
        says: the sentence above it, without its full stop.
        heads: of its columns.
        rows: its cells, from the records.
        paths: what its figures depend on, from the top of the repository.
        picture: its name in docs/images and what it shows.
    """

    title: str
    records: tuple[str, ...]
    says: str
    heads: tuple[str, ...]
    rows: Callable[..., Iterable[Sequence[str]]]
    paths: tuple[str, ...]
    picture: tuple[str, str] | None = None

    def text(self) -> str:
        """The section."""
        records = [read(name) for name in self.records]
        runs = "; ".join(f"`{n}.json`, {_made(r)}" for n, r in zip(self.records, records, strict=True))
        lines = [f"### {self.title}", "", f"{self.says} ({runs}).", ""]
        lines += [_line(self.heads), "|" + "---|" * len(self.heads), *map(_line, self.rows(*records)), ""]
        if self.picture:
            lines += [f"![{self.picture[1]}](images/{self.picture[0]})", ""]
        return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def read(name: str) -> Record:
    """A record of bench/results."""
    found: Record = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def _rows(record: Record, **key: Any) -> list[Record]:
    return [row for row in record["rows"] if all(row.get(name) == value for name, value in key.items())]


def _run(record: Record) -> tuple[str, str]:
    """Day and revision of a record's run; the revision may be empty."""
    run = {"day": record.get("created", "")[:10], **record.get("environment", {}), **record.get("run", {})}
    return run["day"], run.get("revision", "")


def _made(record: Record) -> str:
    day, revision = _run(record)
    at = date.fromisoformat(day)
    return f"{at.day} {at:%B %Y}" + (f", revision {revision}" if revision else "")


def _git(*command: str) -> str:
    return subprocess.run(("git", *command), cwd=TOP, capture_output=True, encoding="utf-8", check=True).stdout.strip()


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}"


def _guided(row: Record) -> str:
    return "guided" if row["guided"] else "none"


KINDS = {"shapes-flux": "images", "shapes-wan": "clips", "image": "images", "video": "clips"}


def _tuning(record: Record) -> Rows:
    def mean(guided: bool, computed: int, method: str) -> str:
        draws: dict[tuple[str, str], list[float]] = {}
        for row in _rows(record, guided=guided, computed=computed, method=method):
            draws.setdefault((row["case"], row["run"]), []).append(fmean(row["each"]))
        return f"{fmean(map(fmean, draws.values())):.1f}"

    methods = ("fewer", "hold", "untuned", "tuned 1", "tuned 3")
    return [
        [f"{'guided' if guided else 'none'}, {computed}", *(mean(guided, computed, each) for each in methods)]
        for guided in (True, False)
        for computed in (14, 9)
    ]


def _draws(models: Record, faces: Record) -> Rows:
    def gains(record: Record) -> list[float]:
        def case(row: Record) -> tuple[str, ...]:
            return tuple(str(row[name]) for name in ("case", "run", "guided", "computed"))

        means = {(case(row), row["draw"], row["method"]): fmean(row["each"]) for row in record["rows"]}
        return sorted(mean - means[key, 0, "untuned"] for (key, _, by), mean in means.items() if by == "tuned 3")

    return [
        [name, str(len(own)), _signed(fmean(own)), *map(_signed, own[:3])]
        for name, own in (("four", gains(models)), ("faces", gains(faces)))
    ]


def _quantised(record: Record) -> Rows:
    def cell(held: str, method: str) -> str:
        each = [value for row in _rows(record, held=held, method=method) for value in row["each"]]
        return f"{fmean(each):.1f} ({min(each):.0f})"

    kinds = dict.fromkeys(row["held"] for row in record["rows"])
    return [[kind, *(cell(kind, method) for method in ("fewer", "hold", "untuned", "tuned 3"))] for kind in kinds]


def _left_out(record: Record) -> Rows:
    def cell(own: Sequence[Record], method: str) -> str:
        each = sorted(value for row in own if row["method"] == method for value in row["each"])
        return f"{fmean(each):.1f} ({each[round(0.05 * (len(each) - 1))]:.0f}, {each[0]:.0f})"

    rows = []
    for run, guided, computed in product(("shift 1.5", "shift 3"), (True, False), (14, 9, 7)):
        own = _rows(record, run=run, guided=guided, computed=computed)
        title = f"{run}, {'guided' if guided else 'none'}, {computed}"
        rows.append([title, *(cell(own, method) for method in ("fewer", "untuned", "tuned 1", "tuned 3"))])
    return rows


def _beside(record: Record) -> Rows:
    def best(case: Record, most: int, is_meant: Callable[[Record], bool]) -> str:
        points = [p for p in case["points"] if p["psnr"] and p["computed_steps"] <= most + 0.5 and is_meant(p)]
        return f"{max(point['psnr']['mean'] for point in points):.1f}" if points else "–"

    def is_calibrated(point: Record) -> bool:
        return point["method"].endswith(", calibrated")

    columns: tuple[Callable[[Record], bool], ...] = (
        lambda point: point["family"] == "baseline" and not is_calibrated(point),
        lambda point: point["family"] == "peer" and not is_calibrated(point),
        lambda point: point["family"] != "ours" and is_calibrated(point),
        lambda point: point["method"] in ("omnireuse, default", "omnireuse, speedup=…"),
        lambda point: point["method"] == "omnireuse, tuned on 3 pictures",
        lambda point: point["method"] == "omnireuse, calibrated",
    )
    return [
        [f"{'guided' if case['guidance'] > 1 else 'none'}, {most}", *(best(case, most, each) for each in columns)]
        for case in record["cases"]
        for most in (14, 9, 7)
    ]


def _few(record: Record) -> Rows:
    def name(row: Record) -> str:
        return f"{KINDS[row['case']]}, {_guided(row)}"

    rows, found = _rows(record, part="budgets"), []
    for title in dict.fromkeys(map(name, rows)):
        cells = [title]
        for budget in (14, 9, 7):
            own = [row for row in rows if name(row) == title and row["budget"] == budget]
            above = [row["psnr"] - row["fewer"] for row in own]
            cells.append(f"{fmean(row['psnr'] for row in own):.1f} ({_signed(min(above))} to {_signed(max(above))})")
        found.append(cells)
    return found


def _low(values: Sequence[float]) -> float:
    """The 5 % quantile, interpolated."""
    ordered = sorted(values)
    place = 0.05 * (len(ordered) - 1)
    return ordered[int(place)] + (place % 1) * (ordered[min(int(place) + 1, len(ordered) - 1)] - ordered[int(place)])


def _above(row: Record, of: Callable[[Sequence[float]], float]) -> float:
    """How far the untuned default is above the better of fewer steps and holding."""
    figures = {name: of(values) for name, values in row["each"].items()}
    return figures["default"] - max(figures["fewer"], figures["hold"])


def _harmed(record: Record) -> list[Record]:
    return [row for row in record["rows"] if _above(row, fmean) < -0.5 or _above(row, _low) < -1]


def _harm(record: Record) -> Rows:
    def cells(row: Record) -> list[str]:
        strength = {0.0: "none", 1.0: "guided"}.get(row["guidance"], f"{row['guidance']:g} times guided")
        name = f"{row['model']}, {row['run']}, {strength}, {row['computed']} of {row['steps']}"
        means = [f"{fmean(row['each'][way]):.1f}" for way in ("fewer", "hold", "default")]
        return [name, *means, _signed(_above(row, fmean)), _signed(_above(row, _low)), "yes" if row["said"] else "no"]

    rows, harmed = record["rows"], _harmed(record)
    found = [cells(row) for row in sorted(rows, key=lambda row: _above(row, fmean))[:10]]
    gains = [_signed(fmean(_above(row, of) for row in rows)) for of in (fmean, _low)]
    told = f"{sum(row['said'] for row in rows)}, {sum(row['said'] for row in harmed)} of the harmed"
    return [*found, [f"all {len(rows)}, {len(harmed)} of them harmed", "", "", "", *gains, told]]


def _asked(record: Record, methods: Sequence[str], share: Callable[[Record, float], float]) -> Rows:
    """What is asked of pictures: the smallest fixed number of computed steps, and for each method the cases that keep
    it and its computed steps; `share` is that of the prompts of a row that keep it."""
    rows = record["rows"]
    part = lambda row: (row["case"], row["run"], row["guided"])  # noqa: E731
    parts = {part(row) for row in rows}

    def fixed(own: Sequence[Record], aim: float) -> int:
        known = [row for row in own if row["method"] == "fixed"]
        missed = max((row["setting"] for row in known if share(row, aim) < 0.9), default=0)
        return min((row["setting"] for row in known if row["setting"] > missed), default=28)

    def cells(aims: Sequence[float]) -> list[str]:
        each = [(aim, [row for row in rows if part(row) == p]) for aim in aims for p in parts]
        each = [(a, own) for a, own in each if any((r["method"], r["setting"]) == ("tuned", a) for r in own)]
        found = [f"{fmean(fixed(own, aim) for aim, own in each):.1f}"]
        for method in methods:
            runs = [(a, [r for r in own if (r["method"], r["setting"]) == (method, a)]) for a, own in each]
            kept = sum(fmean(share(draw, aim) for draw in draws) >= 0.9 for aim, draws in runs)
            computed = fmean(draw["computed"] for _, draws in runs for draw in draws)
            found.append(f"{kept} of {len(runs)}, {computed:.1f}")
        return found

    aims = sorted({row["setting"] for row in rows if row["method"] == "tuned"})
    return [[f"{each:g}", *cells([each])] for each in aims] + [["all", *cells(aims)]]


def _tolerance(record: Record) -> Rows:
    return _asked(record, ("untuned", "tuned"), lambda row, aim: fmean(error <= aim for error in row["errors"]))


def _quality(record: Record) -> Rows:
    return _asked(record, ("tuned",), lambda row, aim: fmean(psnr >= aim for psnr in row["each"]))


KEPT = ("default, speedup=2", "tolerance=0.05", "region blocks", "TeaCache", "EasyCache", "TaylorSeer, order 2")


def _memory(record: Record) -> Rows:
    models = record["models"]
    rows = []
    for name in KEPT:
        runs = [models[model][name] for model in ("flux.1", "qwen-image", "wan2.1-14b", "wan2.1-14b-720p")]
        reads = runs[0]["reads"] / runs[0]["decisions"]
        kept = [f"{run['kept_bytes'] / 2**20:,.1f}" for run in runs]
        rows.append([name, *kept, f"{runs[0]['operations']:.0f}", f"{reads:.1f}"])
    return rows


def _compare(record: Record, default: Record, tuned: Record) -> Rows:
    def points(of: Record, case: Record, *methods: str) -> list[Record]:
        key = ("pipeline", "steps", "guidance")
        same = next(each for each in of["cases"] if all(each[part] == case[part] for part in key))
        return [p for p in same["points"] if p["psnr"] and {p["family"], p["method"]} & set(methods)]

    def best(found: Sequence[Record], most: float) -> str:
        values = [point["psnr"]["mean"] for point in found if point["computed_steps"] <= most + 0.5]
        return f"{max(values):.1f}" if values else "–"

    rows = []
    chosen = [case for case in record["cases"] if case["steps"] == 28]
    for case in sorted(chosen, key=lambda each: (each["pipeline"], -each["guidance"])):
        for fewer in (2, 3):
            most = 28 // fewer
            ours = points(default, case, "omnireuse, default", "omnireuse, speedup=…")
            name = f"{KINDS[case['pipeline']]}, {'guided' if case['guidance'] > 1 else 'none'}, {most}"
            others = (points(record, case, each) for each in ("omnireuse, calibrated", "peer", "baseline"))
            ours_tuned = points(tuned, case, "omnireuse, tuned on 3 pictures")
            rows.append([name, *(best(each, most) for each in (ours, ours_tuned, *others))])
    return rows


def _calibration(record: Record) -> Rows:
    chosen = [row for row in record["rows"] if (row["fit_prompts"], row.get("evaluations", 1)) == (5, 1)]
    found = []
    for case, guided in dict.fromkeys((row["case"], row["guided"]) for row in chosen):
        own = _rows({"rows": chosen}, case=case, guided=guided)
        own.sort(key=lambda row: -row["computed_steps"])
        name = f"{KINDS[case]}, {'guided' if guided else 'none'}"
        found.append([name, f"{own[0]['runs']:.0f}", *(f"{r['psnr']:.1f} ({_signed(r['gain'])})" for r in own)])
    return found


def _promise(record: Record) -> Rows:
    return [
        [str(row["size"]), f"{row['holds']:.0%}", f"{row['worst']:.0%}", f"{row['below']:.1f}"]
        for row in record["bounds"]
        if row["size"] in (5, 8, 24, 48)
    ]


MANAGERS = {
    "vLLM 0.33 EncoderCacheManager": "vLLM 0.33's",
    "VllmEncoderCacheManager": "for vLLM",
    "SharedEncoderCacheManager": "shared",
    "EncoderCacheManager": "of one owner",
}


def _managers(record: Record) -> Rows:
    speed = record["speed"]
    own = next(iter(MANAGERS))
    return [
        [
            short,
            f"{1e6 * median(speed['seconds'][name]):.2f}",
            f"{median(a / b for a, b in zip(speed['seconds'][name], speed['seconds'][own], strict=True)):.2f}",
            f"{speed['bytes'][name]:.0f}",
        ]
        for name, short in MANAGERS.items()
    ]


def _connector(record: Record) -> Rows:
    def of(way: str, what: str) -> str:
        return ", ".join(f"{_two(1e3 * median(record['seconds'][size][way][what]))}" for size in ("576", "2880"))

    columns = ("step waits, save", "save, whole", "step waits, load", "load, whole")
    return [[way, *(of(way, what) for what in columns)] for way in record["seconds"]["576"]]


def _two(value: float) -> str:
    """Two digits that count."""
    return f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}"


def _router(record: Record) -> Rows:
    def share(name: str, clients: str) -> str:
        return f"{fmean(run['hit_rate'] for run in record['results'][name][clients]):.2f}"

    return [[each, share("Ray's default", each), share("by prompt", each)] for each in record["results"]["by prompt"]]


def _prefix(record: Record) -> Rows:
    found = []
    for width in sorted({row["width"] for row in record["bandwidth"]}):
        own = sorted((row for row in record["bandwidth"] if row["width"] == width), key=lambda row: row["requests"])
        shares = [
            ", ".join(f"{row[what]['share_of_copy']['median']:.2f}" for what in ("update", "merge")) for row in own
        ]
        found.append([f"{2 * width // 1024} KB", *shares])
    return found


def _prefix_managers(record: Record) -> Rows:
    found = []
    for width in sorted({row["width"] for row in record["managers"]}):
        own = sorted((row for row in record["managers"] if row["width"] == width), key=lambda row: row["requests"])
        ratios = [
            ", ".join(f"{row[f'{what}, processor']['ratio']['median']:.1f}" for what in ("update", "merge"))
            for row in own
        ]
        found.append([f"{2 * width // 1024} KB", *ratios])
    return found


def _idle(record: Record) -> Rows:
    return [
        [name, str(run["calls"]), f"{run['us']:.1f}", f"{run['request_ms']:.0f}"]
        for name, run in sorted(record.items())
        if "us" in run
    ]


def _gpu(record: Record) -> Rows:
    rows = []
    for model in _rows(record, part="regions"):
        full = f"{model['full_step_ms']['median']:.0f}"
        for region, row in model["regions"].items():
            speedup = row["speedup"]
            rows.append(
                [
                    model["model"],
                    region,
                    full,
                    f"{row['reused_step_ms']['median']:.1f}",
                    f"{model['launches_full']} / {row['launches_reused']}",
                    f"{row['kept_bytes'] / 2**20:.1f}",
                    f"{speedup['median']:.2f} ({speedup['lowest']:.2f}–{speedup['highest']:.2f})",
                    f"{row['steps_over_computed']:.2f}",
                ]
            )
    return rows


def _gpu_ways(record: Record) -> Rows:
    rows = []
    for row in record["rows"]:
        if row["part"] != "regions" and "error" not in row:
            equal = "yes" if row["computing_is_equal"] and row["removed_is_equal"] else "no"
            full = f"{row['full_step_ms']['median']:.0f}"
            ratios = [f"{row[name]:.2f}" for name in ("speedup", "steps_over_computed")]
            rows.append([row["model"], row["part"], full, *ratios, equal])
    return rows


PUBLISHED = (1.40, 1.77, 1.99, 2.22)
"""FLUX.2 klein 9B-KV, a variant trained to keep keys, for 1 to 4 references at 1024 × 1024: as its publishers say."""


def _times(row: Record) -> tuple[float, float]:
    """Seconds of a full and of a lean call."""
    seconds = row["seconds"]
    return median(seconds["full"] or seconds["keeping"]), median(seconds["lean"])


def _reference_calls(record: Record) -> Rows:
    rows = []
    for row in _rows(record, part="call", size="true", on_host=False):
        if not (count := row["references"]):
            continue
        same = {"part": "call", "model": row["model"], "references": count}
        full, lean = _times(row)
        others = [
            f"{seconds[0] / seconds[1]:.2f}" if found else "–"
            for found in (_rows(record, **same, size="true", on_host=True), _rows(record, **same, size="few"))
            for seconds in [_times(found[0]) if found else (0.0, 1.0)]
        ]
        cells = [f"{1000 * full:.0f}", f"{1000 * lean:.0f}", f"{full / lean:.2f}", *others]
        rows.append([f"{row['model']}, {count}", *cells, f"{PUBLISHED[count - 1]:.2f}"])
    return rows


def _reference_runs(record: Record) -> Rows:
    rows = []
    for first in _rows(record, part="run", size="true", way="full"):
        key = {name: first[name] for name in ("part", "size", "model", "references", "steps")}
        seconds = {row["way"]: row["seconds"] for row in _rows(record, **key)}
        gains = [f"{first['seconds'] / seconds[way]:.2f}" if way in seconds else "–" for way in RUN_WAYS]
        rows.append([f"{first['references']}, {first['steps']}", f"{first['seconds']:.1f}", *gains])
    return rows


RUN_WAYS = ("first full", "every 4th full", "reuse", "reuse, first full", "reuse, every 4th full")


def _reference_memory(record: Record) -> Rows:
    gib = 2**30
    return [
        [
            row["model"],
            f"{2 * row['parameters'] / gib:.1f}",
            *(f"{count * row['kept_bytes'] / gib:.2f}" for count in range(1, 5)),
        ]
        for row in _rows(record, part="memory")
    ]


def _reference_quality(record: Record) -> Rows:
    rows = []
    for row in sorted(_rows(record, part="quality"), key=lambda row: (row["model"], row["references"])):
        each = row["each"]
        enough = 35 if row["model"].endswith("-8") else 40
        share = fmean(value >= enough for value in each)
        psnr = [f"{fmean(each):.1f}", f"{_low(each):.1f}", f"{min(each):.1f}"] if row["way"] != "full" else ["–"] * 3
        right = [f"{100 * row[name]:.1f}" for name in ("changed_right", "kept_right")]
        name = f"{row['model']}, {row['references']}: {row['way']}"
        rows.append([name, f"{100 * row['tokens']:.0f}", *psnr, f"{100 * share:.0f}", *right])
    return rows


GROUPS: dict[str, tuple[Table, ...]] = {
    "Reuse of denoising steps": (
        Table(
            "Tuning",
            ("tune",),
            "Mean PSNR over eleven cases, each one of four models with a solver or shift, at 14 and 9 of 28 steps: "
            "fewer steps of the solver, the last output held, the untuned default, and the same "
            "[tuned](tuning.md) on one and on three pictures",
            ("steps", "fewer", "hold", "untuned", "tuned 1", "tuned 3"),
            _tuning,
            (*STEPS, *TUNING),
            ("tuning.png", "The gain over the untuned default, by how many pictures were seen"),
        ),
        Table(
            "What a draw of three pictures gains",
            ("tune", "tune_faces"),
            "How many dB tuning on three pictures gains over the untuned default. Each draw is another three "
            "pictures, and its gain is the mean over other prompts. The columns have the number of draws, the mean of "
            "their gains, and the three lowest gains",
            ("models", "draws", "mean", "lowest", "second", "third"),
            _draws,
            (*STEPS, *TUNING),
        ),
        Table(
            "A model that was left out",
            ("tune_faces",),
            "The same on [faces](reference.md#faces), which was kept out of all tuning of the library. Steps are 14, 9 "
            "and 7 of 28. A cell has the mean PSNR of 8 prompts, and in brackets the 5 % quantile and the lowest "
            'picture. "Tuned 3" is the mean of five draws of three pictures',
            ("run", "fewer", "untuned", "tuned 1", "tuned 3"),
            _left_out,
            (*STEPS, *TUNING),
        ),
        Table(
            "Quantised weights",
            ("quantised",),
            "Mean PSNR, and in brackets the lowest picture, of six prompts of shapes-flux with guidance 6 at 14 of 28 "
            "steps. Each kind of weights is compared with its own full run. Weights are quantised by torchao 0.18 on "
            "a CPU, where fp8 (per token) and fp4 (E2M1, in groups of 16 values) are emulated. Tuned on one draw of "
            "three pictures",
            ("weights, activations", "fewer", "hold", "untuned", "tuned 3"),
            _quantised,
            (*STEPS, *TUNING),
        ),
        Table(
            "Few computed steps",
            ("few_steps",),
            "The untuned default at 14, 9 and 7 of 28 steps, each over three shifts: mean PSNR, and in brackets how "
            "far above fewer steps of the solver",
            ("case", "14", "9", "7"),
            _few,
            STEPS,
            ("few-steps.png", "dB above fewer steps against the number of steps"),
        ),
        Table(
            "First, do no harm",
            ("harm",),
            "Is the untuned default worse than what costs as much? Its rivals with as many computed steps are plain "
            "fewer steps, and the last output held. The table has the ten worst cases, and in the last row the mean "
            "of all. Beside the five pipelines there are models without an autoencoder: pixel_flux and movements are "
            'flows, pixels predicts noise, flags predicts v, and cloth is EDM\'s. "Guided" is the usual guidance of a '
            'model. "Above" is the mean PSNR of the default minus that of the better rival, and "quantile" the same '
            "for the 5 % quantile. A case is harmed if the first is below −0.5 dB or the second below −1 dB. The last "
            "column says whether the summary warned",
            ("case", "fewer", "held", "default", "above", "quantile", "said"),
            _harm,
            STEPS,
        ),
        Table(
            "What a tolerance leaves",
            ("tolerance",),
            "A tolerance is kept if nine of ten prompts keep it. A cell says in how many of 18 cases that is so, and "
            'how many of 28 steps were computed. "Fixed" is the smallest fixed number of steps that keeps it',
            ("tolerance", "fixed", "untuned", "tuned"),
            _tolerance,
            (*STEPS, *TUNING),
            ("tolerance.png", "The error of nine of ten prompts against the tolerance"),
        ),
        Table(
            "What a quality without a profile keeps",
            ("quality",),
            "A quality is kept if nine of ten prompts reach it. A cell says in how many cases that is so, over two "
            'draws of pictures, and how many of 28 steps were computed. "Fixed" is the smallest fixed number of '
            "steps that keeps it",
            ("quality in dB", "fixed", "tuned"),
            _quality,
            (*STEPS, *TUNING),
        ),
        Table(
            "Memory and reads of the host",
            ("memory",),
            "MiB that a run keeps on Flux.1 at 1024 × 1024, Qwen-Image at 1328 × 1328 and Wan 14B with 81 frames of "
            "480 and 720 lines in bfloat16; on Flux the operations of torch in a reused step, the scheduler's among "
            "them, and how often a decision waits for the device; tensors have their true shapes and no data",
            ("cache", "Flux", "Qwen", "Wan 480", "Wan 720", "operations", "reads"),
            _memory,
            (*STEPS, "src/omnireuse/named", "src/omnireuse/diffusion/cache"),
        ),
    ),
    "References of editing models": (
        Table(
            "A full and a lean call",
            ("references",),
            "Milliseconds of a call at true size with random weights in bfloat16 on one NVIDIA H200, for a target and "
            "1 to 4 references of 1024 × 1024 pixels; how many times as long a full call takes: with kept keys on the "
            "GPU, on the host, and in two blocks on a CPU; the last column is what FLUX.2 klein 9B-KV, which was "
            "trained to keep keys, is published with for whole pictures",
            ("model, references", "full", "lean", "times", "host", "CPU", "klein KV"),
            _reference_calls,
            (_ROOMS + "references",),
            ("references.png", "Time of lean calls by the number of references, and closeness by computed tokens"),
        ),
        Table(
            "Whole runs of an editing model",
            ("references",),
            "Seconds of a full run of flux.1-kontext on the H200, without text encoders and decoder, and how many "
            "times as fast others are: the first call full, also every fourth; every second step reused, and both (the "
            "last step's call is lean here)",
            ("references, steps", "full, s", "first", "every 4th", "reuse", "reuse, first", "reuse, 4th"),
            _reference_runs,
            (_ROOMS + "references",),
        ),
        Table(
            "Memory of kept keys and values",
            ("references",),
            "GiB in bfloat16 for each branch of guidance, for 1 to 4 references of 1024 × 1024 pixels, beside the "
            "weights; tensors have their true shapes and no data",
            ("model", "weights", "1", "2", "3", "4"),
            _reference_memory,
            (_ROOMS + "references",),
        ),
        Table(
            "What lean calls change",
            ("references",),
            "Held-out edits of people by the number of references: computed tokens (in % of the full run's), PSNR in "
            "dB to the full run (mean, 5 % quantile, worst), pictures with 40 dB or more (35 of the model with 8 "
            "steps; in %), and attributes that changed and stayed as they should (in %)",
            ("way", "tokens", "mean", "5 %", "worst", "enough", "changed", "kept"),
            _reference_quality,
            (_ROOMS + "references", *STEPS),
        ),
    ),
    "Comparison with other caches": (
        Table(
            "Faces beside every other method",
            ("compare_faces",),
            "Within 14, 9 and 7 of 28 steps, on 16 prompts: the best solver or spacing with so few steps, the best "
            "cache of diffusers, cache-dit and papers, the best of them that needs a calibration, and the default "
            "untuned, tuned on three pictures, and a profile",
            ("case", "solver", "cache", "calibrated", "untuned", "tuned", "profile"),
            _beside,
            (*STEPS, *TUNING),
            ("fronts.png", "PSNR to the full run by computed steps, the five closest other methods"),
        ),
        Table(
            "Half and a third of the steps",
            ("compare", "compare_default", "compare_tuned"),
            "At 14 and 9 of 28 steps the default untuned and tuned, a calibrated profile, the best setting of any "
            "cache of diffusers and cache-dit, and the best solver or spacing with as few steps, on 16 "
            "images or 8 clips; [how it is counted](compare.md#how-it-is-counted)",
            ("case", "untuned", "tuned", "profile", "cache", "solver"),
            _compare,
            (*STEPS, *TUNING),
            ("compare.png", "PSNR against computed steps, every method"),
        ),
        Table(
            "Quality and the cost of a calibration",
            ("calibration",),
            "What a calibration on 24 prompts costs in full runs, its PSNR at 14, 9 and 7 of 28 steps, "
            "and in brackets how far above a local search of 289 to 1,896 runs",
            ("case", "runs", "14", "9", "7"),
            _calibration,
            TUNING,
            ("calibration.png", "PSNR less the long search's, against the full runs spent"),
        ),
        Table(
            "What a promise is worth",
            ("promise",),
            "By the number of held-out prompts: how often a promise holds over 36 samples, how often for "
            "the worst of them, and by how many dB it lies below what nine of ten pictures reach",
            ("held out", "holds", "worst", "dB below"),
            _promise,
            ("src/omnireuse/profiles/coverage.py",),
        ),
    ),
    "Engines and servers": (
        Table(
            "Encoder cache managers",
            ("encoder_cache",),
            "Time of an access in µs of one thread, its ratio to vLLM's manager in the same run, and "
            "bytes an entry, over 10⁶ accesses to 4,096 items",
            ("manager", "µs", "ratio", "bytes"),
            _managers,
            (
                _ROOMS + "core/encoder_cache_manager.py",
                *(_VLLM + name for name in ("manager.py", "vllm_manager.py", "eviction.py")),
            ),
        ),
        Table(
            "Encoder outputs of vLLM",
            ("encoder_connector",),
            "Milliseconds an item of 4.7 and of 23.6 MB, beside vLLM 0.33's example connector: what a "
            "step waits for, and until the item is written or loaded",
            ("connector", "save, waits", "whole", "load, waits", "whole"),
            _connector,
            (_VLLM + "outputs.py", _ROOMS + "stores"),
        ),
        Table(
            "Replicas behind a router",
            ("router",),
            "The share of 400 requests for 120 prompts whose prompt their replica still has, of three "
            "that keep 32 each, under Ray Serve's default and `PromptAffinityRouter`",
            ("clients at once", "default", "by prompt"),
            _router,
            ("engines/src/omnireuse_engines",),
        ),
        Table(
            "Prefix cache",
            ("prefix_cache",),
            "Throughput of update and merge as a share of a plain copy of as many bytes, by the size of a "
            "row and the number of requests",
            ("row", "8", "32", "128", "256"),
            _prefix,
            (_ROOMS + "core/prefix_cache",),
        ),
        Table(
            "Prefix cache beside vllm-omni's manager",
            ("prefix_managers",),
            "How many times as long the calls of a step take with vllm-omni 0.30's manager in its eager mode, in "
            "processor time: update and merge, by the size of a row and the number of requests",
            ("row", "8", "32", "128", "256"),
            _prefix_managers,
            (_ROOMS + "core/prefix_cache",),
        ),
        Table(
            "Models of true size on a GPU",
            ("gpu",),
            "Transformers of true size with random weights in bfloat16 on one NVIDIA H200, every second step computed: "
            "time of a step, kernel launches of a computed and a reused one, what is kept, and the full run's time "
            "over that with reuse (lowest and highest of the repeats) beside its steps over computed ones",
            ("model", "region", "computed, ms", "reused, ms", "launches", "MiB kept", "speed-up", "steps / computed"),
            _gpu,
            (_ROOMS + "loop", _ROOMS + "hooks"),
        ),
        Table(
            "Compiled, quantised and offloaded on a GPU",
            ("gpu",),
            "The same models run in other ways, region `step`; bit-equal says that a run which computes every step, "
            "and one after reuse was removed, equal the untouched run",
            ("model", "way", "computed, ms", "speed-up", "steps / computed", "bit-equal"),
            _gpu_ways,
            (_ROOMS + "loop", _ROOMS + "hooks"),
        ),
        Table(
            "Plugins that nobody asks for anything",
            ("idle",),
            "What an installed plugin adds to a request of 28 steps if no cache is asked for, and the "
            "time of the whole request",
            ("engine", "calls", "µs added", "request, ms"),
            _idle,
            ("engines/src/omnireuse_engines",),
        ),
    ),
}


def _conclusions() -> dict[str, object]:
    """The figures of the page's head."""

    def leads(rows: Rows, ours: int, others: tuple[int, ...]) -> str:
        found = [float(row[ours]) - max(float(row[other]) for other in others if row[other] != "–") for row in rows]
        return f"{min(found):.0f} to {max(found):.0f}"

    def speed(model: str) -> tuple[str, str]:
        [row] = _rows(gpu, part="regions", model=model)
        step = row["regions"]["step"]
        return f"{step['speedup']['median']:.2f}", f"{step['steps_over_computed']:.2f}"

    harm, gpu = read("harm"), read("gpu")
    harmed = _harmed(harm)
    five = {"shapes-flux", "shapes-wan", "shapes-dev", "shapes-sd", "faces"}
    compared = _compare(*map(read, ("compare", "compare_default", "compare_tuned")))
    (flux, flux_most), (qwen, qwen_most) = speed("flux.1"), speed("qwen-image")
    return {
        "faces": leads(_beside(read("compare_faces")), 5, (1, 2, 3)),
        "models": leads(compared, 2, (4, 5)),
        "harmed": len(harmed),
        "cases": len(harm["rows"]),
        "worst": f"{-min(_above(row, fmean) for row in harm['rows']):.0f}",
        "pixel_flux": sum(row["model"] == "pixel_flux" and row["guidance"] > 0 for row in harmed),
        "unipc": sum((row["model"], row["run"]) == ("movements", "UniPC") for row in harmed),
        "pixels": sum(row["model"] == "pixels" for row in harmed),
        "five": sum(row["model"] in five for row in harmed),
        "five_cases": sum(row["model"] in five for row in harm["rows"]),
        "told": sum(row["said"] for row in harmed),
        "flux": flux,
        "flux_most": flux_most,
        "qwen": qwen,
        "qwen_most": qwen_most,
    }


def page() -> str:
    """The page as it should be."""
    parts = [HEAD.format(**_conclusions())]
    for title, tables in GROUPS.items():
        parts += [f"## {title}\n", *(table.text() for table in tables)]
    return "\n".join(parts).rstrip() + "\n"


def older() -> list[str]:
    """The tables whose code has changed since their run, with the number of commits."""
    found = []
    for table in (table for tables in GROUPS.values() for table in tables):
        for name in table.records:
            revision = _run(read(name))[1] or _git("log", "-1", "--format=%h", "--", f"bench/results/{name}.json")
            try:
                commits = _git("rev-list", "--count", f"{revision.removesuffix('+')}..HEAD", "--", *table.paths)
            except subprocess.CalledProcessError:
                found.append(f"{table.title}, {name}.json: revision {revision} is not in this history")
            else:
                if commits != "0":
                    found.append(f"{table.title}, {name}.json: {commits} commits to its code since {revision}")
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the page; with ``--check`` only say whether it is current, with ``--older`` which tables are not."""
    if "--older" in arguments:
        print("\n".join(older()) or "no table is older than its code")
        return 0
    if "--check" in arguments:
        current = PAGE.read_text("utf-8") == page()
        print("docs/figures.md is current" if current else "run: python scripts/figures.py")
        return 0 if current else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
