"""The wrappers that ComfyUI offers to custom nodes: their kinds, on a clone of a model or in the options of one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omnireuse.integrations.comfyui.release import NEEDED
from omnireuse.integrations.settings import KEY

__all__ = ["OUTER", "PARTS", "POST", "PREDICT", "SAMPLER", "Wrappers", "with_wrappers", "wrapped"]

OUTER = NEEDED[0]
PREDICT = NEEDED[1]
PARTS = NEEDED[2]
SAMPLER = NEEDED[3]
POST = "sampler_post_cfg_function"
"""Name of the functions that are given the parts of guidance, in a model's options."""

Wrappers = Callable[..., Any]
"""Called with what it wraps, and with the arguments of that."""


def wrapped(model: Any, wrappers: Mapping[str, Wrappers], key: str = KEY) -> Any:
    """A clone of the model with these wrappers, by their kinds, in place of others of the key."""
    clone = model.clone()
    for kind, wrapper in wrappers.items():
        clone.remove_wrappers_with_key(kind, key)
        clone.add_wrapper_with_key(kind, key, wrapper)
    return clone


def with_wrappers(options: Mapping[str, Any], wrappers: Mapping[str, Wrappers]) -> dict[str, Any]:
    """A model's options with these wrappers, by their kinds, in place of those of the node."""
    inner = options.get("transformer_options", {})
    kinds = dict(inner.get("wrappers", {}))
    for kind, wrapper in wrappers.items():
        kinds[kind] = {**kinds.get(kind, {}), KEY: [wrapper]}
    return {**options, "transformer_options": {**inner, "wrappers": kinds}}
