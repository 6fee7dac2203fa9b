"""The dimension of a batch in arguments of diffusers' denoisers whose lengths do not tell it."""

from __future__ import annotations

from collections.abc import Mapping

from omnireuse.hooks.regions.rows import ENTRIES, Dimension

__all__ = ["DIMENSIONS"]

_IDS: Mapping[str, Dimension] = {"img_ids": None, "txt_ids": None}
_ROTARY: Mapping[str, Dimension] = {"image_rotary_emb": None}

DIMENSIONS: Mapping[str, Mapping[str, Dimension]] = {
    # Positions, one row a token, for all samples.
    "BriaFiboTransformer2DModel": _IDS,
    "BriaTransformer2DModel": _IDS,
    "ChromaTransformer2DModel": _IDS,
    "FluxTransformer2DModel": _IDS,
    "LongCatImageTransformer2DModel": _IDS,
    "OvisImageTransformer2DModel": _IDS,
    "AllegroTransformer3DModel": _ROTARY,
    "CogVideoXTransformer3DModel": _ROTARY,
    "CogView4Transformer2DModel": _ROTARY,
    "ConsisIDTransformer3DModel": _ROTARY,
    "GlmImageTransformer2DModel": _ROTARY,
    "HunyuanDiT2DModel": _ROTARY,
    "LuminaNextDiT2DModel": _ROTARY,
    "StableAudioDiTModel": {"rotary_embedding": None},
    "Kandinsky5Transformer3DModel": {"visual_rope_pos": None, "text_rope_pos": None},
    # (layers, batch, tokens, channels)
    "HiDreamImageTransformer2DModel": {"encoder_hidden_states_llama3": 1},
    # (batch · frames, tokens, channels)
    "UNetMotionModel": {"encoder_hidden_states": 0},
    # Lists, whose tensors may begin with an axis as long as the batch.
    "ZImageTransformer2DModel": {"x": ENTRIES, "cap_feats": ENTRIES},
}
"""Class name of a denoiser -> argument -> the dimension of its rows, or None if all rows share it."""
