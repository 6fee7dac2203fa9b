"""A tiny pipeline that takes prompts as texts: each text stands for embeddings of its own."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch

from tests.helpers.tiny import TINY


class Prompted:
    """Like a diffusers pipeline from outside."""

    def __init__(self, name: str = "flux") -> None:
        tiny = TINY[name]()
        self.inner, self._inputs = tiny.pipe, tiny.inputs
        for part in ("transformer", "unet", "scheduler"):
            if hasattr(tiny.pipe, part):
                setattr(self, part, getattr(tiny.pipe, part))

    @property
    def _dtype(self) -> torch.dtype:
        """Of the denoiser, as a text encoder that was moved with it would have."""
        denoiser = getattr(self, "transformer", None) or self.unet
        return next(iter(denoiser.parameters())).dtype

    def __call__(self, prompt: str | list[str], **call: Any) -> Any:
        texts = [prompt] if isinstance(prompt, str) else prompt
        embeddings = {
            name: torch.cat([_embedding(value, text) for text in texts]).to(self._dtype)
            for name, value in self._inputs(guided=True, batch=1).items()
            if isinstance(value, torch.Tensor)
        }
        return self.inner(**self._inputs(guided=True, batch=len(texts)) | embeddings | call)


def _embedding(like: torch.Tensor, text: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
    return torch.randn(like.shape, generator=generator) if like.is_floating_point() else like


def spoiled(denoiser: torch.nn.Module, when: Callable[[int], bool]) -> Any:
    """From now on the calls of `denoiser` for which `when` holds, counted from 0, return NaN in their last row; what is
    returned ends it."""
    calls = iter(range(10**9))

    def spoil(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        if when(next(calls)):
            first = output[0] if isinstance(output, tuple) else output.sample
            first[-1] = float("nan")
        return output

    return denoiser.register_forward_hook(spoil)
