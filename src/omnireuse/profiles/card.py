"""The page of a shared profile: what it belongs to, what it promises, and how it was made."""

from __future__ import annotations

import logging
import math
import re
from importlib.util import find_spec
from pathlib import Path

from omnireuse.base.records import write_text
from omnireuse.profiles.conditions import UNKNOWN
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.profile import Profile

__all__ = ["write_card"]

logger = logging.getLogger("omnireuse")

PICTURE = "curve.png"


def write_card(profile: Profile, folder: Path) -> None:
    """Write ``README.md``, and a picture of quality against computed steps where matplotlib is installed.

    Raises:
        StateError: a file cannot be written.
    """
    has_picture = find_spec("matplotlib") is not None
    if has_picture:
        _draw(profile, folder / PICTURE)
    else:
        logger.info("the profile's page gets no picture: matplotlib is not installed")
    write_text(folder / "README.md", _text(profile, has_picture=has_picture))


def _text(profile: Profile, *, has_picture: bool) -> str:
    origin = profile.origin
    name = origin.name if origin is not None and origin.name else profile.model
    is_id = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
    head = ["tags: [omnireuse, omnireuse-profile]", *([f"base_model: {name}"] if is_id else [])]
    total, (searched, held_out) = profile.num_inference_steps, profile.num_prompts
    rows = [_row(profile, count, plan) for count, plan in sorted(profile.plans.items(), reverse=True)]
    about = {
        "pipeline": f"{name}, denoiser {profile.model}, {profile.scheduler}",
        "revision": origin.revision if origin is not None and origin.revision else "not known",
        "weights": origin.weights if origin is not None and origin.weights else "not known",
        "weights held as": origin.holding if origin is not None and origin.holding else "not known",
        "LoRA adapters": ", ".join(origin.adapters) if origin is not None and origin.adapters else "none",
        "dtype": profile.dtype or "not known",
        "autocast": profile.autocast or "off",
        "hooks": ", ".join(profile.hooks) or "none",
        "steps of a run": str(total),
        "call": ", ".join(f"{key}={value}" for key, value in profile.call.items()) or "defaults",
        "prompts": f"{searched} searched with, {held_out} held out",
        "search": f"{profile.cost_in_runs:g} full runs"
        + (f", on {profile.created}" if profile.complete else f"; not finished on {profile.created}"),
        "versions": ", ".join(f"{library} {version}" for library, version in profile.versions.items()),
    }
    return "\n".join(
        [
            "---",
            *head,
            "---",
            "",
            f"# Profile of {name}",
            "",
            "Which denoising steps to compute, and how to forecast the others. Only `profile.json` is read, and it "
            "holds no code.",
            "",
            "```python",
            "import omnireuse",
            "",
            'omnireuse.enable(pipe, profile="OWNER/NAME", speedup=2)  # the id of this repository',
            "```",
            "",
            f"PSNR is measured against the full run of {total} steps. What nine of ten new pictures of the same kind "
            "reach is a lower bound from the held-out prompts, at a confidence of 95 %. `quality=` goes by it.",
            *([] if profile.conditions is not None else ["", f"Nothing is promised: {UNKNOWN} (calibrate anew)."]),
            "",
            "| computed steps | fewer steps | mean, held out | nine of ten reach | steps |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *([f"![PSNR against computed steps]({PICTURE})", ""] if has_picture else []),
            *(f"- {key}: {value}" for key, value in about.items()),
            "",
            *(["Made by:", "", "```python", profile.command, "```", ""] if profile.command else []),
        ]
    )


def _row(profile: Profile, count: int, plan: Plan) -> str:
    cells = (
        str(count),
        f"{profile.num_inference_steps / count:.2f}×",
        *plan.shown,
        " ".join(map(str, plan.steps)),
    )
    return f"| {' | '.join(cells)} |"


def _draw(profile: Profile, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot(
        xlabel=f"computed steps of {profile.num_inference_steps}", ylabel="PSNR to the full run, dB"
    )
    plans = [(count, plan) for count, plan in sorted(profile.plans.items()) if plan.held_out]
    axes.plot([count for count, _ in plans], [plan.expected for _, plan in plans], "o-", label="mean, held out")
    promised = [(count, plan.promised) for count, plan in plans if math.isfinite(plan.promised)]
    axes.plot([count for count, _ in promised], [psnr for _, psnr in promised], "v--", label="nine of ten reach")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
