"""How the factories make a pipeline of a tiny denoiser."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from tests.helpers.tiny import Tiny, tensor
from tests.models.diffusion.denoisers import denoiser

__all__ = ["MASKS", "SIZE", "TEXT", "around", "bare", "made", "masks", "texts"]

SIZE = {"height": 64, "width": 64}
"""Without an autoencoder pipelines take latents to be an eighth of the image."""
TEXT = {
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
"""Of a text encoder that is as good as none."""


def made(pipe: Any, **inputs: Any) -> Tiny:
    """The pipeline with fixed inputs and without a progress bar."""
    pipe.set_progress_bar_config(disable=True)
    return Tiny(pipe, lambda **_kinds: dict(inputs))


def bare(kind: Any, model: Any, scheduler: Any = None, **parts: Any) -> Any:
    """A pipeline around its transformer and little else; by flow matching, unless a scheduler is given."""
    parts = {"transformer": model, "scheduler": scheduler or FlowMatchEulerDiscreteScheduler(), **parts}
    wanted = list(inspect.signature(kind.__init__).parameters.values())[1:]
    absent = {each.name: None for each in wanted if each.default is each.empty and each.kind is not each.VAR_KEYWORD}
    return kind(**absent | parts)


def around(
    kind: Any,
    name: str,
    scheduler: Callable[[], Any] | None = None,
    *,
    sizes: dict[str, Any] | None = None,
    parts: Callable[[], dict[str, Any]] = dict,
    **inputs: Any,
) -> Callable[[], Tiny]:
    """A factory of a bare pipeline of the tiny denoiser of this class, with further parts and fixed inputs."""
    return lambda: made(bare(kind, denoiser(name, **sizes or {}).model, scheduler and scheduler(), **parts()), **inputs)


def texts(width: Any = 16, tokens: int = 6, name: str = "prompt_embeds", **more: Any) -> dict[str, Any]:
    """Embeddings of a prompt and of a negative one; `more` names further ones and their shapes."""
    shapes = {name: (tokens, *((width,) if isinstance(width, int) else width)), **more}
    return {
        f"{kind}{each}": tensor(1, *((shape,) if isinstance(shape, int) else shape), seed=1 + 2 * place + 10 * negative)
        for place, (each, shape) in enumerate(shapes.items())
        for negative, kind in enumerate(("", "negative_"))
    }


def masks(*names: str, tokens: int = 6, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Masks of both prompts that leave nothing out."""
    return {f"{kind}{name}": torch.ones(1, tokens, dtype=dtype) for kind in ("", "negative_") for name in names}


MASKS = masks("prompt_attention_mask")
