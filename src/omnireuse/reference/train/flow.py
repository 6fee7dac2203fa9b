"""The flow: transformer and text encoders trained together, end to end, on latents encoded beforehand.

Sequences are padded and fed exactly as FluxPipeline does it (no mask, the end token pooled), and a tenth of the
captions is empty, which teaches the unconditional branch of true classifier-free guidance.

Axes: B batch, C channels, H, W rows and columns, T tokens, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, FluxPipeline
from torch import nn

from omnireuse.reference.captions import caption, sample_split
from omnireuse.reference.models import LATENT_CHANNELS, LATENT_SIZE, TRAINING_SHIFT, FlowModel, init_adaptive_norms
from omnireuse.reference.scenes import Scene, draw
from omnireuse.reference.tokenizers import MAX_SEQUENCE_LENGTH, load_tokenizer, token_ids
from omnireuse.reference.train.loop import (
    Checkpoint,
    Loop,
    averaged,
    learning_rate_factor,
    log,
    save_atomically,
    set_learning_rates,
)

MUON_LR = 3e-3
ADAMW_LR = 1.5e-3
TEXT_LR = 3e-4
EMPTY_SHARE = 0.1


@torch.no_grad()
def encode_scenes(vae: AutoencoderKL, count: int, *, seed: int) -> tuple[list[Scene], torch.Tensor]:
    """``count`` training scenes and their packed, normalised latents (count, 64, 16) in half precision."""
    rng = np.random.default_rng([seed, 3])
    torch.manual_seed(seed + 3)
    scenes, packed, chunk = [], [], 64
    for _ in Loop("encode", count // chunk, log_every=10**9):
        batch = [sample_split(rng, held_out=False) for _ in range(chunk)]
        images = torch.from_numpy(np.stack([draw(scene, rng) for scene in batch])).permute(0, 3, 1, 2) * 2 - 1
        with torch.autocast("cpu", torch.bfloat16):
            latents = vae.encode(images.contiguous()).latent_dist.sample().float()
        latents = (latents - vae.config.shift_factor) * vae.config.scaling_factor
        packed.append(FluxPipeline._pack_latents(latents, chunk, LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE).half())
        scenes += batch
    return scenes, torch.cat(packed)


def sample_sigmas(count: int) -> torch.Tensor:
    """Noise levels (count,): four fifths logit-normal and one fifth uniform, stratified, then shifted towards noise.

    Source: logit-normal weighting from "Scaling Rectified Flow Transformers", arXiv 2403.03206, section 3.1.
    """
    even = (torch.arange(count) + torch.rand(count)) / count
    logit_normal = torch.sigmoid(torch.special.ndtri(even.clamp(1e-4, 1 - 1e-4)))
    sigma = torch.where(torch.rand(count) < 0.8, logit_normal, even[torch.randperm(count)])
    return TRAINING_SHIFT * sigma / (1 + (TRAINING_SHIFT - 1) * sigma)


def new_optimizers(transformer: nn.Module, encoders: Sequence[nn.Module]) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the rest, gently for the encoders, which can read already.

    Source: Muon with updates matched to AdamW's size, "Muon is Scalable for LLM Training", arXiv 2502.16982.
    """
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in transformer.named_parameters():
        is_matrix = parameter.ndim == 2 and "blocks." in name and "norm" not in name
        (matrices if is_matrix else rest).append(parameter)
    text = [parameter for encoder in encoders for parameter in encoder.parameters()]
    muon = torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": text, "lr": TEXT_LR}]
    return [muon, torch.optim.AdamW(groups, lr=ADAMW_LR, betas=(0.9, 0.98), weight_decay=0.0)]


