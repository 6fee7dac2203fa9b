"""What the edits are learnt from: latents of many people, each in eight versions, and batches of edits between them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from transformers import PreTrainedTokenizerFast

from reference.edits.drawing import Drawer, Jitter, sample_jitter
from reference.edits.model import SIDE
from reference.edits.task import (
    CLAUSE_OF,
    CLAUSES,
    INSTRUCTIONS,
    NAMES,
    SIZES,
    held_out_looks,
)
from reference.tokenizers import token_ids

log = logging.getLogger("reference.train")

#: Versions of a person in one jitter: as it is, and with one aspect changed.
VERSIONS = 8
EMPTY_SHARE = 0.1
#: Of the edits, those between a person and one of its versions; they change one aspect, most others two.
ONE_SHARE = 0.3
#: People drawn and encoded together.
TOGETHER = 64


def sample_versions(rng: np.random.Generator, count: int) -> np.ndarray:
    """Looks (count, VERSIONS, 7) of people and their versions, none of them held out."""
    held_out, sizes, colours = held_out_looks(), np.array(SIZES), SIZES[NAMES.index("hair")]
    plain, hair = 8, NAMES.index("hair")

    def any_look(place: np.ndarray) -> np.ndarray:
        look = rng.integers(sizes[place])
        # Half of all heads are of a style that has a colour.
        coloured = np.where(rng.random(place.shape) < 0.5, rng.integers(plain, colours, place.shape), 0)
        heads = np.where(coloured > 0, coloured, rng.integers(0, plain, place.shape))
        return np.where(place == hair, heads, look)

    found: list[np.ndarray] = []
    while sum(map(len, found)) < count:
        base = any_look(np.broadcast_to(np.arange(len(NAMES)), (count, len(NAMES))))
        looks = np.repeat(base[:, None], VERSIONS, axis=1)
        place = rng.integers(len(NAMES), size=(count, VERSIONS - 1))
        changed = any_look(place)
        np.put_along_axis(looks[:, 1:], place[..., None], changed[..., None], axis=2)
        held = held_out[tuple(np.moveaxis(looks[..., :5], -1, 0))].any(axis=1)
        same = (looks[:, 1:] == base[:, None]).all(axis=2).any(axis=1)
        found.append(looks[~(held | same)])
    return np.concatenate(found)[:count]


@torch.no_grad()
def encode(vae: Any, pictures: torch.Tensor) -> torch.Tensor:
    """Normalised latents (B, 8, 16, 16) of pictures (B, 3, 64, 64) in 0..1, as FluxKontextPipeline has them."""
    latents = vae.encode(pictures * 2 - 1).latent_dist.mode()
    encoded: torch.Tensor = (latents - vae.config.shift_factor) * vae.config.scaling_factor
    return encoded


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Edits.

    Attributes:
        clean: packed latents of the targets, (B, T, C).
        references: packed latents of the one picture or the two pictures that an edit refers to, (B, T or 2 T, C).
        ids: token ids of the instructions for each tokenizer.
    """

    clean: torch.Tensor
    references: torch.Tensor
    ids: Sequence[torch.Tensor]


