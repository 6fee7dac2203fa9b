"""Encoder outputs of vLLM: one for all requests that show the same item, kept in host memory, on disk and in Redis.

vLLM loads two names of this package:

    encoder_cache_manager_cls="omnireuse_engines.vllm.VllmEncoderCacheManager"
    "ec_connector": "EncoderOutputConnector", "ec_connector_module_path": "omnireuse_engines.vllm"

The commands ``omnireuse replay`` and ``omnireuse engine-demo`` are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireuse.base.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse_engines.vllm.connector import EncoderOutputConnector
    from omnireuse_engines.vllm.interface import EncoderKey, ItemTooLargeError, Lease, Outcome, new_weights_epoch
    from omnireuse_engines.vllm.manager import SharedEncoderCacheManager
    from omnireuse_engines.vllm.outputs import EncoderOutput, EncoderOutputStore
    from omnireuse_engines.vllm.vllm_manager import VllmEncoderCacheManager

__all__ = [
    "EncoderKey",
    "EncoderOutput",
    "EncoderOutputConnector",
    "EncoderOutputStore",
    "ItemTooLargeError",
    "Lease",
    "Outcome",
    "SharedEncoderCacheManager",
    "VllmEncoderCacheManager",
    "new_weights_epoch",
]

_HOMES = {
    "connector": "EncoderOutputConnector",  # needs vLLM
    "interface": "EncoderKey ItemTooLargeError Lease Outcome new_weights_epoch",
    "manager": "SharedEncoderCacheManager",
    "outputs": "EncoderOutput EncoderOutputStore",
    "vllm_manager": "VllmEncoderCacheManager",
}
__getattr__, _ = lazy_exports(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
