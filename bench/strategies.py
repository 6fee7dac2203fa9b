"""Every policy with every forecaster on the trained pipelines: quality against computed steps, time and memory.

    python -m bench strategies [--case image video] [--steps 28 50] [--guidance guided unguided] [--out out/bench]
    python -m bench strategies --merge out/a/strategies.json out/b/strategies.json --out bench/results

Quality: held-out prompts in one batch, each with its own noise; PSNR and SSIM to the full run from the same noise, and
the attributes that the checker reads back. Each strategy is played at several settings of its dial, so that strategies
compare at equal numbers of computed steps; beside them stands the baseline, the same solver on fewer even steps.
Wall-clock, memory and host time: the middle setting, one prompt at a time, the full run and the strategy's forecasters
in turns. Writes JSON, tables, a picture for each step count, and the conclusion on forecasts
(`bench/_conclusion.py`). Parts may run apart and be merged.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

import omnireuse
from bench._cases import CASES, Player, Tuning
from bench._choices import FORECASTERS, SHARES, STRATEGIES, choice, settings
from bench._strategy_figures import BASELINE, FULL, draw, show
from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse.pipelines.pictures import IDENTICAL_DB, psnr
from omnireuse.summary.summary import Summary
from omnireuse_lab.closeness import ssim
from omnireuse_lab.record import environment

Record = dict[str, Any]
Rows = list[dict[str, Any]]


def main(arguments: list[str] | None = None) -> None:
    """Run, or merge parts; write ``strategies.json`` and ``strategies-STEPS.png``."""
    parser = argparse.ArgumentParser(prog="python -m bench strategies", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--steps", type=int, nargs="+", default=[28, 50])
    parser.add_argument("--guidance", nargs="+", choices=["guided", "unguided"], default=["guided", "unguided"])
    parser.add_argument("--only", nargs="+", default=list(STRATEGIES), help="strategies by name")
    parser.add_argument("--forecasters", nargs="+", default=list(FORECASTERS))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--settings", type=int, default=4, help="of each dial at most")
    parser.add_argument("--timed", type=int, default=3, help="prompts for the wall-clock part")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="parts: run nothing, put these together")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    for kind, chosen, known in (
        ("strategy", options.only, STRATEGIES),
        ("forecaster", options.forecasters, FORECASTERS),
    ):
        for name in chosen:
            if name not in known:
                raise UnknownNameError(kind, name, known)
    if not 0 <= options.timed <= options.prompts or options.prompts < 1 or options.settings < 1:
        raise ConfigError(
            "bench strategies: --prompts and --settings must be at least 1 and --timed in 0..--prompts, "
            f"got {options.prompts}, {options.settings} and {options.timed}"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    record = merged(options.merge) if options.merge else run(options)
    console = Console()
    show(record, Console(width=max(console.width, 150)))
    write(record, options.out)
    pictures = draw(record, lambda steps: options.out / f"strategies-{steps}.png")
    print(f"wrote {', '.join(map(str, (options.out / 'strategies.json', *pictures)))}")


def run(options: argparse.Namespace) -> Record:
    """All cases, step counts and guidances; written as far as it goes, so that a run cut short keeps what it has."""
    record: Record = {"commands": [_command(options)], "environment": environment(), "quality": [], "wall_clock": []}
    for name in options.case:
        player = Player(name, options.prompts, options.seed)
        for steps in options.steps:
            for guidance in options.guidance:
                how = {"steps": steps, "guided": guidance == "guided"}
                tuning = player.tune(**how)
                for part, measure in (("quality", quality), ("wall_clock", wall_clock)):
                    record[part] += [{"case": name} | how | row for row in measure(player, options, how, tuning)]
                    write(record, options.out)
    return record


def _command(options: argparse.Namespace) -> str:
    shown = {name: value for name, value in vars(options).items() if name not in ("out", "merge")}
    if shown["only"] == list(STRATEGIES):
        del shown["only"]
    if shown["forecasters"] == list(FORECASTERS):
        del shown["forecasters"]
    words = []
    for name, value in shown.items():
        each = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(f"'{word}'" if " " in str(word) else str(word) for word in each)]
    return f"python -m bench strategies {' '.join(words)}"


def merged(paths: list[Path]) -> Record:
    """Several records as one; a row that is there already (each part measures the baselines) is not repeated.

    Raises:
        ConfigError: they come from different versions or machines.
    """
    first, *others = [json.loads(path.read_text()) for path in paths]
    for path, other in zip(paths[1:], others, strict=True):
        if other["environment"] != first["environment"]:
            raise ConfigError(
                f"bench strategies(--merge {path}): must come from the environment of {paths[0]}, "
                f"{first['environment']}, got {other['environment']}"
            )
        for key in ("commands", "quality", "wall_clock"):
            first[key] += [row for row in other[key] if row not in first[key]]
    return first


def write(record: Record, folder: Path) -> None:
    """One row a line: short, and readable in a diff."""
    parts = []
    for key, value in record.items():
        rows = ",\n".join(map(json.dumps, value)) if isinstance(value, list) else None
        parts.append(f"{json.dumps(key)}: " + (json.dumps(value) if rows is None else f"[\n{rows}\n]"))
    (folder / "strategies.json").write_text("{" + ",\n".join(parts) + "}\n")


def quality(
    player: Player, options: argparse.Namespace, how: dict[str, Any], tuning: Tuning
) -> Iterator[dict[str, Any]]:
    """One row a strategy, forecaster and setting; the baseline first."""
    full = player.run(**how)
    plain = {"forecaster": "none", "setting": None, "mean_error": None}
    yield {"strategy": FULL, "computed": how["steps"]} | plain | judge(player, full, full)
    for steps in (round(how["steps"] * share) for share in SHARES):
        made = player.run(**how | {"steps": steps})
        yield {"strategy": BASELINE, "computed": steps} | plain | judge(player, made, full)
    plan = [
        (name, forecaster, setting)
        for name in options.only
        for forecaster in STRATEGIES[name].forecasters
        if forecaster in options.forecasters
        for setting in settings(name, options.settings)
    ]
    for name, forecaster, setting in track(plan, f"{how}, quality"):
        with omnireuse.enable(player.pipe, **choice(name, forecaster, setting, tuning)) as handle:
            batches = [[i] for i in player.judged] if STRATEGIES[name].alone else [list(player.judged)]
            made = np.concatenate([player.run(**how, which=batch) for batch in batches])
            summary = handle.summary()
        line = {"strategy": name, "forecaster": forecaster, "setting": setting}
        error = None if summary.mean_error is None else round(summary.mean_error, 5)
        yield line | {"computed": round(summary.computed_steps, 3), "mean_error": error} | judge(player, made, full)


def judge(player: Player, made: np.ndarray, full: np.ndarray) -> dict[str, Any]:
    """PSNR and SSIM of every prompt to its full run, and attributes right of all of them."""
    pairs = list(zip(made, full, strict=True))
    return {
        "psnr": [round(min(psnr(*pair), IDENTICAL_DB), 2) for pair in pairs],
        "ssim": [round(ssim(*pair), 4) for pair in pairs],
        "attributes": round(player.attributes_right(made), 4),
    }


def wall_clock(
    player: Player, options: argparse.Namespace, how: dict[str, Any], tuning: Tuning
) -> Iterator[dict[str, Any]]:
    """One row a strategy and forecaster: ratios to the full runs beside it, host time a decision, bytes kept."""
    for name in track(options.only, f"{how}, wall-clock"):
        played = settings(name, options.settings)
        setting = played[len(played) // 2]
        rows: dict[str, dict[str, Any]] = {
            forecaster: {"strategy": name, "forecaster": forecaster, "setting": setting, "ratios": []}
            for forecaster in STRATEGIES[name].forecasters
            if forecaster in options.forecasters
        }
        summaries: dict[str, list[Summary]] = {forecaster: [] for forecaster in rows}
        for prompt in player.judged[: options.timed]:
            full = seconds(player, how, prompt)
            for forecaster, row in rows.items():
                with omnireuse.enable(player.pipe, **choice(name, forecaster, setting, tuning)) as handle:
                    row["ratios"].append(round(full / seconds(player, how, prompt), 3))
                    summaries[forecaster].append(handle.summary())
        for forecaster, row in rows.items() if options.timed else ():
            told = summaries[forecaster]
            yield row | {
                "computed": round(statistics.fmean(summary.computed_steps for summary in told), 3),
                "host_ms": round(statistics.median(summary.host_seconds for summary in told) * 1e3, 4),
                "kept_bytes": max(summary.kept_bytes for summary in told),
            }


def seconds(player: Player, how: dict[str, Any], prompt: int) -> float:
    """Of one generation."""
    start = time.perf_counter()
    player.run(**how, which=[prompt])
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
