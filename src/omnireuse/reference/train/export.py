"""From a training folder to the directory that ``FluxPipeline.from_pretrained`` reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxPipeline
from safetensors.torch import load_file, save_file

from omnireuse.reference.models import FlowModel, new_scheduler
from omnireuse.reference.tokenizers import load_tokenizer, save_tokenizer

TOKENIZER_CLASS = "PreTrainedTokenizerFast"


def edit_json(path: Path, **values: object) -> None:
    """Set ``values`` in the JSON object in ``path``; None takes a key out."""
    document = json.loads(path.read_text()) | values
    kept = {key: value for key, value in document.items() if value is not None or key not in values}
    path.write_text(json.dumps(kept, indent=2) + "\n")


def export_pipeline(vae: AutoencoderKL, flow: FlowModel, target: Path) -> None:
    """Write the pipeline to ``target`` with half-precision weights, in files that transformers 4.57 and 5 both read."""
    target.mkdir(parents=True, exist_ok=True)
    tokenizers = {"tokenizer": True, "tokenizer_2": False}
    for name, starts in tokenizers.items():
        shutil.rmtree(target / name, ignore_errors=True)
        save_tokenizer(target / name, starts=starts)
    pipeline = FluxPipeline(
        scheduler=new_scheduler(),
        vae=vae,
        text_encoder=flow.clip,
        tokenizer=load_tokenizer(target / "tokenizer"),
        text_encoder_2=flow.t5,
        tokenizer_2=load_tokenizer(target / "tokenizer_2"),
        transformer=flow.transformer,
    )
    pipeline.to(torch.float16)
    pipeline.save_pretrained(target)
    for name, starts in tokenizers.items():
        shutil.rmtree(target / name)
        save_tokenizer(target / name, starts=starts)
    # transformers 5 reads CLIP's weights with and without this prefix, 4.57 only with it.
    clip_path = target / "text_encoder" / "model.safetensors"
    weights = {f"text_model.{name.removeprefix('text_model.')}": value for name, value in load_file(clip_path).items()}
    save_file(weights, clip_path, metadata={"format": "pt"})
    # The weights are stored in half precision and meant to be computed with in float32; transformers 5 would otherwise
    # load them in the stored type while diffusers loads its models in float32.
    for name in ("text_encoder", "text_encoder_2"):
        edit_json(target / name / "config.json", dtype="float32")
    # Where the autoencoder was loaded from is nobody's business but the training machine's.
    edit_json(target / "vae" / "config.json", _name_or_path=None)
    classes = {name: ["transformers", TOKENIZER_CLASS] for name in tokenizers}
    edit_json(target / "model_index.json", **classes, _name_or_path=None)


def export_run(folder: Path, target: Path) -> None:
    """Export the last checkpoint of the training folder ``folder``."""
    vae = AutoencoderKL.from_pretrained(folder / "vae")
    flow = FlowModel()
    flow.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    export_pipeline(vae, flow.eval(), target)
