"""Editing models of true size with random weights: a target and references of 1024 × 1024 pixels in one sequence.

Positions and token counts are those of diffusers' pipelines; FluxKontextPipeline itself takes one reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from diffusers import Flux2Transformer2DModel, LongCatImageTransformer2DModel

from bench._true_size import MODELS, Model, Sampler, _grid

__all__ = ["EDITING", "OTHERS", "Editing", "EditingSampler"]

Arguments = Callable[[int, int, torch.Tensor], dict[str, Any]]
"""Arguments of a call that name tokens, from the numbers of pictures and of tokens in each, and a tensor on the device
to be like."""


@dataclass(frozen=True, kw_only=True)
class Editing:
    """A published editing model.

    Attributes:
        model: its shapes, without references.
        pipeline: name of the class that gives it references.
        positions: of all pictures.
        text_of_reference: text tokens that each reference adds, because the text encoder sees it, too.
        few: fewer blocks, at the true width.
    """

    model: Model
    pipeline: str
    positions: Arguments
    text_of_reference: int = 0
    few: Mapping[str, int] = field(default_factory=dict)

    def sized(self, size: str) -> Model:
        """Its shapes in one of the sizes of the benchmark; "few" has few blocks."""
        return replace(self.model, true={**self.model.true, **self.few}) if size == "few" else self.model


def _kontext(pictures: int, tokens: int, like: torch.Tensor) -> dict[str, Any]:
    grids = [_grid(tokens, device=like.device, dtype=like.dtype) for _ in range(pictures)]
    for number, grid in enumerate(grids):
        grid[:, 0] = number
    return {"img_ids": torch.cat(grids)}


def _qwen_edit(pictures: int, tokens: int, _like: torch.Tensor) -> dict[str, Any]:
    side = round(tokens**0.5)
    return {"img_shapes": [[(1, side, side)] * pictures]}


EDITING = {
    "flux.1-kontext": Editing(
        model=MODELS["flux.1"],
        pipeline="FluxKontextPipeline",
        positions=_kontext,
        few={"num_layers": 1, "num_single_layers": 1},
    ),
    # One of its two branches. The vision encoder makes 14 × 14 tokens of each reference.
    "qwen-image-edit-plus": Editing(
        model=replace(MODELS["qwen-image"], latents=(1, 4096, 64), text=(64, 3584), guidance=None),
        pipeline="QwenImageEditPlusPipeline",
        positions=_qwen_edit,
        text_of_reference=196,
        few={"num_layers": 2},
    ),
}
"""By name."""


def _flux_2(pictures: int, tokens: int, like: torch.Tensor) -> dict[str, Any]:
    grids = [_grid(tokens, device=like.device, dtype=like.dtype) for _ in range(pictures)]
    return {"img_ids": torch.cat([torch.nn.functional.pad(grid, (0, 1)) for grid in grids])}


def _flux_2_arguments(latents: torch.Tensor, config: Any, tokens: int) -> dict[str, Any]:
    guidance = torch.full((1,), 4.0, device=latents.device) if config.guidance_embeds else None
    return {"guidance": guidance, "txt_ids": torch.zeros(tokens, 4, device=latents.device, dtype=latents.dtype)}


def _other(kind: Any, pipeline: str, latents: int, text: int, **true: Any) -> Editing:
    """A model that is never tiny here."""
    is_flux_2 = kind is Flux2Transformer2DModel
    model = Model(
        kind=kind,
        true=true,
        tiny={},
        latents=(1, 4096, latents),
        tiny_latents=(),
        text=(512, text),
        tiny_text=(0, 0),
        arguments=_flux_2_arguments if is_flux_2 else _longcat_arguments,
    )
    return Editing(model=model, pipeline=pipeline, positions=_flux_2 if is_flux_2 else _kontext)


def _longcat_arguments(latents: torch.Tensor, _config: Any, tokens: int) -> dict[str, Any]:
    return {"txt_ids": torch.zeros(tokens, 3, device=latents.device, dtype=latents.dtype)}


OTHERS = {
    "flux.2-dev": _other(Flux2Transformer2DModel, "Flux2Pipeline", 128, 15360),
    "flux.2-klein-9b": _other(
        Flux2Transformer2DModel,
        "Flux2KleinPipeline",
        128,
        12288,
        num_single_layers=24,
        num_attention_heads=32,
        joint_attention_dim=12288,
        guidance_embeds=False,
    ),
    "longcat-image-edit": _other(
        LongCatImageTransformer2DModel, "LongCatImageEditPipeline", 64, 3584, num_layers=10, num_single_layers=20
    ),
}
"""Further models, of which only memory is measured."""


class EditingSampler(Sampler):
    """A denoiser that is given references beside its latents. Make it by `made`.

    Attributes:
        references: how many.
    """

    editing: Editing
    references = 0

    @classmethod
    def made(cls, editing: Editing, *, size: str, device: torch.device, dtype: torch.dtype) -> EditingSampler:
        """A sampler under the name of the model's pipeline, by which the library knows it."""
        kind = type(editing.pipeline, (cls,), {"editing": editing})
        sampler: EditingSampler = kind(editing.sized(size), tiny=size == "tiny", device=device, dtype=dtype)
        return sampler

    def take(self, references: int) -> None:
        """Other references, each as large as the target."""
        self.references = references
        tokens, channels = self._start.shape[1:]
        like = {"device": self._start.device, "dtype": self._start.dtype}
        self._pictures = torch.randn(1, references * tokens, channels, **like)
        text, width = self._texts[0].shape[1:]
        text = self._text_alone = getattr(self, "_text_alone", text)
        text += references * self.editing.text_of_reference
        self._texts = [torch.randn(1, text, width, **like) for _ in self._texts]
        self._arguments = self._model.arguments(self._start, self.transformer.config, text)
        self._arguments |= self.editing.positions(1 + references, tokens, self._start)

    @property
    def text(self) -> int:
        """Tokens of the text."""
        return int(self._texts[0].shape[1])

    @property
    def target(self) -> int:
        """Tokens of a picture."""
        return int(self._start.shape[1])

    def _call(self, latents: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        output = super()._call(torch.cat([latents, self._pictures], dim=1), timestep, text)
        return output[:, : latents.shape[1]]
