"""omnireuse inside SGLang's diffusion server: native pipelines and the diffusers backend.

The package's entry point `sglang.multimodal_gen.plugins` calls `register` in every process of the server.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Register the hooks of reuse. SGLang applies them later; a request that asks for no reuse is served as before."""
    from omnireuse_engines.sglang.hooks import register_hooks

    register_hooks()
