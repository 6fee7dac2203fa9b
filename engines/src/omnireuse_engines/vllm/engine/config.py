"""How large the reference engine is, and which of its caches are on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from omnireuse.base.validation import field_error

__all__ = ["EngineConfig"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes and switches of the reference engine.

    Args:
        num_blocks, block_size: shape of the paged KV cache.
        max_step_tokens: tokens that one step computes; longer prompts are prefilled in chunks.
        max_running: requests that are computed at a time.
        encoder_step_embeds: embeddings that one step may encode.
        encoder_cache_embeds: embeddings that the encoder cache holds.
        encoder_host_bytes: host memory for outputs that left the device, 0 for none.
        share_encodes: whether requests share encoder outputs; without it each encodes for itself.
        share_prefixes: whether a request starts on the blocks that others computed for the same prefix.

    Raises:
        ConfigError: a size below 1, or a step that cannot compute one block.
    """

    num_blocks: int = 96
    block_size: int = 16
    max_step_tokens: int = 64
    max_running: int = 6
    encoder_step_embeds: int = 48
    encoder_cache_embeds: int = 96
    encoder_host_bytes: int = 0
    share_encodes: bool = True
    share_prefixes: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and value < (0 if field.name == "encoder_host_bytes" else 1):
                raise field_error(self, field.name, "be at least 1")
        if self.max_step_tokens < self.block_size:
            do = "prefill goes block by block"
            raise field_error(self, "max_step_tokens", f"be at least block_size ({self.block_size})", do=do)
