"""The flow: transformer and text encoders trained together, end to end, on latents encoded beforehand.

Captions are padded and encoded exactly as the pipeline does it, and a tenth of them is empty, which teaches the
unconditional branch of classifier-free guidance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from reference.drawing import Array
from reference.models import TRAINING_SHIFT
from reference.tokenizers import token_ids, write_tokenizers
from reference.train.autoencoder import to_pixels
from reference.train.loop import (
    Checkpoint,
    Loop,
    averaged,
    descend,
    learning_rate_factor,
    log,
    save_atomically,
    set_learning_rates,
)

MUON_LR = 3e-3
ADAMW_LR = 1.5e-3
TEXT_LR = 3e-4
EMPTY_SHARE = 0.1
CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class Example:
    """Noisy latents and what the denoiser is to say of them.

    Attributes:
        noisy: shape (B, ...).
        level: the noise level as the denoiser is told it, shape (B,).
        target: what it should return, shape (B, ...).
        weight: of the squared error of each, broadcast to (B, ...).
    """

    noisy: torch.Tensor
    level: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor | float = 1.0


@dataclass(frozen=True, kw_only=True)
class FlowTask:
    """What a flow is and learns from.

    Attributes:
        load_autoencoder: (folder) -> the trained autoencoder in it.
        normalise: (autoencoder, latents) -> the latents that the transformer is to generate.
        new: (training folder) -> denoiser and text encoders before training, as one module; called with noisy
            latents, noise levels and the token ids of each tokenizer it returns the prediction.
        tokenizers: name -> what writes it into a folder.
        sample: (rng) -> a scene that training may see.
        draw: (scene, rng) -> image (H, W, 3) or clip (F, H, W, 3) in 0..1.
        caption: (scene, rng) -> one of its wordings.
        corrupt: (clean latents) -> a training example of each; straight paths by default.
    """

    load_autoencoder: Callable[[Path], Any]
    normalise: Callable[[Any, torch.Tensor], torch.Tensor]
    new: Callable[[Path], nn.Module]
    tokenizers: Mapping[str, Callable[[Path], None]]
    sample: Callable[[np.random.Generator], Any]
    draw: Callable[[Any, np.random.Generator], Array]
    caption: Callable[[Any, np.random.Generator], str]
    corrupt: Callable[[torch.Tensor], Example] = field(default_factory=lambda: straight_paths)


@torch.no_grad()
def encode_scenes(task: FlowTask, vae: Any, count: int, *, seed: int) -> tuple[list[Any], torch.Tensor]:
    """``count`` training scenes and their normalised latents (count, ...) in half precision."""
    rng = np.random.default_rng([seed, 3])
    torch.manual_seed(seed + 3)
    scenes, encoded = [], []
    for _ in Loop("encode", count // CHUNK):
        batch = [task.sample(rng) for _ in range(CHUNK)]
        pixels = to_pixels(np.stack([task.draw(scene, rng) for scene in batch]))
        with torch.autocast("cpu", torch.bfloat16):
            latents = vae.encode(pixels).latent_dist.sample().float()
        encoded.append(task.normalise(vae, latents).contiguous().half())
        scenes += batch
    return scenes, torch.cat(encoded)


def sample_sigmas(count: int, device: torch.device | None = None) -> torch.Tensor:
    """Noise levels (count,): four fifths logit-normal and one fifth uniform, stratified, then shifted towards noise.

    Source: logit-normal weighting from "Scaling Rectified Flow Transformers", arXiv 2403.03206, section 3.1.
    """
    even = (torch.arange(count, device=device) + torch.rand(count, device=device)) / count
    logit_normal = torch.sigmoid(torch.special.ndtri(even.clamp(1e-4, 1 - 1e-4)))
    is_normal = torch.rand(count, device=device) < 0.8
    sigma = torch.where(is_normal, logit_normal, even[torch.randperm(count, device=device)])
    return TRAINING_SHIFT * sigma / (1 + (TRAINING_SHIFT - 1) * sigma)


def straight_paths(clean: torch.Tensor) -> Example:
    """Latents on the straight line to noise, and the velocity along it."""
    noise, sigma = torch.randn_like(clean), sample_sigmas(len(clean), clean.device)
    noisy = torch.lerp(clean, noise, sigma.view(-1, *[1] * (clean.ndim - 1)))
    return Example(noisy=noisy, level=sigma, target=noise - clean)


def new_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices in the transformer's blocks, AdamW for its rest, gently for all else, the text encoders.

    Source: Muon with updates matched to AdamW's size, "Muon is Scalable for LLM Training", arXiv 2502.16982.
    """
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    text: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "block" in name and "norm" not in name
        group = text if not name.startswith(("transformer.", "unet.")) else matrices if is_matrix else rest
        group.append(parameter)
    muon = torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": text, "lr": TEXT_LR}]
    return [muon, torch.optim.AdamW(groups, lr=ADAMW_LR, betas=(0.9, 0.98), weight_decay=0.0)]


