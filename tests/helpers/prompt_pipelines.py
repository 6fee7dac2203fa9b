"""Tiny random diffusers pipelines with real text encoders and tokenizers, built without any download."""

import functools

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    PixArtSigmaPipeline,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
    WanPipeline,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)


def tokenizer(length=12):
    """One token a character; a start and an end as CLIP and T5 have them."""
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "<s>": 3} | {chr(c): c - 28 for c in range(32, 127)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 3), ("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>",
        model_max_length=length,
    )


def clip(kind=CLIPTextModel):
    torch.manual_seed(1)
    config = CLIPTextConfig(
        vocab_size=128,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=16,
        max_position_embeddings=77,
        eos_token_id=1,
        bos_token_id=3,
        pad_token_id=0,
    )
    return kind(config).eval()


def t5(kind=T5EncoderModel, config=T5Config):
    torch.manual_seed(2)
    sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 2, "vocab_size": 128}
    return kind(config(**sizes)).eval()


@functools.cache
def _vae():
    torch.manual_seed(3)
    return AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8, in_channels=3)


def stable_diffusion():
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=4,
        cross_attention_dim=16,
        layers_per_block=1,
    )
    return StableDiffusionPipeline(
        vae=_vae(),
        text_encoder=clip(),
        tokenizer=tokenizer(),
        unet=unet,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def stable_diffusion_xl():
    plain = stable_diffusion()
    return StableDiffusionXLPipeline(
        vae=plain.vae,
        text_encoder=clip(),
        text_encoder_2=clip(CLIPTextModelWithProjection),
        tokenizer=tokenizer(),
        tokenizer_2=tokenizer(),
        unet=plain.unet,
        scheduler=plain.scheduler,
        add_watermarker=False,
    )


def flux():
    transformer = FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(2, 2, 4),
    )
    vae = AutoencoderKL(
        block_out_channels=(8,),
        norm_num_groups=4,
        latent_channels=1,
        sample_size=8,
        shift_factor=0.0,
        scaling_factor=1.0,
    )
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=clip(),
        tokenizer=tokenizer(),
        text_encoder_2=t5(),
        tokenizer_2=tokenizer(24),
        transformer=transformer.eval(),
    )


def stable_diffusion_3():
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        out_channels=4,
    )
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(),
        text_encoder=clip(CLIPTextModelWithProjection),
        tokenizer=tokenizer(77),
        text_encoder_2=clip(CLIPTextModelWithProjection),
        tokenizer_2=tokenizer(77),
        text_encoder_3=None,
        tokenizer_3=None,
    )


def wan():
    return WanPipeline(
        tokenizer=tokenizer(),
        text_encoder=t5(UMT5EncoderModel, UMT5Config),
        vae=None,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        transformer=None,
    )


def pixart():
    return PixArtSigmaPipeline(
        tokenizer=tokenizer(),
        text_encoder=t5(),
        vae=_vae(),
        transformer=None,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
    )


FAMILIES = {
    "sd": (stable_diffusion, {"num_images_per_prompt": 1, "do_classifier_free_guidance": True, "device": "cpu"}),
    "sdxl": (stable_diffusion_xl, {"device": "cpu"}),
    "sd3": (stable_diffusion_3, {"prompt_2": None, "prompt_3": None, "device": "cpu"}),
    "flux": (flux, {"prompt_2": None, "device": "cpu", "max_sequence_length": 24}),
    "wan": (wan, {"device": "cpu", "max_sequence_length": 16}),
    "pixart": (pixart, {"device": "cpu", "max_sequence_length": 12}),
}
"""Name: (how to build one, arguments of encode_prompt beside the prompts)."""
