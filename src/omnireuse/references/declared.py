"""Where reference tokens lie in the calls of each model and in its attentions, and which calls compute them.

Source: the forwards, attention processors and pipelines of diffusers 0.42. In all models here the tokens of the image
are those of the target, then those of the references, and the pipeline cuts what the denoiser returns to the target's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from omnireuse.base.validation import Count, check_fields

__all__ = ["DECLARED", "OWN_CACHES", "PIPELINES", "Declaration", "References", "Split", "declaration_of"]

Reader = Callable[[Mapping[str, Any], int], "int | str"]
"""The number of the target's tokens, from the arguments of a call and the number of its image tokens; in words why it
is not known."""


@dataclass(frozen=True, kw_only=True)
class References:
    """Which computed calls are full: all tokens compute, and keys and values of the references are kept. The others are
    lean: the target's and the text's tokens compute, and attend to what was kept. Lean calls are an approximation.

    Attributes:
        full_every: every so many computed calls of a branch one is full; 1 for all of them. None makes no call full but
            the first.
        full_last: make those of the last step full, too, if the number of steps is known: an error there stays in the
            picture.
        on_host: keep keys and values in the memory of the host.

    Raises:
        ConfigError: a value is out of range.
    """

    full_every: Count | None = 4
    full_last: bool = False
    on_host: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def is_full(self, step: int, total: int | None, lean_calls: int) -> bool:
        """Whether a call of this step of a run is full, after so many lean calls of its branch since the last full
        one."""
        is_due = self.full_every is not None and lean_calls + 1 >= self.full_every
        is_last = self.full_last and total is not None and step == total - 1
        return is_due or is_last


@dataclass(frozen=True)
class Split:
    """The tokens of a call: text, target and references. In attentions they follow each other in this order."""

    text: int
    target: int
    references: int

    @property
    def lean(self) -> int:
        """Tokens of a lean call."""
        return self.text + self.target

    @property
    def full(self) -> int:
        """Tokens of a full call."""
        return self.lean + self.references


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A denoiser that gets references.

    Attributes:
        model: name of its class.
        pipelines: names of the pipelines that give it references.
        target_of: reads the number of the target's tokens.
        blocks: its lists of blocks, each of which attends once.
        positions: its part that computes positions from `img_shapes`, those of the text among them; None if positions
            are an argument.
    """

    model: str
    pipelines: tuple[str, ...]
    target_of: Reader
    blocks: tuple[str, ...] = ("transformer_blocks", "single_transformer_blocks")
    positions: str | None = None

    def definer(self, module: torch.nn.Module) -> ModuleType:
        """The Python module that defines the model with its attention processors."""
        kind = next(cls for cls in type(module).__mro__ if cls.__name__ == self.model)
        return sys.modules[kind.__module__]

    def attentions(self, module: torch.nn.Module) -> int:
        """How many attentions a call computes in which references take part."""
        return sum(len(getattr(module, name)) for name in self.blocks)

    def split(self, arguments: Mapping[str, Any]) -> Split | str | None:
        """The tokens of a call; None without references; in words why it is not known."""
        hidden, text = arguments.get("hidden_states"), arguments.get("encoder_hidden_states")
        if (
            not isinstance(hidden, torch.Tensor)
            or not isinstance(text, torch.Tensor)
            or {hidden.ndim, text.ndim} != {3}
        ):
            return "hidden_states and encoder_hidden_states are not (batch, tokens, channels)"
        given = next((name for name in _REFUSED if arguments.get(name) is not None), None)
        if given is not None:
            return f"{given} is given"
        target = self.target_of(arguments, hidden.shape[1])
        if isinstance(target, str) or target == hidden.shape[1]:
            return target if isinstance(target, str) else None
        return Split(text.shape[1], target, hidden.shape[1] - target)

    def lean_arguments(self, split: Split, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a lean call. Mappings are copied, because forwards take entries out of them."""
        lean = {name: dict(value) if isinstance(value, dict) else value for name, value in arguments.items()}
        lean["hidden_states"] = arguments["hidden_states"][:, : split.target]
        if "img_ids" in lean:
            lean["img_ids"] = arguments["img_ids"][..., : split.target, :]
        if "img_shapes" in lean:
            lean["img_shapes"] = [list(shapes)[:1] for shapes in arguments["img_shapes"]]
        return lean


_REFUSED = ("controlnet_block_samples", "controlnet_single_block_samples", "kv_cache", "kv_cache_mode")
"""Arguments with a row for each token, or that keep keys themselves."""


def _by_ids(arguments: Mapping[str, Any], tokens: int) -> int | str:
    """Positions begin with the number of the picture, and the target comes first. Cost: it waits for the device."""
    ids = arguments.get("img_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim not in (2, 3) or ids.shape[-2] != tokens:
        form = tuple(ids.shape) if isinstance(ids, torch.Tensor) else type(ids).__name__
        return f"img_ids have another form ({form}) than a row for each of {tokens} tokens"
    if ids.ndim == 3 and ids.shape[0] > 1 and not torch.equal(ids, ids[:1].expand_as(ids)):
        return "img_ids differ between the samples of a batch"
    picture = (ids if ids.ndim == 2 else ids[0])[:, 0].tolist()
    target = next((place for place, number in enumerate(picture) if number != picture[0]), tokens)
    if picture[0] in picture[target:]:
        return "tokens of the target follow those of a reference in img_ids"
    return target


def _by_shapes(arguments: Mapping[str, Any], tokens: int) -> int | str:
    """For each sample a list of (frames, height, width): of the target, then of each reference."""
    shapes = arguments.get("img_shapes")
    try:
        rows = [[tuple(map(int, shape)) for shape in sample] for sample in shapes]  # type: ignore[union-attr]  # below
        counts = [math.prod(shape) for shape in rows[0]]
        is_known = bool(counts) and all(len(shape) == 3 for shape in rows[0])
    except (TypeError, ValueError, IndexError):
        is_known = False
    if not is_known:
        return f"img_shapes have another form ({shapes!r:.60}) than a list of (frames, height, width) for each sample"
    if any(row != rows[0] for row in rows):
        return "img_shapes differ between the samples of a batch"
    if sum(counts) != tokens:
        return f"img_shapes declare {sum(counts)} tokens, and {tokens} are given"
    return counts[0]


DECLARED = {
    each.model: each
    for each in (
        Declaration(
            model="FluxTransformer2DModel",
            pipelines=("FluxKontextPipeline", "FluxKontextInpaintPipeline"),
            target_of=_by_ids,
        ),
        Declaration(
            model="Flux2Transformer2DModel",
            pipelines=("Flux2Pipeline", "Flux2KleinPipeline", "Flux2KleinInpaintPipeline"),
            target_of=_by_ids,
        ),
        Declaration(model="LongCatImageTransformer2DModel", pipelines=("LongCatImageEditPipeline",), target_of=_by_ids),
        Declaration(
            model="QwenImageTransformer2DModel",
            pipelines=("QwenImageEditPipeline", "QwenImageEditInpaintPipeline", "QwenImageEditPlusPipeline"),
            target_of=_by_shapes,
            blocks=("transformer_blocks",),
            positions="pos_embed",
        ),
    )
}
"""By the class name of the denoiser."""
PIPELINES = tuple(name for each in DECLARED.values() for name in each.pipelines)
OWN_CACHES = ("Flux2KleinKVPipeline", "QwenImage21Pipeline")
"""Pipelines that keep keys and values of references themselves."""


def declaration_of(module: torch.nn.Module) -> Declaration | None:
    """The declaration of an unwrapped denoiser, or of a class that it is derived from."""
    return next((DECLARED[cls.__name__] for cls in type(module).__mro__ if cls.__name__ in DECLARED), None)