class Pool:
    """Latents of many people, from which edits are drawn on the device.

    Args:
        drawer: draws the people, on the device where batches are wanted.
        vae: encodes them.
        tokenizers: read the instructions.
        num_people: people; each has `VERSIONS` pictures.
        seed: of everything random.
    """

    def __init__(
        self,
        drawer: Drawer,
        vae: AutoencoderKL,
        tokenizers: Sequence[PreTrainedTokenizerFast],
        *,
        num_people: int,
        seed: int = 0,
    ) -> None:
        rng, self.device = np.random.default_rng([seed, 11]), drawer.device
        versions, encoded = sample_versions(rng, num_people), []
        for start in range(0, num_people, TOGETHER):
            looks = versions[start : start + TOGETHER]
            jitter = sample_jitter(rng, len(looks))
            same = Jitter(shift=jitter.shift.repeat(VERSIONS, 0), tint=jitter.tint.repeat(VERSIONS, 0))
            latents = encode(vae, drawer.draw(looks.reshape(-1, len(NAMES)), same))
            encoded.append(_pack(latents).half())
        self.latents = torch.cat(encoded)
        self.looks = torch.from_numpy(versions.reshape(-1, len(NAMES))).to(self.device)
        self.ids = [token_ids(tokenizer, list(INSTRUCTIONS)).to(self.device) for tokenizer in tokenizers]
        self.clause_of = torch.from_numpy(CLAUSE_OF).to(self.device)
        self.pairs = torch.tensor(list(product(range(len(NAMES)), repeat=2)), device=self.device)
        self._index_givers()
        log.info("pool: %d people, latent standard deviation %.3f", num_people, float(self.latents.float().std()))

    def _index_givers(self) -> None:
        """For each pair of aspects: the pictures in order of both looks, and where each pair of looks begins."""
        widest = max(SIZES)
        keys = [self.looks[:, first] * widest + self.looks[:, second] for first, second in self.pairs.tolist()]
        self._order = torch.stack([key.argsort().int() for key in keys])
        counts = torch.stack([torch.bincount(key, minlength=widest * widest) for key in keys])
        self._starts = torch.nn.functional.pad(counts.cumsum(1), (1, 0))

    def _integers(self, high: int | torch.Tensor, count: int) -> torch.Tensor:
        return (torch.rand(count, device=self.device, dtype=torch.float64) * high).long()

    def batch(self, count: int, *, two: bool) -> Batch:
        """``count`` edits; ``two`` takes the change from a second picture."""
        person = self._integers(len(self.looks) // VERSIONS, count) * VERSIONS
        first = self._integers(VERSIONS, count)
        second = (first + 1 + self._integers(VERSIONS - 1, count)) % VERSIONS
        # One way or back.
        one = torch.rand(count, device=self.device) < ONE_SHARE
        back = torch.rand(count, device=self.device) < 0.5
        from_base, to_base = one & back & (second > 0), one & ~back & (first > 0)
        first, second = torch.where(from_base, 0, first), torch.where(to_base, 0, second)
        # Two versions may be the same; the person itself differs from each of them.
        alike = (self.looks[person + first] == self.looks[person + second]).all(1)
        second = torch.where(alike, 0, second)
        before, after = person + first, person + second
        old, new = self.looks[before], self.looks[after]
        changed = (old != new).int()
        low, high = changed.argmax(1), len(NAMES) - 1 - changed.flip(1).argmax(1)
        references = self.latents[before].float()
        if two:
            pair = low * len(NAMES) + high
            rows = torch.arange(count, device=self.device)
            key = new[rows, low] * max(SIZES) + new[rows, high]
            start, end = self._starts[pair, key], self._starts[pair, key + 1]
            giver = self._order[pair, start + self._integers(end - start, count)].long()
            references = beside(references, self.latents[giver].float())
            said = len(CLAUSES) ** 2 + pair
        else:
            said = _said(self.clause_of, old, new, low) * len(CLAUSES) + _said(self.clause_of, old, new, high)
        empty = torch.rand(count, device=self.device) < EMPTY_SHARE
        said = torch.where(empty, len(INSTRUCTIONS) - 1, said)
        return Batch(clean=self.latents[after].float(), references=references, ids=[ids[said] for ids in self.ids])


def _said(clause_of: torch.Tensor, old: torch.Tensor, new: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    at = place[:, None]
    return clause_of[place, old.gather(1, at)[:, 0], new.gather(1, at)[:, 0]]


def _pack(latents: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = latents.unflatten(3, (SIDE, 2)).unflatten(2, (SIDE, 2))
    return packed.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def beside(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Packed latents of two pictures as those of one of twice the width."""
    rows = [packed.unflatten(1, (SIDE, SIDE)) for packed in (left, right)]
    return torch.cat(rows, dim=2).flatten(1, 2)
