"""The wrappers that ComfyUI offers to custom nodes: their kinds, on a clone of a model or in the options of one run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from omnireuse.errors import ConfigError, StateError
from omnireuse_engines.host import is_tested
from omnireuse_engines.settings import KEY

__all__ = [
    "NEEDED",
    "OUTER",
    "PARTS",
    "POST",
    "PREDICT",
    "SAMPLER",
    "TESTED",
    "Wrappers",
    "check_comfyui",
    "refuse_other_caches",
    "with_wrappers",
    "wrapped",
]

logger = logging.getLogger("omnireuse")

TESTED = ("0.30",)
"""Releases of ComfyUI that the tests run in."""
NEEDED = ("outer_sample", "predict_noise", "calc_cond_batch", "sampler_sample")
"""Kinds of wrappers: around a run, the solver's call of the model, the parts of guidance, and the solver."""


def check_comfyui(version: str, kinds: Collection[str]) -> None:
    """Refuse a ComfyUI that nodes could not hook into, before ComfyUI shows them; name another release in the log."""
    missing = [kind for kind in NEEDED if kind not in kinds]
    tested = ", ".join(TESTED)
    if missing:
        raise ConfigError(
            f"Omnireuse: ComfyUI {version} is not supported; these nodes were tested with {tested}; not hooked: "
            f"{', '.join(missing)}; install one of them"
        )
    if not is_tested(version, TESTED):
        logger.warning("Omnireuse was tested with ComfyUI %s, this is %s; its hooks are there", tested, version)


OUTER = NEEDED[0]
PREDICT = NEEDED[1]
PARTS = NEEDED[2]
SAMPLER = NEEDED[3]
POST = "sampler_post_cfg_function"
"""Name of the functions that are given the parts of guidance, in a model's options."""

_OTHERS = {"easycache": "EasyCache", "lazycache": "LazyCache"}
"""ComfyUI's own step caches, by the keys of their wrappers."""
Wrappers = Callable[..., Any]
"""Called with the wrapped function and its arguments."""


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


def refuse_other_caches(keys: Iterable[str]) -> None:
    """Refuse another step cache."""
    for key in _OTHERS.keys() & set(keys):
        raise StateError(
            f"Omnireuse and {_OTHERS[key]} are both on this model, and each would take the other's forecasts for "
            "the model's outputs; remove one of the two nodes"
        )
