"""omnireuse inside vLLM: encoder outputs in host memory, on disk and in Redis, through ``--ec-transfer-config``.

vLLM imports this package by name (``ec_connector_module_path``) in the scheduler's process and in every worker's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnireuse.engines.vllm.connector import EncoderOutputConnector

__all__ = ["EncoderOutputConnector"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omnireuse.engines.vllm.connector import EncoderOutputConnector  # needs vLLM

    return EncoderOutputConnector
