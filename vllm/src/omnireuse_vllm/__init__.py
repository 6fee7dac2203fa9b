"""Encoder outputs of vLLM: one for all requests that show the same item, kept in host memory, on disk and in Redis.

vLLM loads two names of this package:

    encoder_cache_manager_cls="omnireuse_vllm.VllmEncoderCacheManager"
    "ec_connector": "EncoderOutputConnector", "ec_connector_module_path": "omnireuse_vllm"

It brings the commands ``omnireuse replay`` and ``omnireuse engine-demo``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireuse.base.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse_vllm.connector import EncoderOutputConnector
    from omnireuse_vllm.interface import EncoderKey, ItemTooLargeError, Lease, Outcome, new_weights_epoch
    from omnireuse_vllm.manager import SharedEncoderCacheManager
    from omnireuse_vllm.outputs import EncoderOutput, EncoderOutputStore
    from omnireuse_vllm.vllm_manager import VllmEncoderCacheManager

__version__ = "0.3.0"

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
    "__version__",
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
