"""The training of faces: pictures, autoencoder, flow, and the network that reads pictures back."""

from __future__ import annotations

import shutil
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from safetensors.torch import save_file
from torch import nn

from reference.drawing import Array
from reference.evaluate import score
from reference.faces.checker import WEIGHTS, Reader, check
from reference.faces.drawing import as_floats, make_svgs, rasterise
from reference.faces.people import (
    ATTRIBUTES,
    MAX_SEQUENCE_LENGTH,
    Person,
    caption,
    held_out_people,
    sample_split,
    vocabulary,
)
from reference.load import find_image_pipeline
from reference.models import FlowModel, new_autoencoder
from reference.tokenizers import save_tokenizer
from reference.train.autoencoder import to_pixels, train_autoencoder
from reference.train.flow import FlowTask, train_flow
from reference.train.image import AUTOENCODER, export_images, normalise
from reference.train.loop import Loop, descend, learning_rate_factor, log, set_learning_rates
from reference.train.recipe import Recipe

PICTURES = "pictures.npz"
NUM_PICTURES = 20_000
#: Drawings of held-out people, for the card and for the checker's test.
DRAWN, NUM_SHOWN = "drawn.png", 32

#: The tokenizers of the pipeline: what writes each into a folder.
TOKENIZERS = {
    name: partial(save_tokenizer, starts=starts, vocabulary=vocabulary(), max_length=MAX_SEQUENCE_LENGTH)
    for name, starts in (("tokenizer", True), ("tokenizer_2", False))
}


def draw_pictures(folder: Path, *, num_steps: int, seed: int = 0) -> None:
    """Draw ``num_steps`` people of the training side into ``folder/pictures.npz``, once."""
    if (folder / PICTURES).exists():
        return
    svgs, rng = make_svgs(folder), np.random.default_rng([seed, 8])
    people = [sample_split(rng, held_out=False) for _ in range(num_steps)]
    pictures = np.stack([rasterise(people[step], rng, svgs) for step in Loop("pictures", num_steps)])
    values = list(ATTRIBUTES.values())
    answers = [[names.index(name) for names, name in zip(values, astuple(person), strict=True)] for person in people]
    np.savez_compressed(folder / PICTURES, pictures=pictures, answers=np.array(answers, np.uint8))


