"""How the factories make a pipeline of a tiny denoiser."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from tests.helpers.tiny import Tiny
from tests.models.diffusion.denoisers.base import tensor

__all__ = ["MASKS", "TEXT", "around", "bare", "made", "texts"]

MASKS = {f"{kind}prompt_attention_mask": torch.ones(1, 6) for kind in ("", "negative_")}

# Of a text encoder that is as good as none.
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


def around(kind: Any, model: Callable[[], Any], scheduler: Callable[[], Any] | None = None, **inputs: Any) -> Any:
    """A factory of a bare pipeline with fixed inputs."""
    return lambda: made(bare(kind, model().model, scheduler and scheduler()), **inputs)


def texts(width: int = 16, tokens: int = 6, **pooled: int) -> dict[str, Any]:
    """Embeddings of a prompt and of a negative one; `pooled` names further vectors and their widths."""
    given = {
        "prompt_embeds": tensor(1, tokens, width, seed=1),
        "negative_prompt_embeds": tensor(1, tokens, width, seed=3),
    }
    for seed, (name, size) in enumerate(pooled.items(), start=5):
        given |= {name: tensor(1, size, seed=seed), f"negative_{name}": tensor(1, size, seed=seed + 10)}
    return given
