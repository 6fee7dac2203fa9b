"""From trained parts to the directory that ``from_pretrained`` of a diffusers pipeline reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline, SchedulerMixin
from safetensors.torch import load_file, save_file
from transformers import CLIPTextModel, PreTrainedModel

from reference.load import SHARED
from reference.models import new_scheduler
from reference.tokenizers import write_tokenizers

TOKENIZER_CLASS = "PreTrainedTokenizerFast"


def edit_json(path: Path, **values: object) -> None:
    """Set ``values`` in the JSON object in ``path``; None takes a key out."""
    document = json.loads(path.read_text("utf-8")) | values
    kept = {key: value for key, value in document.items() if value is not None or key not in values}
    path.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")


def export_pipeline(
    new: Callable[..., DiffusionPipeline],
    target: Path,
    tokenizers: Mapping[str, Callable[[Path], None]],
    scheduler: SchedulerMixin | None = None,
    **parts: Any,
) -> None:
    """Write a pipeline to ``target`` with half-precision weights, in files that transformers 4.57 and 5 both read.

    Args:
        new: the class of the pipeline.
        target: created where missing.
        tokenizers: name -> what writes it into a folder.
        scheduler: Euler's method for flows by default.
        parts: the pipeline's models by name; None for a part that is left out.
    """
    target.mkdir(parents=True, exist_ok=True)
    (target / SHARED).unlink(missing_ok=True)  # all parts are written here
    pipeline = new(scheduler=scheduler or new_scheduler(), **write_tokenizers(target, tokenizers), **parts)
    pipeline.to(torch.float16)
    pipeline.save_pretrained(target)
    write_tokenizers(target, tokenizers)
    for name, part in parts.items():
        if isinstance(part, CLIPTextModel):
            # transformers 5 reads CLIP's weights with and without this prefix, 4.57 only with it.
            path = target / name / "model.safetensors"
            weights = {f"text_model.{key.removeprefix('text_model.')}": value for key, value in load_file(path).items()}
            save_file(weights, path, metadata={"format": "pt"})
        if isinstance(part, PreTrainedModel):
            # The weights are stored in half precision and meant to be computed with in float32; transformers 5 would
            # otherwise load them in the stored type while diffusers loads its models in float32.
            edit_json(target / name / "config.json", dtype="float32")
    # Where parts were loaded from is nobody's business but the training machine's.
    for config in target.glob("*/config.json"):
        edit_json(config, _name_or_path=None)
    classes = {name: ["transformers", TOKENIZER_CLASS] for name in tokenizers}
    edit_json(target / "model_index.json", **classes, _name_or_path=None)