class Pictures:
    """What `draw_pictures` left in ``folder``, by index."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / PICTURES) as file:
            self.pictures, self.answers = file["pictures"], file["answers"]
        self._next = 0

    def person(self, index: int) -> Person:
        """Who is in picture ``index``."""
        pairs = zip(ATTRIBUTES.items(), self.answers[index], strict=True)
        return Person(**{name: names[answer] for (name, names), answer in pairs})

    def picture(self, index: int, rng: np.random.Generator | None = None) -> Array:
        """Picture ``index`` (64, 64, 3) in 0..1."""
        return as_floats(self.pictures[index])

    def random(self, rng: np.random.Generator) -> Array:
        """Any picture."""
        return self.picture(int(rng.integers(len(self.pictures))))

    def in_turn(self, rng: np.random.Generator) -> int:
        """One index after the other, round and round."""
        self._next = (self._next + 1) % len(self.pictures)
        return self._next


def _new_autoencoder(**normalisation: float) -> AutoencoderKL:
    """With the weights of shapes-flux, which knows colours and edges already."""
    autoencoder = new_autoencoder(**normalisation)
    autoencoder.load_state_dict(AutoencoderKL.from_pretrained(find_image_pipeline() / "vae").state_dict())
    return autoencoder


def _train_autoencoder(folder: Path, **options: Any) -> None:
    task = replace(AUTOENCODER, new=_new_autoencoder, draw=Pictures(folder).random)
    train_autoencoder(task, folder, **options)


def _new_flow(folder: Path) -> FlowModel:
    """The transformer of shapes-flux, and text encoders that have read nothing.

    Every word names one thing wherever it stands, so that the flow itself teaches to read.
    """
    model = FlowModel(vocabulary(), MAX_SEQUENCE_LENGTH)
    learnt = FluxTransformer2DModel.from_pretrained(find_image_pipeline() / "transformer")
    model.transformer.load_state_dict(learnt.state_dict())
    return model


def _train_flow(folder: Path, **options: Any) -> None:
    pool = Pictures(folder)
    task = FlowTask(
        load_autoencoder=AutoencoderKL.from_pretrained,
        normalise=normalise,
        new=_new_flow,
        tokenizers=TOKENIZERS,
        sample=pool.in_turn,
        draw=pool.picture,
        caption=lambda index, rng: caption(pool.person(index), rng),
    )
    train_flow(task, folder, **options)


def _worn(pixels: torch.Tensor) -> torch.Tensor:
    """Pictures (B, 3, H, W) in -1..1 as a generator may get them: blurred, noisy, paler or darker."""
    count = len(pixels)
    blurred = nn.functional.avg_pool2d(nn.functional.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    worn = torch.lerp(pixels, blurred, torch.rand(count, 1, 1, 1))
    worn = worn * (1 + 0.1 * torch.randn(count, 1, 1, 1)) + 0.04 * torch.randn(count, 3, 1, 1)
    return worn + 0.15 * torch.rand(count, 1, 1, 1) * torch.randn_like(worn)


def _torn(pixels: torch.Tensor) -> torch.Tensor:
    """Pictures of no person: the quarters of rows and columns in another order."""
    order = torch.randperm(16)
    tiles = pixels.unflatten(2, (4, 16)).unflatten(4, (4, 16)).movedim(4, 3).flatten(2, 3)[:, :, order]
    torn: torch.Tensor = tiles.unflatten(2, (4, 4)).movedim(3, 4).flatten(4, 5).flatten(2, 3)
    return torn


def draw_held_out(folder: Path, count: int) -> tuple[list[Person], np.ndarray]:
    """``count`` people that training never saw, and a drawn picture of each, (count, 64, 64, 3) uint8."""
    people, rng, svgs = held_out_people(count, seed=1), np.random.default_rng(10), make_svgs(folder)
    return people, np.stack([rasterise(person, rng, svgs) for person in people])


def _save_sheet(pictures: np.ndarray, path: Path) -> None:
    from PIL import Image

    from reference.card import GRID_COLUMNS, sample_grid

    Image.fromarray(sample_grid(pictures, len(pictures) // GRID_COLUMNS, GRID_COLUMNS)).save(path)


def train_checker(folder: Path, *, num_steps: int, seed: int = 0, batch_size: int = 64, num_judged: int = 1000) -> None:
    """Teach the network that reads pictures back, on drawn pictures only; its weights go to ``folder``.

    It is judged on ``num_judged`` drawings of held-out people, of which the first lie beside its weights.
    """
    torch.manual_seed(seed)
    pool, reader, rng = Pictures(folder), Reader(), np.random.default_rng([seed, 9])
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(reader.parameters(), lr=2e-3, weight_decay=0.01)]
    loop, num_torn = Loop("checker", num_steps), batch_size // 8
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=50))
        index = rng.integers(len(pool.pictures), size=batch_size)
        pixels = to_pixels(as_floats(pool.pictures[index]))
        answers = torch.from_numpy(pool.answers[index]).long().unbind(1)
        whole, torn = reader(_worn(pixels)), reader(_torn(pixels[:num_torn]))
        right = sum(nn.functional.cross_entropy(logits, answer) for logits, answer in zip(whole, answers, strict=True))
        unsure = sum(-logits.log_softmax(-1).mean() for logits in torn)
        loss = torch.as_tensor(right + 0.1 * unsure)
        descend(loss, optimizers)
        hits = [(logits.argmax(-1) == answer).float().mean() for logits, answer in zip(whole, answers, strict=True)]
        loop.note(loss=loss, right=torch.stack(hits).mean())
    save_file({name: weight.half() for name, weight in reader.state_dict().items()}, folder / WEIGHTS)
    people, pictures = draw_held_out(folder, num_judged)
    attributes, captions, _ = score(people, as_floats(pictures), partial(check, reader=reader.eval()))
    log.info("checker: %d held-out drawings, %.4f of attributes, %.4f of people", num_judged, attributes, captions)
    _save_sheet(pictures[:NUM_SHOWN], folder / DRAWN)


def export_run(folder: Path, target: Path) -> None:
    """Export the last checkpoint of the training folder ``folder``."""
    flow = _new_flow(folder)
    flow.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    export_images(AutoencoderKL.from_pretrained(folder / "vae"), flow.eval(), target, TOKENIZERS)
    for name in (WEIGHTS, DRAWN):
        shutil.copy(folder / name, target)


FACES = Recipe(
    name="faces",
    stages={
        "pictures": (draw_pictures, NUM_PICTURES),
        "autoencoder": (partial(_train_autoencoder, batch_size=16, num_measured=256, checkpoint_every=50), 750),
        "checker": (train_checker, 600),
        "flow": (partial(_train_flow, batch_size=32, checkpoint_every=100), 2400),
    },
    num_scenes=8192,
    export=export_run,
)
