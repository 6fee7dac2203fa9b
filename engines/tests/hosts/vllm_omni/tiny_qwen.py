"""A Qwen-Image checkpoint small enough for a CPU, with random weights, in the layout of diffusers."""

from __future__ import annotations

import json
from pathlib import Path

import torch

HIDDEN, LATENT_CHANNELS = 64, 4
_FACTORS = {"A": (4, HIDDEN), "B": (HIDDEN, 4)}
_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def save(folder: Path) -> Path:
    """Write the checkpoint; about 3 MiB."""
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel

    torch.manual_seed(0)
    _tokenizer().save_pretrained(folder / "tokenizer")
    _text_encoder().save_pretrained(folder / "text_encoder")
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=LATENT_CHANNELS * 4,
        out_channels=LATENT_CHANNELS,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=HIDDEN,
        axes_dims_rope=(8, 12, 12),
    )
    # Default weights make an output that hardly depends on the input; larger ones show a mix-up of requests.
    for parameter in transformer.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[1] ** -0.5)
    transformer.save_pretrained(folder / "transformer")
    AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    ).save_pretrained(folder / "vae")
    FlowMatchEulerDiscreteScheduler(
        base_shift=0.5, max_shift=0.9, shift=1.0, shift_terminal=0.02, max_image_seq_len=8192, use_dynamic_shifting=True
    ).save_pretrained(folder / "scheduler")
    parts = {
        "scheduler": ("diffusers", "FlowMatchEulerDiscreteScheduler"),
        "text_encoder": ("transformers", "Qwen2_5_VLForConditionalGeneration"),
        "tokenizer": ("transformers", "Qwen2Tokenizer"),
        "transformer": ("diffusers", "QwenImageTransformer2DModel"),
        "vae": ("diffusers", "AutoencoderKLQwenImage"),
    }
    index = {"_class_name": "QwenImagePipeline", "_diffusers_version": "0.40.0", **parts}
    (folder / "model_index.json").write_text(json.dumps(index), "utf-8")
    return folder


def save_adapter(folder: Path, *, seed: int) -> Path:
    """Write a LoRA of the first block's attention, large enough to make another picture."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    name = "base_model.model.transformer_blocks.0.attn.to_out"
    factors = {f"{name}.lora_{end}.weight": torch.randn(shape, generator=generator) for end, shape in _FACTORS.items()}
    save_file(factors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["to_out"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def _tokenizer() -> object:
    """One token for each byte, by the printable stand-ins of byte-level BPE."""
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {character: number for number, character in enumerate(bytes_to_unicode().values())}
    vocabulary.update({token: len(vocabulary) + number for number, token in enumerate(_TOKENS)})
    return Qwen2Tokenizer(vocab=vocabulary, merges=[], additional_special_tokens=list(_TOKENS[1:]))


def _text_encoder() -> torch.nn.Module:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": 300,
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6},
        "bos_token_id": 256,
        "eos_token_id": 258,
        "pad_token_id": 256,
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "fullatt_block_indexes": [0],
    }
    special = {f"{name}_id": 290 + i for i, name in enumerate(("image_token", "video_token"))}
    special |= {f"vision_{end}_token_id": 292 + i for i, end in enumerate(("start", "end"))}
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **special))
    return model.to(torch.float32)
