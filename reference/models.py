"""The untrained networks of the reference image pipeline: their sizes are decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from reference.scenes import IMAGE_SIZE
from reference.tokenizers import END_ID, MAX_SEQUENCE_LENGTH, PAD_ID, START_ID, words

LATENT_CHANNELS = 8
LATENT_SIZE = 16
TEXT_WIDTH = 128
#: Timestep shift in training, where more noise is worth more practice: layout is decided there.
TRAINING_SHIFT = 2.0
#: Timestep shift in sampling: without one, the early steps are as coarse as a cache has to cope with in real models.
SAMPLING_SHIFT = 1.0


def new_autoencoder(*, scaling_factor: float = 1.0, shift_factor: float = 0.0) -> AutoencoderKL:
    """64x64 pixels to 16x16 latents; a latent is (encoded - shift_factor) * scaling_factor, as Flux has it."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=2,
        sample_size=IMAGE_SIZE,
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )


def new_text_encoders(
    vocab_size: int, width: int, max_length: int, *, layers: int, heads: tuple[int, int]
) -> tuple[CLIPTextModel, T5EncoderModel]:
    """The two text encoders of a Flux pipeline.

    Args:
        width: of their states.
        max_length: tokens of a padded caption.
        heads: of the attentions of CLIP and of T5.
    """
    clip = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            intermediate_size=2 * width,
            projection_dim=width,
            num_hidden_layers=layers,
            num_attention_heads=heads[0],
            max_position_embeddings=max_length,
            pad_token_id=PAD_ID,
            bos_token_id=START_ID,
            eos_token_id=END_ID,
        )
    )
    t5 = T5EncoderModel(
        T5Config(
            vocab_size=vocab_size,
            d_model=width,
            d_kv=16,
            d_ff=2 * width,
            num_layers=layers,
            num_heads=heads[1],
            dropout_rate=0.0,
            feed_forward_proj="gated-gelu",
            pad_token_id=PAD_ID,
            eos_token_id=END_ID,
            decoder_start_token_id=PAD_ID,
            use_cache=False,
            is_encoder_decoder=False,
        )
    )
    return clip, t5


class FlowModel(nn.Module):
    """The transformer and its two text encoders, trained as one.

    Args:
        vocabulary: every word of the captions; those of the shapes by default.
        max_length: tokens of a padded caption.

    Attributes:
        transformer: predicts noise - latents from packed latents.
        clip: its pooled output conditions every block.
        t5: its token states are the transformer's second stream.
    """

    def __init__(self, vocabulary: Sequence[str] | None = None, max_length: int = MAX_SEQUENCE_LENGTH) -> None:
        super().__init__()
        vocab_size = len(words(vocabulary))
        self.clip, self.t5 = new_text_encoders(vocab_size, TEXT_WIDTH, max_length, layers=2, heads=(4, 8))
        # Word order reaches the text stream through this bias alone (Flux gives text no positions). At its usual small
        # start the encoder stays a bag of words for a thousand steps; heads that start at different offsets learn the
        # order in 200.
        bias = self.t5.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
        nn.init.normal_(bias.weight, std=2.0)
        self.transformer = FluxTransformer2DModel(
            patch_size=1,
            in_channels=4 * LATENT_CHANNELS,
            num_layers=2,
            num_single_layers=4,
            attention_head_dim=32,
            num_attention_heads=5,
            joint_attention_dim=TEXT_WIDTH,
            pooled_projection_dim=TEXT_WIDTH,
            guidance_embeds=False,
            axes_dims_rope=(4, 14, 14),
        )
        half = LATENT_SIZE // 2
        image_ids = FluxPipeline._prepare_latent_image_ids(1, half, half, "cpu", torch.float32)
        self.register_buffer("image_ids", image_ids, persistent=False)
        self.register_buffer("text_ids", torch.zeros(max_length, 3), persistent=False)

    def forward(
        self, noisy: torch.Tensor, sigma: torch.Tensor, clip_ids: torch.Tensor, t5_ids: torch.Tensor
    ) -> torch.Tensor:
        """Velocity of packed ``noisy`` (B, T, C) at noise level ``sigma`` (B,), text read as FluxPipeline does it."""
        output: torch.Tensor = self.transformer(
            hidden_states=noisy,
            timestep=sigma,
            pooled_projections=self.clip(clip_ids).pooler_output,
            encoder_hidden_states=self.t5(t5_ids)[0],
            txt_ids=self.text_ids,
            img_ids=self.image_ids,
            return_dict=False,
        )[0]
        return output


def new_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """The Euler solver that the pipeline samples with."""
    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=SAMPLING_SHIFT, use_dynamic_shifting=False)


def init_adaptive_norms(transformer: nn.Module) -> None:
    """Start every block as the identity and the output at zero, as adaptive layer norms train best that way.

    Source: "Scalable Diffusion Models with Transformers", arXiv 2212.09748, section 3.2 (adaLN-Zero).
    """
    for name, module in transformer.named_modules():
        is_modulation = ".norm" in f".{name}" and name.endswith(".linear")
        if isinstance(module, nn.Linear) and (is_modulation or name == "proj_out"):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
