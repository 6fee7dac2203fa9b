"""The model card beside the weights, written from measured figures only; what it says besides lies in ``cards/``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from omnireuse_lab.report.clips import save_clip
from reference.case import Case
from reference.drawing import Array
from reference.evaluate import Figures

TEMPLATES = Path(__file__).parent / "cards"
GRID_COLUMNS = 8
#: A clip's samples are an animation, and large.
GRID_ROWS = {"image": 4, "clip": 1}


HEAD = """---
library_name: diffusers
pipeline_tag: {tag}
widget:
- text: {prompt}
inference:
  parameters:
{parameters}
---

"""
TAGS = {"image": "text-to-image", "clip": "text-to-video"}


def head(tag: str, prompt: str, sampling: Mapping[str, Any]) -> str:
    """The metadata that a card begins with; `omnireuse demo` takes its prompt and its call from there."""
    parameters = "\n".join(f"    {name}: {json.dumps(value)}" for name, value in sampling.items())
    return HEAD.format(tag=tag, prompt=json.dumps(prompt), parameters=parameters)


def arguments(sampling: Mapping[str, Any]) -> str:
    """``sampling`` as lines of a call."""
    return "\n".join(f"    {name}={value!r}," for name, value in sampling.items())


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values as a Markdown table."""
    return "\n".join(["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def figures_table(case: Case, figures: Figures) -> str:
    """The figures as a Markdown table."""
    steps, guidance = case.sampling["num_inference_steps"], case.sampling[case.guidance]
    threads = "1 thread" if figures.num_threads == 1 else f"{figures.num_threads} threads"
    halved = f"{steps // 2} steps against {steps}"
    rows = [
        ("held-out captions", f"{figures.num_captions}"),
        ("attributes right", f"{figures.attributes_right:.1%}"),
        ("captions wholly right", f"{figures.captions_right:.1%}"),
        *((f"- {name} right", f"{share:.1%}") for name, share in figures.right_by_attribute.items()),
        (f"seconds {'an' if case.unit == 'image' else 'a'} {case.unit}, {threads}", f"{figures.seconds_each:.2f}"),
        (f"{halved}, guidance {guidance:g}, PSNR", f"{figures.psnr_guided:.1f} dB"),
        (f"{halved}, no guidance, PSNR", f"{figures.psnr_unguided:.1f} dB"),
        ("prompts behind each PSNR", f"{figures.num_psnr_prompts}"),
        ("weights", f"{figures.weight_bytes / 1e6:.1f} MB"),
    ]
    return table(rows)


def sample_grid(made: Array, rows: int, columns: int) -> Array:
    """The first rows * columns of images (B, H, W, 3) or clips (B, F, H, W, 3) side by side."""
    shown = made[: rows * columns]
    return np.concatenate(
        [np.concatenate(list(shown[row * columns :][:columns]), axis=-2) for row in range(rows)], axis=-3
    )


def write_card(case: Case, folder: Path, figures: Figures, made: Array) -> None:
    """Write README.md and samples.png into ``folder``."""
    columns = min(GRID_COLUMNS, len(made))
    rows = min(GRID_ROWS[case.unit], max(len(made) // GRID_COLUMNS, 1))
    save_clip(sample_grid(made, rows, columns), folder / "samples.png")
    card = (TEMPLATES / f"{case.name}.md").read_text(encoding="utf-8")
    prompt = case.caption(case.held_out(1)[0])
    values = {
        "prompt": prompt,
        "arguments": arguments(case.sampling),
        "length": case.sampling.get("max_sequence_length"),
        "guidance": case.sampling[case.guidance],
        "table": figures_table(case, figures),
        "num_samples": rows * columns,
    }
    text = head(TAGS[case.unit], prompt, case.sampling) + card.format(**values)
    (folder / "README.md").write_text(text, encoding="utf-8")
