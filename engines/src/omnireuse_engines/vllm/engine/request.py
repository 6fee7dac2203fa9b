"""What is asked of the engine, what it answers, and where a request stands."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from omnireuse_engines.vllm.engine.model import IMAGE_TOKEN

__all__ = ["Image", "Request", "Result", "Sequence", "image_tokens", "largest_difference"]

K = TypeVar("K")


@dataclass(frozen=True, kw_only=True, eq=False)
class Image:
    """An image at its place in a prompt.

    Args:
        pixels: (3, height, width).
        offset: index of its first placeholder.
        num_embeds: embeddings, and placeholders, of it.
    """

    pixels: torch.Tensor
    offset: int
    num_embeds: int

    @property
    def stop(self) -> int:
        """One past its last placeholder."""
        return self.offset + self.num_embeds


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What is asked.

    Args:
        request_id: unique among the requests alive; may come again afterwards.
        token_ids: the prompt, with a placeholder for every embedding of an image.
        images: in the order of their offsets.
        max_new_tokens: tokens to answer with; the engine stops for nothing else.
        num_codes: codec tokens that the talker speaks.
        tenant: requests of different tenants share nothing.
    """

    request_id: str
    token_ids: tuple[int, ...]
    images: tuple[Image, ...] = ()
    max_new_tokens: int = 8
    num_codes: int = 4
    tenant: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What the engine answers.

    Args:
        token_ids: the generated tokens.
        hidden: hidden states of all tokens but the last, (tokens − 1, width).
        embeds: what the thinker read at these tokens, of the same shape.
        codes: what the talker spoke.
        num_preemptions: how often the request lost its blocks on the way.
    """

    request_id: str
    token_ids: tuple[int, ...]
    hidden: torch.Tensor
    embeds: torch.Tensor
    codes: tuple[int, ...]
    num_preemptions: int


def largest_difference(got: Mapping[K, Result], expected: Mapping[K, Result]) -> float:
    """Return the largest difference of hidden states and embeddings between results that are in both.

    0.0 means bit-equal throughout; infinite, that a token, a code or a length differs.
    """
    largest = 0.0
    for name in got.keys() & expected.keys():
        mine, theirs = got[name], expected[name]
        if (mine.token_ids, mine.codes, mine.hidden.shape) != (theirs.token_ids, theirs.codes, theirs.hidden.shape):
            return math.inf
        for a, b in ((mine.hidden, theirs.hidden), (mine.embeds, theirs.embeds)):
            largest = max(largest, float((a - b).abs().max()))
    return largest


def image_tokens(num_embeds: int) -> tuple[int, ...]:
    """Return the placeholders of an image."""
    return (IMAGE_TOKEN,) * num_embeds


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What the encoder cache is told of an image: the name of its content."""

    identifier: str


@dataclass(kw_only=True, eq=False)
class Sequence:
    """A request on its way through the engine.

    Args:
        salt: goes into the names of its encoder outputs, "" if it may share them with others.
        token_ids: the prompt and what was generated so far.
        num_computed: tokens whose keys and values are in the KV cache.
        block_ids: the blocks that hold them, in order.
        hidden, embeds: rows of the computed tokens, step by step.
    """

    request: Request
    salt: str
    token_ids: list[int]
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[str] = field(default_factory=list)
    hidden: list[torch.Tensor] = field(default_factory=list)
    embeds: list[torch.Tensor] = field(default_factory=list)
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        tenant = repr(self.request.tenant)
        self._contents = [_digest(tenant, image.pixels) for image in self.request.images]

    @property
    def mm_features(self) -> list[Feature]:
        """The images, as the encoder cache asks for them."""
        # One that shares with nobody does not share with itself either: another place, or a run before a preemption.
        own = f" {self.salt}.{self.num_preemptions}" if self.salt else ""
        return [Feature(identifier=content + (own and f"{own}.{n}")) for n, content in enumerate(self._contents)]

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - len(self.request.token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether everything asked for is generated."""
        return self.num_generated >= self.request.max_new_tokens

    def get_num_encoder_embeds(self, input_id: int) -> int:
        """Embeddings of one image, as the encoder cache asks for it."""
        return self.request.images[input_id].num_embeds

    def restart(self) -> None:
        """Forget what was computed, not what was generated: the blocks are gone."""
        self.num_computed, self.num_preemptions = 0, self.num_preemptions + 1
        self.block_ids, self.hidden, self.embeds = [], [], []

    def hash_blocks(self, block_size: int) -> list[str]:
        """Name every full block by all that its keys and values depend on: the tokens up to its end, and the images."""
        for number in range(len(self.block_hashes), len(self.token_ids) // block_size):
            start, stop = number * block_size, (number + 1) * block_size
            parent = self.block_hashes[-1] if self.block_hashes else repr(self.request.tenant)
            shown = [
                (content, image.offset - start)
                for content, image in zip(self._contents, self.request.images, strict=True)
                if image.offset < stop and start < image.stop
            ]
            self.block_hashes.append(_digest(f"{parent} {self.token_ids[start:stop]} {shown}"))
        return self.block_hashes


def _digest(text: str, pixels: torch.Tensor | None = None) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    if pixels is not None:
        digest.update(str((pixels.dtype, tuple(pixels.shape))).encode())
        digest.update(pixels.contiguous().numpy().tobytes())
    return digest.hexdigest()
