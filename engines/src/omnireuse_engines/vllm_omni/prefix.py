"""The prefix cache of vllm-omni's autoregressive stages: omnireuse's in its place, if the environment says so."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from omnireuse.base.environment import switch_of
from omnireuse.errors import ConfigError
from omnireuse_engines.host import check_host

__all__ = ["PREFIX_SWITCH", "install_prefix_cache"]

logger = logging.getLogger("omnireuse")

PREFIX_SWITCH = "OMNIREUSE_PREFIX_CACHE"
"""The environment variable that asks for it: "on" or "off"."""

_MIXIN, _NAME = "vllm_omni.core.prefix_cache.runner_mixin", "OmniPrefixCacheManager"
_METHODS = ("__init__", "register_policy", "new_step_starts", "save_outputs", "materialize", "discard_step", "shutdown")


def install_prefix_cache(tested: tuple[str, ...]) -> None:
    """Let the runners of this process make omnireuse's prefix cache if ``OMNIREUSE_PREFIX_CACHE=on``. Idempotent.

    Stages without prefix caching (``enable_prefix_caching``) have neither.

    Args:
        tested: releases of vllm-omni, see `check_host`.

    Raises:
        ConfigError: another value than "on" or "off", or a vllm-omni whose prefix cache is called otherwise.
    """
    given = os.environ.get(PREFIX_SWITCH, "off")
    if (switch := switch_of(given)) is None:
        raise ConfigError(f'{PREFIX_SWITCH}={given!r}: it must be "on" or "off", or not be set')
    if not switch:
        return
    from omnireuse.core.prefix_cache import OmniPrefixCacheManager as Ours

    mixin = import_module(_MIXIN)
    theirs = getattr(mixin, _NAME, None)
    if theirs is Ours:
        return
    missing = [f"{_MIXIN}.{_NAME}.{name}" for name in _METHODS if not _is_called_as(theirs, Ours, name)]
    check_host("vllm-omni", tested, missing, asked=f"{PREFIX_SWITCH}=on")
    setattr(mixin, _NAME, Ours)
    logger.info("prefix cache: runners of this process use omnireuse's (%s=on)", PREFIX_SWITCH)


def _is_called_as(theirs: object, ours: object, name: str) -> bool:
    """Whether a method needs the same arguments as ours. One behind a wrapper that hides them needs only be there."""
    if (method := getattr(theirs, name, None)) is None:
        return False
    parameters = inspect.signature(method).parameters.values()
    hides = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return hides or _needed(method) == _needed(getattr(ours, name))


def _needed(method: Callable[..., Any]) -> list[str]:
    """The arguments that have to be given: their names if these are needed, too."""
    needed = [each for each in inspect.signature(method).parameters.values() if each.default is each.empty]
    return [each.name if each.kind is each.KEYWORD_ONLY else "" for each in needed]
