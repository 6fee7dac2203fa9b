"""The untrained networks of the reference video pipeline: their sizes are decided here and nowhere else."""

from __future__ import annotations

from functools import partial

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from reference.tokenizers import END_ID, PAD_ID, save_tokenizer, words
from reference.video.captions import MAX_SEQUENCE_LENGTH, vocabulary

LATENT_CHANNELS = 12
TEXT_WIDTH = 128

#: The tokenizers of the video pipeline: what writes each into a folder.
TOKENIZERS = {
    "tokenizer": partial(save_tokenizer, starts=False, vocabulary=vocabulary(), max_length=MAX_SEQUENCE_LENGTH)
}


def new_autoencoder(mean: list[float] | None = None, std: list[float] | None = None) -> AutoencoderKLWan:
    """64x64 frames in fours (the first alone) to 8x8 latents; ``mean`` and ``std`` of each channel normalise them."""
    return AutoencoderKLWan(
        base_dim=16,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        latents_mean=mean or [0.0] * LATENT_CHANNELS,
        latents_std=std or [1.0] * LATENT_CHANNELS,
        is_residual=True,
        # Two by two pixels enter as channels: a quarter of the work at the widest level.
        patch_size=2,
        in_channels=12,
        out_channels=12,
        scale_factor_temporal=4,
        scale_factor_spatial=8,
    )


class VideoFlowModel(nn.Module):
    """The transformer and its text encoder, trained as one.

    Attributes:
        transformer: predicts noise - latents.
        text_encoder: its token states are what the transformer's cross-attention reads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.text_encoder = UMT5EncoderModel(
            UMT5Config(
                vocab_size=len(words(vocabulary())),
                d_model=TEXT_WIDTH,
                d_kv=32,
                d_ff=2 * TEXT_WIDTH,
                num_layers=1,
                num_heads=4,
                dropout_rate=0.0,
                pad_token_id=PAD_ID,
                eos_token_id=END_ID,
                decoder_start_token_id=PAD_ID,
                use_cache=False,
                is_encoder_decoder=False,
            )
        )
        self.transformer = WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=6,
            attention_head_dim=32,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            text_dim=TEXT_WIDTH,
            freq_dim=128,
            ffn_dim=512,
            num_layers=6,
            rope_max_seq_len=64,
        )

    def forward(self, noisy: torch.Tensor, sigma: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Velocity of ``noisy`` (B, C, F, H, W) at noise level ``sigma`` (B,), text encoded as WanPipeline does it."""
        mask = (ids != PAD_ID).long()
        states = self.text_encoder(ids, mask).last_hidden_state * mask[..., None]
        output: torch.Tensor = self.transformer(
            hidden_states=noisy, timestep=1000.0 * sigma, encoder_hidden_states=states, return_dict=False
        )[0]
        return output


def init_adaptive_norms(transformer: WanTransformer3DModel) -> None:
    """Start the self-attentions and feed-forwards of every block closed and the output at zero.

    Source: "Scalable Diffusion Models with Transformers", arXiv 2212.09748, section 3.2 (adaLN-Zero).
    """
    embedder = transformer.condition_embedder
    for layer in (embedder.time_proj, transformer.proj_out):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    with torch.no_grad():
        for block in transformer.blocks:
            block.scale_shift_table.zero_()
        transformer.scale_shift_table.zero_()
