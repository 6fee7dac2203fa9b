"""The flow: transformer and text encoder trained together, end to end, on latents encoded beforehand.

Captions are padded and encoded as WanPipeline does it (masked, states past the end set to zero), and a tenth of them is
empty, which teaches the unconditional branch.

Axes: B batch, C channels, F latent frames, H, W rows and columns, T tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch import nn

from omnireuse.reference.tokenizers import load_tokenizer, save_tokenizer
from omnireuse.reference.train.flow import EMPTY_SHARE, new_optimizers, random_batches, sample_sigmas
from omnireuse.reference.train.loop import (
    Checkpoint,
    Loop,
    averaged,
    learning_rate_factor,
    log,
    save_atomically,
    set_learning_rates,
)
from omnireuse.reference.train.video.autoencoder import to_pixels
from omnireuse.reference.video.captions import MAX_SEQUENCE_LENGTH, caption, sample_split, vocabulary
from omnireuse.reference.video.models import VideoFlowModel, init_adaptive_norms
from omnireuse.reference.video.scenes import MovingScene, draw


@torch.no_grad()
def encode_clips(vae: AutoencoderKLWan, count: int, *, seed: int) -> tuple[list[MovingScene], torch.Tensor]:
    """``count`` training scenes and their normalised latents (count, 12, 3, 8, 8) in half precision."""
    rng = np.random.default_rng([seed, 3])
    torch.manual_seed(seed + 3)
    shape = (1, -1, 1, 1, 1)
    mean, std = torch.tensor(vae.config.latents_mean).view(shape), torch.tensor(vae.config.latents_std).view(shape)
    scenes, encoded, chunk = [], [], 32
    for _ in Loop("encode", count // chunk, log_every=100):
        batch = [sample_split(rng, held_out=False) for _ in range(chunk)]
        pixels = to_pixels(np.stack([draw(scene, rng) for scene in batch]))
        with torch.autocast("cpu", torch.bfloat16):
            latents = vae.encode(pixels).latent_dist.sample().float()
        encoded.append(((latents - mean) / std).contiguous().half())
        scenes += batch
    return scenes, torch.cat(encoded)


def train_flow(
    folder: Path,
    *,
    num_steps: int,
    num_scenes: int,
    seed: int = 0,
    batch_size: int = 64,
    compile_model: bool = True,
    checkpoint_every: int = 250,
) -> nn.Module:
    """Train on the autoencoder in ``folder``; averaged weights go to ``folder/flow.pt``.

    A run that was stopped goes on from its last checkpoint, with batches drawn afresh; an unbroken run is repeatable.

    Args:
        folder: where the autoencoder is and the checkpoints go.
        num_steps: optimizer steps; the learning rates reach zero at the last.
        num_scenes: size of the pool of clips that is drawn and encoded first.
        seed: of everything random.
        batch_size: captions a step.
        compile_model: fuse with torch.compile (needs a C++ compiler).
        checkpoint_every: steps between checkpoints.
    """
    vae = AutoencoderKLWan.from_pretrained(folder / "vae").eval()
    cache = folder / f"latents-{num_scenes}-{seed}.pt"
    if not cache.exists():
        save_atomically(encode_clips(vae, num_scenes, seed=seed), cache)
    scenes, latents = torch.load(cache, weights_only=False)
    log.info("flow: %d clips, latent standard deviation %.3f", len(scenes), float(latents.float().std()))
    save_tokenizer(folder / "tokenizer", starts=False, vocabulary=vocabulary(), max_length=MAX_SEQUENCE_LENGTH)
    tokenizer = load_tokenizer(folder / "tokenizer")

    torch.manual_seed(seed)
    model = VideoFlowModel().train()
    init_adaptive_norms(model.transformer)
    average = averaged(model, 0.998)
    optimizers = new_optimizers(model.transformer, [model.text_encoder])
    checkpoint = Checkpoint(folder / "flow-resume.pt", model, average, optimizers)
    start = checkpoint.load()
    torch.manual_seed(seed + start)
    rng = np.random.default_rng([seed, 4, start])
    velocity = torch.compile(model) if compile_model else model
    batches = random_batches(len(scenes), batch_size, rng)
    loop = Loop("flow", num_steps, start=start, log_every=50)
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=200))
        index = next(batches)
        captions = ["" if rng.random() < EMPTY_SHARE else caption(scenes[i], rng) for i in index]
        text = tokenizer(captions, padding="max_length", max_length=MAX_SEQUENCE_LENGTH, return_tensors="pt")
        clean = latents[torch.from_numpy(index)].float()
        noise, sigma = torch.randn_like(clean), sample_sigmas(len(index))
        noisy = torch.lerp(clean, noise, sigma.view(-1, 1, 1, 1, 1))
        with torch.autocast("cpu", torch.bfloat16):
            predicted = velocity(noisy, sigma, text.input_ids, text.attention_mask)
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
