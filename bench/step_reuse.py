"""Reuse of denoising steps on the reference pipeline: quality at equal compute beside the baselines, and wall-clock.

    python -m bench step_reuse [--prompts 24] [--steps 28] [--out out/bench]

Quality: held-out captions in batches, PSNR to the full run from the same noise. Beside every cache stand the two
baselines that it must not lose to, computed in the same run: the same solver on as many uniform steps, and the same
solver on the very timesteps that the cache computed. Wall-clock: one prompt at a time, variants taking turns, as a
ratio to the full run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import Row, new_parser, new_table, no_warnings, write_record
from bench._player import STEPS, Player
from omnireuse import Blend, Hold, Polynomial, Spread
from omnireuse_lab.record import environment
from reference.case import IMAGES
from reference.evaluate import score

DEFAULT = omnireuse.Strategy.default()
FORECASTERS = {
    "hold": Hold(),
    "polynomial": Polynomial(order=1),
    "blend": Blend(),
}
SCHEDULES = {"default": DEFAULT.policy} | {
    f"{count}, {name}": Spread(num_computed=count, power=power)
    for count in (14, 10, 7)
    for name, power in (("even", 1.0), ("power 1.7", 1.7))
}


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``step_reuse.json`` and two tables."""
    parser = new_parser("step_reuse", __doc__)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--timed", type=int, default=8, help="prompts for the wall-clock part")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args(arguments)

    def player(guided: bool) -> Player:
        part = {"case": IMAGES.name, "guided": guided}
        return Player(part, options.prompts, seed=options.seed, steps=options.steps)

    record: dict[str, Any] = {
        "command": f"python -m bench step_reuse --prompts {options.prompts} --steps {options.steps}",
        "environment": environment(),
    }
    with no_warnings():
        record["quality"] = {name: quality(player(name == "guided")) for name in ("guided", "unguided")}
        record["wall_clock"] = wall_clock(player(True), options.timed)
    show(record, Console())
    write_record(record, options.out, "step_reuse")


def quality(player: Player) -> list[Row]:
    """Each schedule with each forecaster, and its baselines."""
    rows: list[Row] = []
    noises = np.linspace(1.0, 1 / player.steps, player.steps)
    for name, policy in track(SCHEDULES.items(), f"quality, {player.guidance or 'guided'}"):
        assert isinstance(policy, Spread)
        computed = sorted(policy.schedule(player.steps, tuple(noises.tolist())))
        # The solver on these steps of the full schedule alone; the scheduler shifts what it is given.
        same = {"sigmas": noises[computed].tolist(), "num_inference_steps": None}
        variants = {
            "fewer uniform steps": judged(player, player.full(len(computed))),
            "same timesteps": judged(player, player.run(**same)),
        }
        for forecaster, choice in FORECASTERS.items():
            # Holding the output is the same solver on the computed timesteps, which is that baseline exactly.
            made, at = player.reusing(policy=policy, forecaster=choice)
            assert len(at) == len(computed)
            variants[forecaster] = judged(player, made)
        rows.append({"schedule": name, "computed": len(computed), "variants": variants})
    return [*rows, {"schedule": "full", "computed": player.steps, "variants": {"full": judged(player, player.full())}}]


def judged(player: Player, made: Any) -> Row:
    """PSNR with its spread over prompts, and attributes right."""
    each = player.judge(made)
    attributes, captions, _ = score(player.scenes, made, player.case.check)
    return {
        "psnr": statistics.fmean(each),
        "psnr_low": float(np.quantile(each, 0.1)),
        "psnr_high": float(np.quantile(each, 0.9)),
        "attributes": attributes,
        "captions": captions,
    }


def wall_clock(player: Player, timed: int) -> list[Row]:
    """Seconds for one image, variants taking turns; the host's share of a reused step."""
    pipe, region = player.pipeline, {"policy": DEFAULT.policy, "forecaster": DEFAULT.forecaster, "region": "call"}
    variants: dict[str, Callable[[], Any]] = {
        "full": lambda: None,
        "never (everything computed)": lambda: omnireuse.enable(pipe, policy="never"),
        "default, region step": lambda: omnireuse.enable(pipe),
        "default in region call": lambda: omnireuse.enable(pipe, **region),
        "hold in region blocks": lambda: omnireuse.enable(pipe, policy=DEFAULT.policy, region="blocks"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    notes: dict[str, Row] = {name: {} for name in variants}
    for number in track(range(-1, timed), "wall-clock"):
        for name, enable in variants.items():
            handle = enable()
            start = time.perf_counter()
            player.run([number % len(player.captions)])
            if number >= 0:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
            if handle is not None:
                reused = [event.host_seconds for event in handle.events if event.reused]
                notes[name] = {
                    "steps_over_computed": handle.summary().step_ratio,
                    "host_ms_a_reused_decision": statistics.median(reused) * 1e3 if reused else None,
                    "kept_bytes": handle.summary().kept_bytes,
                }
                handle.disable()
    rows = []
    for name, spent in seconds.items():
        ratios = [full / own for full, own in zip(seconds["full"], spent, strict=True)]
        spread = {"speedup": statistics.median(ratios), "speedup_low": min(ratios), "speedup_high": max(ratios)}
        rows.append({"variant": name, **spread, **notes[name]})
    return rows


def show(record: dict[str, Any], console: Console) -> None:
    """Both tables."""
    for name, rows in record["quality"].items():
        columns = list(rows[0]["variants"])
        table = new_table(f"PSNR to the full run in dB, {name}", "schedule", "computed", *columns)
        for row in rows[:-1]:
            cells = [f"{row['variants'][column]['psnr']:.1f}" for column in columns]
            table.add_row(row["schedule"], str(row["computed"]), *cells)
        console.print(table)
    headings = ("speed-up", "low", "high", "steps / computed", "host ms, reused", "KiB kept")
    table = new_table("wall-clock, ratio to the full run", "variant", *headings)
    for row in record["wall_clock"]:
        host = row.get("host_ms_a_reused_decision")
        table.add_row(
            row["variant"],
            *(f"{row[key]:.2f}" for key in ("speedup", "speedup_low", "speedup_high")),
            f"{row.get('steps_over_computed', 1.0):.2f}",
            "–" if host is None else f"{host:.3f}",
            f"{row.get('kept_bytes', 0) / 1024:.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
