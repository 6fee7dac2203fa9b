"""What the commands of ``omnireuse`` take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from omnireuse.demo.config import DemoConfig
from omnireuse.demo.engine.config import EngineDemoConfig

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_calibrate", "add_compare", "add_demo", "add_engine_demo", "add_replay", "add_report"]


def add_demo(commands: Commands) -> argparse.ArgumentParser:
    """What `omnireuse demo` takes."""
    words = "compare the full run, caches and fewer steps on a reference pipeline"
    parser = commands.add_parser("demo", help=words, description=words, allow_abbrev=False)
    parser.add_argument("--video", action="store_true", help="short clips instead of images")
    images, clips = DemoConfig(), DemoConfig(video=True)
    kinds: dict[str, Callable[[str], object]] = {
        "model": Path,
        "out": Path,
        "steps": int,
        "guidance": float,
        "prompts": int,
        "seed": int,
    }
    helps = {
        "model": "folder of the pipeline (default: models/shapes-flux, with --video models/shapes-wan)",
        "out": "folder for the results",
        "steps": f"denoising steps of the full run (default: {images.full_steps}, with --video {clips.full_steps})",
        "guidance": "classifier-free guidance; 1 is none "
        f"(default: {images.full_guidance:g}, with --video {clips.full_guidance:g})",
        "prompts": "how many prompts",
        "seed": "decides prompts and noise",
    }
    for name, kind in kinds.items():
        default = getattr(images, name)
        words = helps[name] + ("" if default is None else f" (default: {default})")
        parser.add_argument(f"--{name}", type=kind, default=default, help=words)
    return parser


def add_calibrate(commands: Commands) -> argparse.ArgumentParser:
    """What `omnireuse calibrate` takes."""
    words = "search the best schedules for a pipeline on its own runs, and write them as a profile"
    parser = commands.add_parser("calibrate", help=words, description=words, allow_abbrev=False)
    parser.add_argument("model", type=Path, metavar="MODEL_DIR", help="folder of a diffusers pipeline")
    parser.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE", help="one prompt a line; a third is held out"
    )
    parser.add_argument("--out", type=Path, default=Path("profile.json"), help="the profile (default: profile.json)")
    parser.add_argument("--steps", type=int, default=28, help="denoising steps of a run (default: 28)")
    parser.add_argument(
        "--computed", type=_numbers, help="budgets of computed steps, N[,N…] (default: 1.5x to 4x fewer)"
    )
    parser.add_argument("--evaluations", type=int, default=30, help="schedules tried for each budget (default: 30)")
    parser.add_argument(
        "--margin", type=float, default=1.0, help="standard errors that a gain must exceed to count (default: 1)"
    )
    parser.add_argument("--seconds", type=float, help="wall-clock budget of the search")
    parser.add_argument("--batch", type=int, default=1, help="prompts a call (default: 1)")
    parser.add_argument(
        "--fit-prompts", type=int, default=8, metavar="N", help="prompts that weights are fitted on (default: 8)"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes, one a GPU or one a CPU thread (default: 0, this one alone)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of noise and search (default: 0)")
    parser.add_argument(
        "--call", type=_call, default={}, metavar="JSON", help="further arguments, as in '{\"true_cfg_scale\": 6.0}'"
    )
    return parser


def add_compare(commands: Commands) -> argparse.ArgumentParser:
    """What `omnireuse compare` takes."""
    words = (
        "hold this library, the caches of diffusers and cache-dit, and plain fewer steps against a pipeline's full run"
    )
    parser = commands.add_parser("compare", help=words, description=words, allow_abbrev=False)
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL_DIR", help="folder of a diffusers pipeline")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="one prompt a line")
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[28], help="denoising steps of the full run (default: 28)"
    )
    parser.add_argument("--guidance", type=float, nargs="+", default=[], help="1 is none (default: the pipeline's own)")
    parser.add_argument("--profile", type=Path, nargs="+", default=[], metavar="FILE", help="from omnireuse calibrate")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="METHOD", help="methods or families: ours, peer, floor (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt's noise (default: 0)")
    parser.add_argument(
        "--time", type=int, default=0, metavar="N", help="prompts for the wall-clock (default: 0, none)"
    )
    parser.add_argument("--batch", type=int, default=1, help="prompts a call, where a method allows it (default: 1)")
    parser.add_argument(
        "--call", type=_call, default={}, metavar="JSON", help="further arguments, as in '{\"height\": 512}'"
    )
    parser.add_argument("--out", type=Path, default=Path("out/compare"), help="folder (default: out/compare)")
    parser.add_argument(
        "--merge", type=Path, nargs="+", default=[], metavar="FILE", help="put parts that ran apart together instead"
    )
    return parser


def add_report(commands: Commands) -> argparse.ArgumentParser:
    """What `omnireuse report` takes."""
    words = "make the page and the pictures again from the results of a demo, the points of a comparison, or both"
    parser = commands.add_parser("report", help=words, description=words, allow_abbrev=False)
    parser.add_argument("files", type=Path, nargs="+", metavar="RESULTS.json", help="of omnireuse demo or compare")
    parser.add_argument("--out", type=Path, help="folder, or the page itself: PAGE.html (default: beside the results)")
    return parser


def add_replay(commands: Commands) -> argparse.ArgumentParser:
    """What `omnireuse replay` takes."""
    words = "replay a trace of item accesses through the shared encoder cache, beside LRU and the clairvoyant bound"
    parser = commands.add_parser("replay", help=words, description=words, allow_abbrev=False)
    parser.add_argument("trace", type=Path, metavar="TRACE", help="CSV or JSON lines: key, size, [cost], [request]")
    parser.add_argument("--capacity", type=_numbers, help="embeddings, N[,N…] (default: shares of all items)")
    parser.add_argument("--policy", type=_names, help="eviction policies, NAME[,NAME…] (default: all)")
    parser.add_argument("--out", type=Path, help="folder for the results (default: out/replay)")
    parser.add_argument("--make", metavar="KIND", help="write TRACE instead: zipf, scan or multi-turn")
    parser.add_argument("--accesses", type=int, help="of a trace to make (default: 20000)")
    parser.add_argument("--seed", type=int, help="of a trace to make (default: 0)")
    parser.add_argument("--size", type=int, help="embeddings of every item of a trace to make (default: a mix)")
    return parser


def add_engine_demo(commands: Commands) -> argparse.ArgumentParser:
    """What `omnireuse engine-demo` takes."""
    words = "serve conversations over images in a small engine, with the engine caches off and on"
    parser = commands.add_parser("engine-demo", help=words, description=words, allow_abbrev=False)
    helps = {
        "out": "folder for the results",
        "users": "conversations side by side",
        "turns": "questions of each user",
        "blocks": "blocks of the KV cache; few of them make preemptions",
        "seed": "decides what is said and shown",
    }
    for field in fields(EngineDemoConfig):
        words = f"{helps[field.name]} (default: {field.default})"
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default, help=words)
    return parser


def _call(text: str) -> dict[str, object]:
    try:
        call = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON, got {text!r}: {error}") from None
    if not isinstance(call, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return call


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between, got {text!r}") from None
