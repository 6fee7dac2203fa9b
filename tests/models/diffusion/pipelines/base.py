"""How the factories make a pipeline of a tiny denoiser."""

from __future__ import annotations

from typing import Any

from tests.helpers.tiny import Tiny
from tests.models.diffusion.denoisers.base import tensor

__all__ = ["TEXT", "made", "texts"]

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


def texts(width: int = 16, tokens: int = 6, **pooled: int) -> dict[str, Any]:
    """Embeddings of a prompt and of a negative one; `pooled` names further vectors and their widths."""
    given = {
        "prompt_embeds": tensor(1, tokens, width, seed=1),
        "negative_prompt_embeds": tensor(1, tokens, width, seed=3),
    }
    for seed, (name, size) in enumerate(pooled.items(), start=5):
        given |= {name: tensor(1, size, seed=seed), f"negative_{name}": tensor(1, size, seed=seed + 10)}
    return given
