"""What ComfyUI's server loads as a checkpoint in tests: the small Flux of this repository."""

from __future__ import annotations

from functools import cache
from typing import Any

import nodes

from engines.tests.hosts.comfyui import host
from engines.tests.hosts.comfyui.shapes import Shapes


class Clip:
    """The text encoders, as ComfyUI's `CLIPTextEncode` calls them."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes

    def tokenize(self, text: str) -> str:
        return text

    def encode_from_tokens_scheduled(self, text: str) -> list[Any]:
        return self._shapes.encode(text)


@cache
def parts() -> tuple[Any, Clip, Shapes]:
    shapes = Shapes()
    return host.load_model(), Clip(shapes), shapes


class Checkpoint(nodes.CheckpointLoaderSimple):
    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"ckpt_name": (["model.safetensors"], {})}}

    def load_checkpoint(self, ckpt_name: str) -> tuple[Any, Clip, Shapes]:
        return parts()


NODE_CLASS_MAPPINGS: dict[str, Any] = {}
"""A custom node cannot take the name of one of ComfyUI's own, so it takes the place of that one."""
nodes.NODE_CLASS_MAPPINGS["CheckpointLoaderSimple"] = Checkpoint
