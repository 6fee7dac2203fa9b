"""The training of faces-edit, and of the variant that is distilled to eight steps."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxKontextPipeline
from torch import nn

from reference.edits.model import TOKENIZERS, EditModel
from reference.edits.pool import Batch, Pool
from reference.load import FEW_STEPS_EDIT_SAMPLING, find_faces_pipeline
from reference.models import init_adaptive_norms
from reference.train.export import export_pipeline
from reference.train.flow import new_optimizers, straight_paths
from reference.train.loop import Checkpoint, TimedLoop, descend, save_atomically, set_learning_rates

log = logging.getLogger("reference.train")

TEXT_LR = 1e-3
#: One batch in this many has two references; those are longer.
TWO_EVERY = 5
#: Euler steps of the teacher in each step of the student.
SUBSTEPS = 4
STEPS: int = FEW_STEPS_EDIT_SAMPLING["num_inference_steps"]
DISTIL_LR = 5e-4


@dataclass(frozen=True, kw_only=True)
class Run:
    """How long and how one model is trained.

    Attributes:
        folder: where checkpoints go.
        seconds: of training, those before a checkpoint included.
        num_steps: optimizer steps at most.
        batch_size: edits a step.
        seed: of everything random.
        compile_model: fuse with torch.compile.
        checkpoint_every: seconds between checkpoints.
    """

    folder: Path
    seconds: float
    num_steps: int | None = None
    batch_size: int = 1024
    seed: int = 0
    compile_model: bool = False
    checkpoint_every: float = 60.0


def load_autoencoder() -> AutoencoderKL:
    """The one of faces."""
    return AutoencoderKL.from_pretrained(find_faces_pipeline() / "vae").eval().requires_grad_(False)


@torch.no_grad()
def _average_in(average: nn.Module, model: nn.Module, decay: float) -> None:
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def _train(
    name: str,
    run: Run,
    model: EditModel,
    optimizers: Sequence[torch.optim.Optimizer],
    pool: Pool,
    loss_of: Callable[[Batch], torch.Tensor],
    *,
    decay: float,
    warmup: int,
) -> None:
    """Train ``model``; its averaged weights go to ``name.pt`` in the run's folder. Goes on from the last checkpoint."""
    average = copy.deepcopy(model).requires_grad_(False)
    checkpoint = Checkpoint(run.folder / f"{name}-resume.pt", model, average, optimizers)
    start = checkpoint.load()
    torch.manual_seed(run.seed + start)
    loop = TimedLoop(name, run.seconds, num_steps=run.num_steps, start=(start, checkpoint.seconds))
    saved_at, step = checkpoint.seconds, start

    def save(done: int) -> None:
        weights = {key: value.cpu() for key, value in average.state_dict().items()}
        save_atomically(weights, run.folder / f"{name}.pt")
        checkpoint.save(done, loop.seconds)

    for step in loop:
        set_learning_rates(optimizers, min((step + 1) / warmup, 1 - loop.share(step)))
        batch = pool.batch(run.batch_size, two=step % TWO_EVERY == TWO_EVERY - 1)
        with torch.autocast(pool.device.type, torch.bfloat16):
            loss = loss_of(batch)
        norm = descend(loss, optimizers)
        _average_in(average, model, min(decay, (1 + step) / (10 + step)))
        loop.note(loss=loss, norm=norm)
        if loop.seconds - saved_at >= run.checkpoint_every:
            save(step + 1)
            saved_at = loop.seconds
    save(step + 1)


def train_edits(run: Run, pool: Pool) -> None:
    """Train transformer and text encoders from nothing; the averaged weights go to ``flow.pt``."""
    torch.manual_seed(run.seed)
    model = EditModel()
    init_adaptive_norms(model.transformer)
    model = model.to(pool.device).train()
    optimizers = new_optimizers(model)
    optimizers[1].param_groups[1]["lr"] = TEXT_LR
    if run.compile_model:
        model.transformer.compile(dynamic=False)

    def loss_of(batch: Batch) -> torch.Tensor:
        example = straight_paths(batch.clean)
        said = model(example.noisy, example.level, batch.references, *batch.ids)
        loss: torch.Tensor = (said.float() - example.target).square().mean()
        return loss

    _train("flow", run, model, optimizers, pool, loss_of, decay=0.998, warmup=200)


def distil_edits(run: Run, pool: Pool) -> None:
    """Teach the trained transformer to do `SUBSTEPS` of its own steps at once; averaged weights go to ``distilled.pt``.

    Source: "Progressive Distillation for Fast Sampling of Diffusion Models", arXiv 2202.00512, with several of the
    teacher's steps at a time in place of two.
    """
    torch.manual_seed(run.seed + 1)
    teacher = load_trained(run.folder / "flow.pt").to(pool.device).eval().requires_grad_(False)
    model = copy.deepcopy(teacher).train()
    model.transformer.requires_grad_(True)
    parameters = list(model.transformer.parameters())
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(parameters, lr=DISTIL_LR, weight_decay=0.0)]
    if run.compile_model:
        for part in (model, teacher):
            part.transformer.compile(dynamic=False)

    def loss_of(batch: Batch) -> torch.Tensor:
        sigma = 1 - torch.randint(STEPS, (len(batch.clean),), device=pool.device) / STEPS
        noisy = torch.lerp(batch.clean, torch.randn_like(batch.clean), sigma.view(-1, 1, 1))
        latents, length = noisy, 1 / (STEPS * SUBSTEPS)
        with torch.no_grad():
            for substep in range(SUBSTEPS):
                velocity = teacher(latents, sigma - substep * length, batch.references, *batch.ids)
                latents = latents - length * velocity.float()
        said = model(noisy, sigma, batch.references, *batch.ids)
        loss: torch.Tensor = (said.float() - (noisy - latents) * STEPS).square().mean()
        return loss

    _train("distilled", run, model, optimizers, pool, loss_of, decay=0.99, warmup=50)


def load_trained(path: Path) -> EditModel:
    """The model whose weights lie in ``path``, whichever transformers has written them: 5 has dropped CLIP's prefix."""
    model, prefix = EditModel(), "clip.text_model."
    saved = {key.replace(prefix, "clip."): value for key, value in torch.load(path, weights_only=True).items()}
    names = {key.replace(prefix, "clip."): key for key in model.state_dict()}
    model.load_state_dict({names.get(key, key): value for key, value in saved.items()})
    return model


def export_edits(weights: Path, target: Path) -> None:
    """Write the weights that training left in ``weights`` to ``target`` as a ``FluxKontextPipeline``."""
    model = load_trained(weights).eval()
    export_pipeline(
        FluxKontextPipeline,
        target,
        TOKENIZERS,
        vae=load_autoencoder(),
        text_encoder=model.clip,
        text_encoder_2=model.t5,
        transformer=model.transformer,
    )


def new_pool(parts: Path, device: str, *, num_people: int, seed: int = 0) -> Pool:
    """Draw and encode ``num_people`` people, each in several versions, on ``device``."""
    from tempfile import TemporaryDirectory

    from reference.edits.drawing import Drawer
    from reference.tokenizers import write_tokenizers

    start = time.monotonic()
    with TemporaryDirectory() as folder:
        tokenizers = list(write_tokenizers(Path(folder), TOKENIZERS).values())
    pool = Pool(Drawer(parts, device), load_autoencoder().to(device), tokenizers, num_people=num_people, seed=seed)
    log.info("pool: %.1f s", time.monotonic() - start)
    return pool
