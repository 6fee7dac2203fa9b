"""omnireuse inside vllm-omni: ``--cache-backend omnireuse``, in request mode and with continuous batching, and the
prefix cache of autoregressive stages.

The package's entry point `vllm_omni.general_plugins` calls `register` in every process of the engine.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Make ``--cache-backend omnireuse`` known to vllm-omni. Idempotent; another cache backend is served as before.

    The prefix cache is taken if ``OMNIREUSE_PREFIX_CACHE=on``.
    """
    from omnireuse_engines.vllm_omni.hooks import TESTED, install
    from omnireuse_engines.vllm_omni.prefix import install_prefix_cache

    install()
    install_prefix_cache(TESTED)
