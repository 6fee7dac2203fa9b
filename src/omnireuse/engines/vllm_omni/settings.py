"""The settings of a vllm-omni server: ``--cache-config``, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from omnireuse.engines.settings import ServerSettings
from omnireuse.errors import ConfigError, WrongTypeError

__all__ = ["OmniSettings"]


class OmniSettings(ServerSettings):
    """The settings of the server: a target, a profile, or neither for the default.

    ``"prompt_cache": 32`` keeps the embeddings of so many prompts. ``"prompt_store": "redis://host:6379/0"`` shares
    them between workers.

    Args:
        cache_config: a mapping, or vllm-omni's `DiffusionCacheConfig`.
    """

    def __init__(self, cache_config: Any) -> None:
        super().__init__(_given(cache_config), place="--cache-config", further=("prompt_cache", "prompt_store"))
        if self.options.get("backend") == "cache_dit":
            raise ConfigError(
                "--cache-config(backend='cache_dit'): vllm-omni has cache-dit built in; start the server with "
                "--cache-backend cache_dit, or give backend='db_cache', which takes the same options"
            )
        self.prompt_store = self.options.pop("prompt_store", None)
        self.prompt_cache = self.options.pop("prompt_cache", None if self.prompt_store is None else 32)
        if self.prompt_store is not None and not isinstance(self.prompt_store, str):
            raise WrongTypeError(
                f"--cache-config(prompt_store={self.prompt_store!r:.60}): prompt_store must be a Redis URL"
            )


def _given(cache_config: Any) -> dict[str, Any]:
    """The options that somebody wrote down. vllm-omni turns a mapping into a dataclass with the options of its own
    backends, and keeps the rest beside them."""
    if cache_config is None:
        return {}
    if isinstance(cache_config, Mapping):
        return dict(cache_config)
    if not is_dataclass(cache_config) or isinstance(cache_config, type):
        raise WrongTypeError(f"--cache-config must be a mapping, got {type(cache_config).__name__}")
    default = type(cache_config)()
    own = {
        field.name: getattr(cache_config, field.name)
        for field in fields(cache_config)
        if not field.name.startswith("_") and getattr(cache_config, field.name) != getattr(default, field.name)
    }
    return {**own, **getattr(cache_config, "_extra_params", {})}
