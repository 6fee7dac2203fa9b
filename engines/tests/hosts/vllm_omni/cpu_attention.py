"""Torch's own attention on the CPU: vllm-omni's dispatcher knows its own platforms only."""

from __future__ import annotations

from typing import Any

from vllm_omni.diffusion.attention.backends.sdpa import SDPABackend, SDPAImpl


class _Attention(SDPAImpl):
    def forward(self, query: Any, key: Any, value: Any, attn_metadata: Any = None) -> Any:
        return self._forward_impl(query, key, value, attn_metadata, mask_mode="broadcast_k")


class AttentionBackend(SDPABackend):
    @staticmethod
    def get_impl_cls() -> type:
        return _Attention
