"""Arguments of a pipeline's call beside prompt and noise: a plan's quality may depend on them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from omnireuse.base.validation import is_number

__all__ = ["Calls", "arguments_of", "differences", "read_argument", "scales_of"]

_CONTENT = re.compile(
    r"(negative_)?prompt|.*_embeds|class_labels$|generator$|seed$|latents$|output(_type)?$|return_dict$|callback|"
    r"num_(images|videos)_per_prompt$"
)
"""Arguments for content, number and form of pictures: a profile serves all values."""
_NOISE = ("num_inference_steps", "timesteps", "sigmas")
"""These are seen as noise levels."""
_GIVEN = "given"
"""In place of a picture, a tensor or another object."""


def arguments_of(pipeline: object, /, *args: object, **kwargs: object) -> dict[str, Any]:
    """The arguments of a call of the pipeline, with its defaults, but for contents and noise.

    Sizes that are left out are the model's own. A guidance that has no effect is left out or 1: a scale of a model
    without it, and true guidance without a negative prompt.
    """
    try:
        kind: Any = type(pipeline)
        bound = _signature(kind).bind_partial(pipeline, *args, **kwargs)
    except (TypeError, ValueError):
        return {}  # a call that the pipeline refuses itself, or one without a signature
    bound.apply_defaults()
    every = {**bound.arguments, **kwargs}
    found = {name: _plain(value) for name, value in every.items() if _counts(name)}
    variable = {each.name for each in bound.signature.parameters.values() if each.kind in _VARIABLE}
    for name in (next(iter(bound.signature.parameters)), *variable):
        found.pop(name, None)
    for name in ("height", "width"):
        if name in found and found[name] is None:
            found[name] = _own_size(pipeline)
    if "true_cfg_scale" in found:
        if not any(every.get(name) is not None for name in ("negative_prompt", "negative_prompt_embeds")):
            found["true_cfg_scale"] = 1.0
        if getattr(getattr(_denoiser(pipeline), "config", None), "guidance_embeds", True) is False:
            found.pop("guidance_scale", None)
    return found


_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def scales_of(arguments: Mapping[str, Any]) -> dict[str, float]:
    """The guidance scales among them."""
    return {name: float(value) for name, value in arguments.items() if _is_scale(name) and is_number(value)}


def differences(own: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The arguments that differ, but for guidance that both have, in words; None if none does.

    Args:
        own: of the runs that a profile was measured on.
        here: of this call.
    """
    absent = object()
    unlike = [
        name
        for name in dict.fromkeys((*own, *here))
        if own.get(name, absent) != here.get(name, absent) and not (_is_scale(name) and name in own and name in here)
    ]
    parts = (f"{name}={_text(here, name)} in place of {_text(own, name)}" for name in unlike)
    return ", ".join(parts) or None


def read_argument(text: str) -> Any:
    """The value whose `repr` a profile keeps; the text itself if it is no literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _text(arguments: Mapping[str, Any], name: str) -> str:
    return f"{arguments[name]!r:.60}" if name in arguments else "nothing"


@lru_cache(maxsize=64)
def _signature(kind: type) -> inspect.Signature:
    return inspect.signature(kind.__call__)


def _counts(name: str) -> bool:
    return name not in _NOISE and _CONTENT.match(name) is None


def _is_scale(name: str) -> bool:
    return name.endswith("_scale") and ("guidance" in name or "cfg" in name)


def _plain(value: object) -> Any:
    """The value, if it can be compared; lists as tuples, as JSON does not tell them apart."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return _GIVEN


def _denoiser(pipeline: object) -> Any:
    return getattr(pipeline, "transformer", None) or getattr(pipeline, "unet", None)


def _own_size(pipeline: object) -> int | None:
    """Height and width of pictures whose size is not given, as pipelines of diffusers compute them."""
    size = getattr(pipeline, "default_sample_size", None)
    if size is None:
        size = getattr(getattr(_denoiser(pipeline), "config", None), "sample_size", None)
    factor = getattr(pipeline, "vae_scale_factor", None)
    return size * factor if isinstance(size, int) and isinstance(factor, int) else None


class Calls:
    """Calls with arguments of the pipeline's own. An engine that hands in requests has a class of its own."""

    def arguments(self, pipeline: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call but contents and noise, by name."""
        return arguments_of(pipeline, *args, **kwargs)

    def untunable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Why such a call cannot be measured, in words; None if it can."""
        return None
