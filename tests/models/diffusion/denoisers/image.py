"""Image models beside Flux and its kin."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AuraFlowTransformer2DModel,
    CogView3PlusTransformer2DModel,
    CogView4Transformer2DModel,
    DiTTransformer2DModel,
    GlmImageTransformer2DModel,
    HiDreamImageTransformer2DModel,
    Lumina2Transformer2DModel,
    OmniGenTransformer2DModel,
    PixArtTransformer2DModel,
    PRXTransformer2DModel,
    QwenImageTransformer2DModel,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    ZImageTransformer2DModel,
)

from tests.models.diffusion.denoisers.base import Denoiser, tensor, time, varied

HEADS = {"attention_head_dim": 8, "num_attention_heads": 2}


def image_inputs(step: int, text: int, width: int = 16, **more: Any) -> dict[str, Any]:
    return {
        "hidden_states": tensor(1, 4, 8, 8, seed=step),
        "encoder_hidden_states": tensor(1, text, width, seed=text),
        "timestep": time(step),
        "return_dict": False,
        **more,
    }


def sd3() -> Denoiser:
    model = SD3Transformer2DModel(
        sample_size=8,
        in_channels=4,
        num_layers=3,
        **HEADS,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=8,
        dual_attention_layers=(0,),
    )
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, pooled_projections=tensor(1, 16, seed=t)))


def aura_flow(single: int = 2) -> Denoiser:
    model = AuraFlowTransformer2DModel(
        sample_size=8,
        num_mmdit_layers=2,
        num_single_dit_layers=single,
        **HEADS,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pos_embed_max_size=16,
    )
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, timestep=time(s, 1.0)))


def qwen_image() -> Denoiser:
    model = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=2, **HEADS, joint_attention_dim=16, axes_dims_rope=(2, 2, 4)
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return {
            "hidden_states": tensor(1, 16, 16, seed=step),
            "encoder_hidden_states": tensor(1, text, 16, seed=text),
            "encoder_hidden_states_mask": torch.ones(1, text, dtype=torch.long),
            "timestep": time(step, 1.0),
            "img_shapes": [[(1, 4, 4)]],
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


def lumina_2() -> Denoiser:
    model = Lumina2Transformer2DModel(
        sample_size=8,
        in_channels=4,
        hidden_size=16,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=8,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(32, 16, 16),
        cap_feat_dim=16,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return image_inputs(step, text, timestep=time(step, 1.0), encoder_attention_mask=torch.ones(1, text).bool())

    return Denoiser(varied(model), inputs)


def pixart() -> Denoiser:
    model = PixArtTransformer2DModel(
        **HEADS, num_layers=2, cross_attention_dim=16, sample_size=8, caption_channels=16, norm_num_groups=2
    )
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, encoder_attention_mask=torch.ones(1, t)))


def sana() -> Denoiser:
    model = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        **HEADS,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=16,
        sample_size=8,
    )
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, encoder_attention_mask=torch.ones(1, t)))


def dit() -> Denoiser:
    model = DiTTransformer2DModel(**HEADS, num_layers=2, sample_size=8, num_embeds_ada_norm=8, norm_num_groups=2)

    def inputs(step: int, text: int) -> dict[str, Any]:
        # A class instead of a text.
        given = {"timestep": time(step).long(), "class_labels": torch.tensor([text % 8])}
        return {"hidden_states": tensor(1, 4, 8, 8, seed=step), "return_dict": False} | given

    return Denoiser(varied(model), inputs)


COGVIEW = {"in_channels": 4, "out_channels": 4, "num_layers": 2, **HEADS}
COGVIEW |= {"text_embed_dim": 16, "time_embed_dim": 8, "condition_dim": 4}
PLACE = {"target_size": torch.tensor([[8.0, 8.0]]), "crop_coords": torch.zeros(1, 2)}


def cogview_3() -> Denoiser:
    model = CogView3PlusTransformer2DModel(**COGVIEW, sample_size=8, pos_embed_max_size=8)
    more = {"original_size": PLACE["target_size"], **PLACE}
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, **more))


def glm_image() -> Denoiser:
    model = GlmImageTransformer2DModel(**COGVIEW, prior_vq_quantizer_codebook_size=8)
    more = {"prior_token_id": torch.arange(16)[None] % 8, "prior_token_drop": torch.tensor([False]), **PLACE}
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, **more))


def prx() -> Denoiser:
    model = PRXTransformer2DModel(
        in_channels=4, context_in_dim=16, hidden_size=16, mlp_ratio=2.0, num_heads=2, depth=2, axes_dim=[4, 4]
    )
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, timestep=time(s, 1.0)))


def cogview_4() -> Denoiser:
    model = CogView4Transformer2DModel(**COGVIEW, sample_size=8, rope_axes_dim=(8, 8))
    more = {"original_size": PLACE["target_size"], **PLACE}
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, **more))


def hidream() -> Denoiser:
    model = HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        num_single_layers=2,
        **HEADS,
        caption_channels=[16, 12],
        text_emb_dim=16,
        num_routed_experts=2,
        num_activated_experts=1,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(16, 16),
        llama_layers=[0, 1, 2, 3],
        force_inference_output=True,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return {
            "hidden_states": tensor(1, 4, 8, 8, seed=step),
            "timesteps": time(step),
            "encoder_hidden_states_t5": tensor(1, text + 1, 16, seed=text),
            "encoder_hidden_states_llama3": tensor(4, 1, text, 12, seed=text),
            "pooled_embeds": tensor(1, 16, seed=text),
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


def z_image() -> Denoiser:
    model = ZImageTransformer2DModel(
        in_channels=4,
        dim=16,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[2, 2, 4],
        axes_lens=[64, 16, 16],
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        images, captions = [tensor(4, 1, 8, 8, seed=step)], [tensor(text, 16, seed=text)]
        return {"x": images, "t": time(step, 1.0), "cap_feats": captions, "return_dict": False}

    return Denoiser(varied(model), inputs)


def omnigen() -> Denoiser:
    model = OmniGenTransformer2DModel(
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=32,
        num_layers=2,
        pad_token_id=0,
        vocab_size=32,
        max_position_embeddings=64,
        original_max_position_embeddings=64,
        rope_scaling={"long_factor": [1, 1, 1, 1], "short_factor": [1, 1, 1, 1], "type": "su"},
        pos_embed_max_size=16,
        time_step_dim=8,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        count = text + 1 + 16
        return {
            "hidden_states": tensor(1, 4, 8, 8, seed=step),
            "timestep": time(step, 1.0),
            "input_ids": torch.arange(text)[None],
            "input_img_latents": [],
            "input_image_sizes": {},
            "attention_mask": torch.ones(1, count, count),
            "position_ids": torch.arange(count)[None],
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


DENOISERS = {
    "AuraFlowTransformer2DModel": aura_flow,
    "CogView3PlusTransformer2DModel": cogview_3,
    "CogView4Transformer2DModel": cogview_4,
    "DiTTransformer2DModel": dit,
    "GlmImageTransformer2DModel": glm_image,
    "HiDreamImageTransformer2DModel": hidream,
    "Lumina2Transformer2DModel": lumina_2,
    "OmniGenTransformer2DModel": omnigen,
    "PRXTransformer2DModel": prx,
    "PixArtTransformer2DModel": pixart,
    "QwenImageTransformer2DModel": qwen_image,
    "SD3Transformer2DModel": sd3,
    "SanaTransformer2DModel": sana,
    "ZImageTransformer2DModel": z_image,
}
