"""Reuse of prompt embeddings across generations: encode a prompt once, as long as nothing it depends on changes."""

from __future__ import annotations

import inspect
import logging
import re
from dataclasses import replace
from typing import Any

from omnireuse import messages
from omnireuse.base.environment import from_environment, switched_on
from omnireuse.base.validation import Count, check_value
from omnireuse.errors import StateError, UnsupportedModelError, WrongTypeError
from omnireuse.prompts.cache import PromptCacheOptions, PromptEmbedCache
from omnireuse.prompts.entry import CACHE_MISS as _CACHE_MISS
from omnireuse.prompts.wrapper import CachedEncodePrompt

__all__ = [
    "_CACHE_MISS",
    "PromptCacheOptions",
    "PromptEmbedCache",
    "bump_epoch",
    "install_prompt_embed_cache",
    "resolve_prompt_embed_cache_config",
    "uninstall_prompt_embed_cache",
]

logger = logging.getLogger("omnireuse")

_SWITCH = "OMNI_DIFFUSION_PROMPT_EMBED_CACHE"
_SIZE = "OMNI_DIFFUSION_PROMPT_EMBED_CACHE_SIZE"


def install_prompt_embed_cache(
    pipeline: Any,
    *,
    max_size: int = 32,
    enabled: bool = True,
    model_tag: str | None = None,
    max_bytes: int | None = None,
    options: PromptCacheOptions | None = None,
) -> PromptEmbedCache | None:
    """Cache what the pipeline's ``encode_prompt`` returns.

    Works on any object with a callable ``encode_prompt``. A second call returns the cache that is
    there and logs arguments that differ. The installation is copied and pickled with the pipeline (with an empty
    cache).

    Args:
        max_size: most entries, at least 1.
        enabled: False installs the cache switched off.
        model_tag: names the model in stores shared between processes.
        max_bytes: most bytes of tensor storage; overrides the field of ``options``.
        options: everything else.

    Returns:
        The cache; None, with a warning, for a pipeline without a callable ``encode_prompt``.

    Raises:
        ConfigError: a value out of range.
        UnsupportedModelError: an object that takes no attributes, or whose ``encode_prompt`` is a coroutine function.
        WrongTypeError: no pipeline at all, but None.
    """
    if pipeline is None:
        raise WrongTypeError(messages.NO_PIPELINE)
    found = getattr(pipeline, "encode_prompt", None)
    if not callable(found):
        logger.warning(
            "no prompt-embedding cache is installed: %s has no callable encode_prompt; install it on the pipeline that "
            "encodes the prompts",
            type(pipeline).__name__,
        )
        return None
    if inspect.iscoroutinefunction(found):
        raise UnsupportedModelError(messages.ENCODES_IN_COROUTINE, pipeline=type(pipeline).__name__)
    options = options or PromptCacheOptions()
    if max_bytes is not None:
        options = replace(options, max_bytes=max_bytes)
    if isinstance(found, CachedEncodePrompt):
        asked = {"max_size": max_size, "enabled": enabled, "model_tag": model_tag, "options": options}
        differing = [f"{k}={asked[k]!r} (installed: {v!r})" for k, v in found.arguments.items() if asked[k] != v]
        if differing:
            logger.warning(
                "a prompt-embedding cache is already installed; not applied: %s; uninstall it first to change it",
                ", ".join(differing),
            )
        return found.cache
    original = getattr(pipeline, "__dict__", {}).get("encode_prompt")
    try:
        wrapper = CachedEncodePrompt(pipeline, original, max_size, enabled, model_tag, options)
        pipeline.encode_prompt = wrapper
    except (AttributeError, TypeError) as error:
        name = type(pipeline).__name__
        raise UnsupportedModelError(messages.NO_WEAK_REFERENCE, pipeline=name, error=error) from error
    return wrapper.cache


def uninstall_prompt_embed_cache(pipeline: Any) -> bool:
    """Restore the pipeline exactly as it was; False if no cache was installed.

    Raises:
        StateError: something else replaced or wrapped ``encode_prompt`` after the installation.
    """
    found = getattr(pipeline, "__dict__", {}).get("encode_prompt")
    if not isinstance(found, CachedEncodePrompt):
        inner = found
        while inner is not None and not isinstance(inner, CachedEncodePrompt):
            inner = getattr(inner, "__wrapped__", None) or getattr(inner, "func", None)
        if inner is None:
            return False
        raise StateError(messages.WRAPPED_AGAIN, pipeline=type(pipeline).__name__)
    if found.original is None:
        del pipeline.encode_prompt
    else:
        pipeline.encode_prompt = found.original
    found.close()
    return True


def bump_epoch(pipeline: object) -> int:
    """Declare all embeddings of ``pipeline`` out of date, for engines that write weights behind torch's back.

    Returns:
        The new epoch.

    Raises:
        StateError: no cache is installed.
    """
    found = getattr(pipeline, "encode_prompt", None)
    if not isinstance(found, CachedEncodePrompt):
        raise StateError(messages.NO_PROMPT_CACHE, pipeline=type(pipeline).__name__)
    return found.bump()


def resolve_prompt_embed_cache_config(enable: bool | None = None, max_size: int | None = None) -> tuple[bool, int]:
    """The switch and the size to use: the environment's if it says, else the arguments', else (False, 32): the
    cache is opted into.

    ``OMNI_DIFFUSION_PROMPT_EMBED_CACHE`` takes 1/true/yes/on and 0/false/no/off in any case,
    ``OMNI_DIFFUSION_PROMPT_EMBED_CACHE_SIZE`` a positive integer. Other text is logged as a warning and has no effect.

    Raises:
        ConfigError: ``max_size`` below 1.
    """
    check_value("resolve_prompt_embed_cache_config", "max_size", max_size, Count | None)
    is_on = switched_on(_SWITCH, otherwise=bool(enable))
    return is_on, from_environment(_SIZE, _positive, 32 if max_size is None else max_size, "a positive integer")


def _positive(text: str) -> int | None:
    return int(text) if re.fullmatch(r"0*[1-9][0-9]{0,17}", text) else None
