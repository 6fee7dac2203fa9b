"""omnireuse inside vllm-omni: ``--cache-backend omnireuse``, in request mode and with continuous batching.

The package's entry point `vllm_omni.general_plugins` calls `register` in every process of the engine.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Make ``--cache-backend omnireuse`` known to vllm-omni. Idempotent; another cache backend is served as before."""
    from omnireuse.engines.vllm_omni.hooks import install

    install()
