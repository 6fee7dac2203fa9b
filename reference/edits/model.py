"""The untrained networks of faces-edit: their sizes are decided here and nowhere else."""

from __future__ import annotations

from functools import partial

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from torch import nn

from reference.edits.task import MAX_SEQUENCE_LENGTH, vocabulary
from reference.models import LATENT_CHANNELS, LATENT_SIZE, new_text_encoders
from reference.tokenizers import save_tokenizer, words

TEXT_WIDTH = 64
SIDE = LATENT_SIZE // 2

#: The tokenizers of the pipeline: what writes each into a folder.
TOKENIZERS = {
    name: partial(save_tokenizer, starts=starts, vocabulary=vocabulary(), max_length=MAX_SEQUENCE_LENGTH)
    for name, starts in (("tokenizer", True), ("tokenizer_2", False))
}


def _ids(width: int, place: int) -> torch.Tensor:
    ids: torch.Tensor = FluxPipeline._prepare_latent_image_ids(1, SIDE, width, "cpu", torch.float32)
    ids[..., 0] = place
    return ids


class EditModel(nn.Module):
    """The transformer and its two text encoders, trained as one.

    Attributes:
        transformer: predicts noise - latents of the target from packed latents of target and references.
        clip: its pooled output conditions every block.
        t5: its token states are the transformer's second stream.
    """

    def __init__(self) -> None:
        super().__init__()
        vocab_size = len(words(vocabulary()))
        self.clip, self.t5 = new_text_encoders(vocab_size, TEXT_WIDTH, MAX_SEQUENCE_LENGTH, layers=1, heads=(2, 4))
        self.transformer = FluxTransformer2DModel(
            patch_size=1,
            in_channels=4 * LATENT_CHANNELS,
            num_layers=2,
            num_single_layers=4,
            attention_head_dim=32,
            num_attention_heads=4,
            joint_attention_dim=TEXT_WIDTH,
            pooled_projection_dim=TEXT_WIDTH,
            guidance_embeds=False,
            axes_dims_rope=(4, 14, 14),
        )
        # Under autocast their inputs are bfloat16 and their weights are not, for which torch has no fused kernel.
        for module in self.transformer.modules():
            if isinstance(module, nn.RMSNorm):
                module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
        # Two references lie side by side, as one picture of twice the width.
        for number in (1, 2):
            ids = torch.cat([_ids(SIDE, 0), _ids(number * SIDE, 1)])
            self.register_buffer(f"ids_{number}", ids, persistent=False)
        self.register_buffer("text_ids", torch.zeros(MAX_SEQUENCE_LENGTH, 3), persistent=False)

    def forward(
        self,
        noisy: torch.Tensor,
        sigma: torch.Tensor,
        references: torch.Tensor,
        clip_ids: torch.Tensor,
        t5_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Velocity of packed ``noisy`` (B, T, C) at noise level ``sigma`` (B,), as FluxKontextPipeline asks for it.

        Args:
            noisy: latents of the target.
            sigma: noise levels.
            references: packed latents (B, T or 2 T, C) of one or two pictures.
            clip_ids, t5_ids: of the instructions, (B, `MAX_SEQUENCE_LENGTH`).
        """
        number = references.shape[1] // noisy.shape[1]
        output: torch.Tensor = self.transformer(
            hidden_states=torch.cat([noisy, references], dim=1),
            timestep=sigma,
            pooled_projections=self.clip(clip_ids).pooler_output,
            encoder_hidden_states=self.t5(t5_ids)[0],
            txt_ids=self.text_ids,
            img_ids=self.get_buffer(f"ids_{number}"),
            return_dict=False,
        )[0]
        return output[:, : noisy.shape[1]]