def random_batches(count: int, batch_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Indices below ``count`` without end, in a new order each time round."""
    while True:
        order = rng.permutation(count)
        yield from (order[i : i + batch_size] for i in range(0, count - batch_size + 1, batch_size))


def train_flow(
    task: FlowTask,
    folder: Path,
    *,
    num_steps: int,
    num_scenes: int,
    seed: int = 0,
    batch_size: int = 64,
    compile_model: bool = True,
    checkpoint_every: int = 250,
) -> None:
    """Train on what the stages before left in ``folder``; averaged weights go to ``folder/flow.pt``.

    A run that was stopped goes on from its last checkpoint, with batches drawn afresh; an unbroken run is repeatable.

    Args:
        task: what is trained.
        folder: where the autoencoder is and the checkpoints go.
        num_steps: optimizer steps; the learning rates reach zero at the last.
        num_scenes: size of the pool of scenes that is drawn and encoded first.
        seed: of everything random.
        batch_size: captions a step.
        compile_model: fuse with torch.compile (needs a C++ compiler; about 2.5 times faster on CPU).
        checkpoint_every: steps between checkpoints.
    """
    vae = task.load_autoencoder(folder / "vae").eval()
    cache = folder / f"latents-{num_scenes}-{seed}.pt"
    if not cache.exists():
        save_atomically(encode_scenes(task, vae, num_scenes, seed=seed), cache)
    scenes, latents = torch.load(cache, weights_only=False)
    log.info("flow: %d scenes, latent standard deviation %.3f", len(scenes), float(latents.float().std()))
    tokenizers = write_tokenizers(folder, task.tokenizers).values()

    torch.manual_seed(seed)
    model = task.new(folder).train()
    average = averaged(model, 0.998)
    optimizers = new_optimizers(model)
    checkpoint = Checkpoint(folder / "flow-resume.pt", model, average, optimizers)
    start = checkpoint.load()
    torch.manual_seed(seed + start)
    rng = np.random.default_rng([seed, 4, start])
    denoiser = torch.compile(model) if compile_model else model
    batches = random_batches(len(scenes), batch_size, rng)
    loop = Loop("flow", num_steps, start=start)
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=200))
        index = next(batches)
        captions = ["" if rng.random() < EMPTY_SHARE else task.caption(scenes[i], rng) for i in index]
        clean = latents[torch.from_numpy(index)].float()
        example = task.corrupt(clean)
        with torch.autocast("cpu", torch.bfloat16):
            ids = (token_ids(tokenizer, captions) for tokenizer in tokenizers)
            predicted = denoiser(example.noisy, example.level, *ids)
        loss = ((predicted.float() - example.target).square() * example.weight).mean()
        norm = descend(loss, optimizers)
        average.update_parameters(model)
        loop.note(loss=loss, norm=norm)
        if (step + 1) % checkpoint_every == 0 or step + 1 == num_steps:
            save_atomically(average.module.state_dict(), folder / "flow.pt")
            checkpoint.save(step + 1)
