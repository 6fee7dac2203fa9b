"""The declarations of the block stacks of diffusers' models: Flux and its relatives, images, videos, audio."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.hooks.regions.stack import Arguments, BlockStack, Signal

__all__ = ["STACKS"]

TEXT_FIRST = ("encoder_hidden_states", "hidden_states")
IMAGE_FIRST = ("hidden_states", "encoder_hidden_states")


def norm_output(*arguments: str, norm: str = "norm1", **keywords: str) -> Signal:
    """A signal: the first thing that the block's first normalisation returns.

    Args:
        arguments: names of the block's arguments that it is called with, by position.
        norm: name of the normalisation.
        keywords: the same by keyword.
    """

    def read(block: object, given: Arguments) -> torch.Tensor:
        positional = [given[name] for name in arguments]
        result = getattr(block, norm)(*positional, **{key: given[name] for key, name in keywords.items()})
        tokens: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
        return tokens

    return read


def single_table(embedding: str) -> Signal:
    """A signal: one projection for all blocks and a table for each with shift and scale first (adaLN-single).

    Args:
        embedding: the argument with the projected time embedding, (batch, [tokens,] rows · channels).
    """

    def read(block: Any, given: Arguments) -> torch.Tensor:
        tokens, table = given["hidden_states"], block.scale_shift_table
        projected = given[embedding].reshape(len(tokens), -1, *table.shape)
        shift, scale = (table + projected)[:, :, :2].unbind(dim=2)
        return modulated(block.norm1(tokens), scale, shift)

    return read


def modulated(tokens: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
    """Normalised tokens, scaled and shifted as adaptive layer norms do."""
    scaled = tokens * (1 + scale)
    return scaled if shift is None else scaled + shift


_LISTS = ("transformer_blocks", "single_transformer_blocks")
_SINGLE = ("single_transformer_blocks",)
_ADAPTIVE = norm_output("hidden_states", emb="temb")


def _flux_2(block: Any, given: Arguments) -> torch.Tensor:
    # One modulation for all blocks; with cached reference tokens it has a row for each token.
    modulation: torch.Tensor = given["temb_mod_img"]
    if modulation.ndim == 2:
        modulation = modulation.unsqueeze(1)
    shift, scale = modulation.chunk(6, dim=-1)[:2]
    return modulated(block.norm1(given["hidden_states"]), scale, shift)


def _chroma(block: object, given: Arguments) -> torch.Tensor:
    # Six rows of modulation for the image, then six for the text.
    return _ADAPTIVE(block, {**given, "temb": given["temb"][:, :6]})


_FLUX = (
    BlockStack("FluxTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, signal=_ADAPTIVE),
    BlockStack("LongCatImageTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, signal=_ADAPTIVE),
    BlockStack("OvisImageTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, signal=_ADAPTIVE),
    BlockStack("BriaTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, signal=_ADAPTIVE),
    # Half of the text channels are exchanged between the blocks; no reused step reads them.
    BlockStack("BriaFiboTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, joined=_SINGLE, signal=_ADAPTIVE),
    BlockStack("Flux2Transformer2DModel", lists=_LISTS, streams=TEXT_FIRST, joined=_SINGLE, signal=_flux_2),
    BlockStack("ChromaTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, joined=_SINGLE, signal=_chroma),
)


_COGVIEW_4 = norm_output("hidden_states", "encoder_hidden_states", "temb")
_NORMALISED = "normalised input of block 0"


def _qwen_image(block: Any, given: Arguments) -> torch.Tensor:
    shift, scale, _gate = block.img_mod(given["temb"]).chunk(2, dim=-1)[0].chunk(3, dim=-1)
    tokens = block.img_norm1(given["hidden_states"])
    # With a second conditioning time the modulation has a row for each; the signal follows the first.
    shift, scale = shift[: len(tokens)].unsqueeze(1), scale[: len(tokens)].unsqueeze(1)
    return torch.addcmul(tokens + shift, tokens, scale)


def _qwen_image_21(block: Any, given: Arguments) -> torch.Tensor:
    scale = given["modulation"].chunk(4, dim=-1)[0].unsqueeze(1)
    is_noisy = given["target_token_mask"]
    if is_noisy is not None:
        # The last row is that of time 0, which modulates text and reference images.
        scale = torch.where(is_noisy[None, :, None], scale[:-1], scale[-1:])
    return modulated(block.img_norm1(given["hidden_states"]), scale)


def _dit(block: Any, given: Arguments) -> torch.Tensor:
    tokens: torch.Tensor = given["hidden_states"]
    result = block.norm1(tokens, given["timestep"], given["class_labels"], hidden_dtype=tokens.dtype)
    signal: torch.Tensor = result[0]
    return signal


def _prx(block: Any, given: Arguments) -> torch.Tensor:
    (shift, scale, _gate), _of_mlp = block.modulation(given["temb"])
    return modulated(block.img_pre_norm(given["hidden_states"]), scale, shift)


def _hidream(block: Any, given: Arguments) -> torch.Tensor:
    inner = block.block
    shift, scale = inner.adaLN_modulation(given["temb"])[:, None].chunk(12, dim=-1)[:2]
    return modulated(inner.norm1_i(given["hidden_states"]), scale, shift)


def _ideogram_4(block: Any, given: Arguments) -> torch.Tensor:
    scale = block.adaln_modulation(given["adaln_input"]).chunk(4, dim=-1)[0]
    return modulated(block.attention_norm1(given["hidden_states"]), scale)


def _joy_image(block: Any, given: Arguments) -> torch.Tensor:
    shift, scale = block.img_mod(given["temb"])[:2]
    return modulated(block.img_norm1(given["hidden_states"]), scale[:, None], shift[:, None])


def _krea_2(block: Any, given: Arguments) -> torch.Tensor:
    scale, shift = (given["temb"].unflatten(-1, (6, -1)) + block.scale_shift_table).unbind(-2)[:2]
    return modulated(block.norm1(given["hidden_states"]), scale, shift)


def _z_image(block: Any, given: Arguments) -> torch.Tensor:
    # Beside clean reference images the noisy tokens, which are what changes, have a modulation of their own.
    time = given["adaln_input"] if given["adaln_input"] is not None else given["adaln_noisy"]
    scale = block.adaLN_modulation(time).unsqueeze(1).chunk(4, dim=2)[0]
    return modulated(block.attention_norm1(given["x"]), scale)


_IMAGE = (
    BlockStack("QwenImageTransformer2DModel", streams=TEXT_FIRST, signal=_qwen_image),
    BlockStack("QwenImage21Transformer2DModel", signal=_qwen_image_21),
    BlockStack("SD3Transformer2DModel", streams=TEXT_FIRST, signal=_ADAPTIVE),
    BlockStack(
        "AuraFlowTransformer2DModel",
        lists=("joint_transformer_blocks", "single_transformer_blocks"),
        streams=TEXT_FIRST,
        joined=("single_transformer_blocks",),
        signal=_ADAPTIVE,
    ),
    BlockStack(
        "HunyuanImageTransformer2DModel",
        lists=("transformer_blocks", "single_transformer_blocks"),
        streams=IMAGE_FIRST,
        signal=_ADAPTIVE,
    ),
    BlockStack("LuminaNextDiT2DModel", lists=("layers",), signal=_ADAPTIVE),
    BlockStack("Lumina2Transformer2DModel", lists=("layers",), signal=_ADAPTIVE),
    BlockStack("PixArtTransformer2DModel", signal=single_table("timestep")),
    BlockStack("SanaTransformer2DModel", signal=single_table("timestep")),
    BlockStack(
        "OmniGenTransformer2DModel",
        lists=("layers",),
        signal=norm_output("hidden_states", norm="input_layernorm"),
        signal_name=_NORMALISED,
    ),
    BlockStack("PriorTransformer", signal=norm_output("hidden_states"), signal_name=_NORMALISED),
    BlockStack("DiTTransformer2DModel", signal=_dit),
    # Long skips join blocks of this one stack, so they are skipped with it.
    BlockStack(
        "HunyuanDiT2DModel", lists=("blocks",), signal=norm_output("hidden_states", "temb"), has_long_skips=True
    ),
    BlockStack("CogView4Transformer2DModel", streams=IMAGE_FIRST, signal=_COGVIEW_4),
    BlockStack("GlmImageTransformer2DModel", streams=IMAGE_FIRST, signal=_COGVIEW_4),
    BlockStack(
        "CogView3PlusTransformer2DModel",
        streams=IMAGE_FIRST,
        signal=norm_output("hidden_states", "encoder_hidden_states", "emb"),
    ),
    BlockStack("PRXTransformer2DModel", lists=("blocks",), signal=_prx),
    # Each block gets text features of its own beside the text stream; they count as text tokens of equal number.
    BlockStack(
        "HiDreamImageTransformer2DModel",
        lists=("double_stream_blocks", "single_stream_blocks"),
        streams=IMAGE_FIRST,
        joined=("single_stream_blocks",),
        signal=_hidream,
    ),
    BlockStack("Ideogram4Transformer2DModel", lists=("layers",), signal=_ideogram_4),
    BlockStack("JoyImageEditTransformer3DModel", lists=("double_blocks",), streams=IMAGE_FIRST, signal=_joy_image),
    BlockStack("JoyImageEditPlusTransformer3DModel", lists=("double_blocks",), streams=IMAGE_FIRST, signal=_joy_image),
    BlockStack("Krea2Transformer2DModel", signal=_krea_2),
    BlockStack("ZImageTransformer2DModel", lists=("layers",), streams=("x",), signal=_z_image),
)


_DOUBLE_SINGLE = ("transformer_blocks", "single_transformer_blocks")
_PROJECTED = "projected time embedding e0"


def _time_embedding(block: object, given: Arguments) -> torch.Tensor:
    embedding: torch.Tensor = given["temb"]
    return embedding


def _hunyuan_video(block: object, given: Arguments) -> torch.Tensor:
    # Image-to-video by token replacement modulates the first frame's tokens on their own.
    if given.get("token_replace_emb") is None:
        return _ADAPTIVE(block, given)
    return norm_output("hidden_states", "temb", "token_replace_emb", "num_tokens")(block, given)


def _cosmos(block: Any, given: Arguments) -> torch.Tensor:
    tokens, position = given["hidden_states"], given.get("extra_pos_emb")
    if position is not None:
        tokens = tokens + position
    signal: torch.Tensor = block.norm1(tokens, given["embedded_timestep"], given["temb"])[0]
    return signal


def _kandinsky_5(block: Any, given: Arguments) -> torch.Tensor:
    shift, scale = block.visual_modulation(given["time_embed"]).unsqueeze(1).chunk(9, dim=-1)[:2]
    return modulated(block.self_attention_norm(given["visual_embed"].float()), scale.float(), shift.float())


def _minimax_h3(block: Any, given: Arguments) -> torch.Tensor:
    # A table with a row for each time and kind of token; the kinds follow one another in one sequence.
    shift, scale = (table.index_select(0, given["adaln_indices"]) for table in block.adaln_proj(given["temb"])[:2])
    return modulated(block.norm1(given["hidden_states"]), scale, shift)


def _face_after_the_last_block(denoiser: Any) -> str | None:
    if (len(denoiser.blocks) - 1) % denoiser.config.inject_face_latents_blocks == 0:
        return "the face is added after its last block, where it would be counted twice"
    return None


def _control_unchanged(given: Arguments) -> Any:
    # The hint that is added between the blocks, and the control tokens for the next control block.
    return given["control_hidden_states"], given["control_hidden_states"]


def _hint_after_the_last_block(denoiser: Any) -> str | None:
    if len(denoiser.blocks) - 1 in denoiser.config.vace_layers:
        return "a control hint is added after its last block, so the control blocks cannot be skipped with the stack"
    return None


def _wan(model: str, **details: Any) -> BlockStack:
    """Wan and its relatives have one stream of video tokens; text enters by cross-attention and does not change."""
    details = {"lists": ("blocks",), **details}
    return BlockStack(model, signal=_time_embedding, signal_name=_PROJECTED, **details)


_VIDEO = (
    _wan("WanTransformer3DModel"),
    _wan("ChronoEditTransformer3DModel"),
    _wan("SkyReelsV2Transformer3DModel"),
    # Faces are added between blocks; no reused step reads them there.
    _wan("WanAnimateTransformer3DModel", refuses=_face_after_the_last_block),
    # The control blocks run first and feed the blocks alone, so they are skipped with them.
    _wan(
        "WanVACETransformer3DModel",
        lists=("vace_blocks", "blocks"),
        bypass={"vace_blocks": _control_unchanged},
        refuses=_hint_after_the_last_block,
    ),
    BlockStack("LTXVideoTransformer3DModel", signal=single_table("temb")),
    BlockStack(
        "LTX2VideoTransformer3DModel", streams=("hidden_states", "audio_hidden_states"), signal=single_table("temb")
    ),
    BlockStack("AllegroTransformer3DModel", signal=single_table("temb")),
    BlockStack("SanaVideoTransformer3DModel", signal=single_table("timestep")),
    BlockStack("MochiTransformer3DModel", streams=IMAGE_FIRST, signal=_ADAPTIVE),
    BlockStack(
        "CogVideoXTransformer3DModel", streams=IMAGE_FIRST, signal=_time_embedding, signal_name="time_embedding"
    ),
    # CogVideoX with faces added between its blocks.
    BlockStack("ConsisIDTransformer3DModel", streams=IMAGE_FIRST, signal=_time_embedding, signal_name="time_embedding"),
    BlockStack("HunyuanVideo15Transformer3DModel", streams=IMAGE_FIRST, signal=_ADAPTIVE),
    BlockStack("HunyuanVideoTransformer3DModel", lists=_DOUBLE_SINGLE, streams=IMAGE_FIRST, signal=_hunyuan_video),
    BlockStack(
        "HunyuanVideoFramepackTransformer3DModel", lists=_DOUBLE_SINGLE, streams=IMAGE_FIRST, signal=_hunyuan_video
    ),
    BlockStack(
        "EasyAnimateTransformer3DModel",
        streams=IMAGE_FIRST,
        signal=norm_output("hidden_states", "encoder_hidden_states", "temb"),
    ),
    BlockStack("CosmosTransformer3DModel", signal=_cosmos),
    BlockStack(
        "Kandinsky5Transformer3DModel",
        lists=("visual_transformer_blocks",),
        streams=("visual_embed",),
        signal=_kandinsky_5,
    ),
    # Text, frames and sound are one sequence.
    BlockStack("MiniMaxH3Transformer3DModel", signal=_minimax_h3),
)


def _stable_audio_3(block: Any, given: Arguments) -> torch.Tensor:
    scale, shift = (block.to_scale_shift_gate + given["global_modulation"])[:, None].chunk(6, dim=-1)[:2]
    return modulated(block.pre_norm(given["hidden_states"]), scale, shift)


def _ace_step(block: Any, given: Arguments) -> torch.Tensor:
    shift, scale = (block.scale_shift_table + given["temb"]).chunk(6, dim=1)[:2]
    return modulated(block.self_attn_norm(given["hidden_states"]), scale, shift)


_AUDIO = (
    BlockStack(  # time enters as the first token, not by modulation
        "StableAudioDiTModel", signal=norm_output("hidden_states"), signal_name="normalised input of block 0"
    ),
    BlockStack("StableAudio3DiTModel", signal=_stable_audio_3),
    BlockStack("AceStepTransformer1DModel", lists=("layers",), signal=_ace_step),
)


STACKS: tuple[BlockStack, ...] = (*_FLUX, *_IMAGE, *_VIDEO, *_AUDIO)
"""All of them."""
