"""The training of shapes-dev: shapes-flux with guidance distilled into its transformer, as Flux.1-dev was made.

Source: "On Distillation of Guided Diffusion Models", arXiv 2210.03142, section 3.1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from torch import nn

from reference.captions import caption
from reference.load import load_image_pipeline
from reference.models import FlowModel
from reference.tokenizers import IMAGE_TOKENIZERS, token_ids
from reference.train.export import export_pipeline
from reference.train.flow import Example, encode_scenes, random_batches, straight_paths
from reference.train.image import FLOW
from reference.train.loop import (
    Checkpoint,
    Loop,
    averaged,
    descend,
    learning_rate_factor,
    save_atomically,
    set_learning_rates,
)
from reference.train.recipe import Recipe

#: Guidance scales of training are drawn evenly from these bounds.
GUIDANCE = (1.0, 8.0)
PEAK_LR = 6e-4


def new_student(teacher: FluxTransformer2DModel) -> FluxTransformer2DModel:
    """The teacher's weights, and an embedding of the guidance that says nothing yet."""
    student: FluxTransformer2DModel = FluxTransformer2DModel.from_config({**teacher.config, "guidance_embeds": True})
    missing, unexpected = student.load_state_dict(teacher.state_dict(), strict=False)
    if unexpected or not all("guidance_embedder" in name for name in missing):
        raise RuntimeError(f"teacher and student differ in {[*missing, *unexpected]}")
    last = student.time_text_embed.guidance_embedder.linear_2
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return student


class Distillation(nn.Module):
    """Teacher and student on the same noisy latents.

    Attributes:
        student: trained.
        teacher: shapes-flux with its text encoders; not trained.
    """

    def __init__(self, teacher: FlowModel) -> None:
        super().__init__()
        self.student = new_student(teacher.transformer)
        # In a list, so that neither the optimizer nor the averaged weights hold it.
        self.teacher = [teacher.requires_grad_(False).eval()]

    def forward(
        self, example: Example, guidance: torch.Tensor, clip_ids: torch.Tensor, t5_ids: torch.Tensor
    ) -> torch.Tensor:
        """The mean squared error of the student's velocity against the teacher's guided one.

        Args:
            example: noisy latents (B, T, C) at their noise levels (B,).
            guidance: scales (B,).
            clip_ids, t5_ids: of B captions and then of B empty ones.
        """
        teacher, count = self.teacher[0], len(guidance)
        with torch.no_grad():
            both = teacher(example.noisy.repeat(2, 1, 1), example.level.repeat(2), clip_ids, t5_ids).float()
            with_text, without = both.chunk(2)
            wanted = without + guidance.view(-1, 1, 1) * (with_text - without)
            pooled = teacher.clip(clip_ids[:count]).pooler_output
            tokens = teacher.t5(t5_ids[:count])[0]
        said = self.student(
            hidden_states=example.noisy,
            timestep=example.level,
            guidance=guidance,
            pooled_projections=pooled,
            encoder_hidden_states=tokens,
            txt_ids=teacher.text_ids,
            img_ids=teacher.image_ids,
            return_dict=False,
        )[0]
        loss: torch.Tensor = (said.float() - wanted).square().mean()
        return loss


def _teacher() -> FlowModel:
    pipeline, model = load_image_pipeline(), FlowModel()
    model.transformer, model.clip, model.t5 = pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2
    return model


def distil(
    folder: Path,
    *,
    num_steps: int,
    num_scenes: int,
    seed: int = 0,
    batch_size: int = 32,
    compile_model: bool = True,
    checkpoint_every: int = 100,
) -> None:
    """Train the student on noisy latents of training scenes; averaged weights go to ``folder/flow.pt``.

    A run that was stopped goes on from its last checkpoint.

    Args:
        folder: where the checkpoints go.
        num_steps: optimizer steps; the learning rate reaches zero at the last.
        num_scenes: size of the pool of scenes that is drawn and encoded first.
        seed: of everything random.
        batch_size: captions a step.
        compile_model: fuse with torch.compile (needs a C++ compiler).
        checkpoint_every: steps between checkpoints.
    """
    pipeline = load_image_pipeline()
    cache = folder / f"latents-{num_scenes}-{seed}.pt"
    if not cache.exists():
        save_atomically(encode_scenes(FLOW, pipeline.vae.eval(), num_scenes, seed=seed), cache)
    scenes, latents = torch.load(cache, weights_only=False)
    tokenizers = [pipeline.tokenizer, pipeline.tokenizer_2]

    torch.manual_seed(seed)
    model = Distillation(_teacher()).train()
    average = averaged(model, 0.99)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=0.0)]
    checkpoint = Checkpoint(folder / "flow-resume.pt", model, average, optimizers)
    start = checkpoint.load()
    torch.manual_seed(seed + start)
    loss_of = torch.compile(model) if compile_model else model
    batches = random_batches(len(scenes), batch_size, rng := np.random.default_rng([seed, 6, start]))
    loop = Loop("flow", num_steps, start=start)
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=50))
        index = next(batches)
        captions = [caption(scenes[i], rng) for i in index]
        ids = [token_ids(tokenizer, captions + [""] * len(captions)) for tokenizer in tokenizers]
        guidance = torch.empty(len(index)).uniform_(*GUIDANCE)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(straight_paths(latents[torch.from_numpy(index)].float()), guidance, *ids)
        norm = descend(loss, optimizers)
        average.update_parameters(model)
        loop.note(loss=loss, norm=norm)
        if (step + 1) % checkpoint_every == 0 or step + 1 == num_steps:
            student: nn.Module = average.module.get_submodule("student")
            save_atomically(student.state_dict(), folder / "flow.pt")
            checkpoint.save(step + 1)


def export_run(folder: Path, target: Path) -> None:
    """Export the last checkpoint of the training folder ``folder``."""
    taught = load_image_pipeline()
    student = new_student(taught.transformer)
    student.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    export_pipeline(
        FluxPipeline,
        target,
        IMAGE_TOKENIZERS,
        vae=taught.vae,
        text_encoder=taught.text_encoder,
        text_encoder_2=taught.text_encoder_2,
        transformer=student.eval(),
    )


DISTILLED = Recipe(name="shapes-dev", stages={"flow": (distil, 800)}, num_scenes=12_800, export=export_run)