def random_batches(count: int, batch_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Indices below ``count`` without end, in a new order each time round."""
    while True:
        order = rng.permutation(count)
        yield from (order[i : i + batch_size] for i in range(0, count - batch_size + 1, batch_size))


def _velocity(model: FlowModel) -> Callable[..., torch.Tensor]:
    text_ids = torch.zeros(MAX_SEQUENCE_LENGTH, 3)
    half = LATENT_SIZE // 2
    image_ids = FluxPipeline._prepare_latent_image_ids(1, half, half, "cpu", torch.float32)

    def velocity(
        noisy_BTD: torch.Tensor, sigma_B: torch.Tensor, clip_ids: torch.Tensor, t5_ids: torch.Tensor
    ) -> torch.Tensor:
        output: torch.Tensor = model.transformer(
            hidden_states=noisy_BTD,
            timestep=sigma_B,
            pooled_projections=model.clip(clip_ids).pooler_output,
            encoder_hidden_states=model.t5(t5_ids)[0],
            txt_ids=text_ids,
            img_ids=image_ids,
            return_dict=False,
        )[0]
        return output

    return velocity


def train_flow(
    folder: Path,
    *,
    num_steps: int,
    num_scenes: int,
    seed: int = 0,
    batch_size: int = 64,
    compile_model: bool = True,
    checkpoint_every: int = 500,
) -> nn.Module:
    """Train on the autoencoder and text encoders in ``folder``; averaged weights go to ``folder/flow.pt``.

    A run that was stopped goes on from its last checkpoint, with batches drawn afresh; an unbroken run is repeatable.

    Args:
        folder: where they are and the checkpoints go.
        num_steps: optimizer steps; the learning rates reach zero at the last.
        num_scenes: size of the pool of scenes that is drawn and encoded first.
        seed: of everything random.
        batch_size: captions a step.
        compile_model: fuse with torch.compile (needs a C++ compiler; about 2.5 times faster on CPU).
        checkpoint_every: steps between checkpoints.
    """
    vae = AutoencoderKL.from_pretrained(folder / "vae").eval()
    cache = folder / f"latents-{num_scenes}-{seed}.pt"
    if not cache.exists():
        save_atomically(encode_scenes(vae, num_scenes, seed=seed), cache)
    scenes, latents = torch.load(cache, weights_only=False)
    log.info("flow: %d scenes, latent standard deviation %.3f", len(scenes), float(latents.float().std()))
    clip_tokenizer, t5_tokenizer = load_tokenizer(folder / "tokenizer"), load_tokenizer(folder / "tokenizer_2")

    torch.manual_seed(seed)
    model = FlowModel().train()
    init_adaptive_norms(model)
    text = torch.load(folder / "text.pt", weights_only=True)
    model.clip.load_state_dict(text["clip"])
    model.t5.load_state_dict(text["t5"])
    average = averaged(model, 0.998)
    optimizers = new_optimizers(model.transformer, (model.clip, model.t5))
    checkpoint = Checkpoint(folder / "flow-resume.pt", model, average, optimizers)
    start = checkpoint.load()
    torch.manual_seed(seed + start)
    rng = np.random.default_rng([seed, 4, start])
    velocity = _velocity(model)
    if compile_model:
        velocity = torch.compile(velocity)
    batches = random_batches(len(scenes), batch_size, rng)
    loop = Loop("flow", num_steps, start=start, log_every=50)
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=200))
        index = next(batches)
        captions = ["" if rng.random() < EMPTY_SHARE else caption(scenes[i], rng) for i in index]
        clean = latents[torch.from_numpy(index)].float()
        noise, sigma = torch.randn_like(clean), sample_sigmas(len(index))
        noisy = torch.lerp(clean, noise, sigma[:, None, None])
        with torch.autocast("cpu", torch.bfloat16):
            predicted = velocity(noisy, sigma, token_ids(clip_tokenizer, captions), token_ids(t5_tokenizer, captions))
        loss = (predicted.float() - (noise - clean)).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        average.update_parameters(model)
        loop.note(loss=loss, norm=norm)
        if (step + 1) % checkpoint_every == 0 or step + 1 == num_steps:
            save_atomically(average.module.state_dict(), folder / "flow.pt")
            checkpoint.save(step + 1)
    return average.module
