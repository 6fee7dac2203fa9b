"""From a training folder to the directory that ``WanPipeline.from_pretrained`` reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanPipeline

from omnireuse.reference.tokenizers import load_tokenizer, save_tokenizer
from omnireuse.reference.train.export import TOKENIZER_CLASS, edit_json
from omnireuse.reference.video.captions import MAX_SEQUENCE_LENGTH, vocabulary
from omnireuse.reference.video.models import VideoFlowModel, new_scheduler


def export_video_pipeline(vae: AutoencoderKLWan, flow: VideoFlowModel, target: Path) -> None:
    """Write the pipeline to ``target`` with half-precision weights, in files that transformers 4.57 and 5 both read."""
    target.mkdir(parents=True, exist_ok=True)

    def write_tokenizer() -> None:
        shutil.rmtree(target / "tokenizer", ignore_errors=True)
        save_tokenizer(target / "tokenizer", starts=False, vocabulary=vocabulary(), max_length=MAX_SEQUENCE_LENGTH)

    write_tokenizer()
    pipeline = WanPipeline(
        tokenizer=load_tokenizer(target / "tokenizer"),
        text_encoder=flow.text_encoder,
        vae=vae,
        scheduler=new_scheduler(),
        transformer=flow.transformer,
    )
    pipeline.to(torch.float16)
    pipeline.save_pretrained(target)
    write_tokenizer()
    edit_json(target / "text_encoder" / "config.json", dtype="float32")
    edit_json(target / "vae" / "config.json", _name_or_path=None)
    edit_json(target / "model_index.json", tokenizer=["transformers", TOKENIZER_CLASS], _name_or_path=None)


def export_run(folder: Path, target: Path) -> None:
    """Export the last checkpoint of the training folder ``folder``, with the refined decoder where there is one."""
    refined = folder / "vae-refined"
    vae = AutoencoderKLWan.from_pretrained(refined if refined.exists() else folder / "vae")
    flow = VideoFlowModel()
    flow.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    export_video_pipeline(vae, flow.eval(), target)
