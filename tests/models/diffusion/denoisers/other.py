"""Audio, and priors that make embeddings."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AceStepTransformer1DModel, PriorTransformer, StableAudio3DiTModel, StableAudioDiTModel

from tests.models.diffusion.denoisers.base import Denoiser, tensor, time, varied


def stable_audio(global_states_input_dim: int = 16) -> Denoiser:
    model = StableAudioDiTModel(
        sample_size=8,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        num_key_value_attention_heads=2,
        out_channels=4,
        cross_attention_dim=16,
        time_proj_dim=8,
        global_states_input_dim=global_states_input_dim,
        cross_attention_input_dim=16,
    )
    angles = tensor(9, 4, seed=1)

    def inputs(step: int, text: int) -> dict[str, Any]:
        return {
            "hidden_states": tensor(1, 4, 8, seed=step),
            "timestep": time(step, 1.0),
            "encoder_hidden_states": tensor(1, text, 16, seed=text),
            "global_hidden_states": tensor(1, 1, global_states_input_dim, seed=text),
            "rotary_embedding": (angles.cos(), angles.sin()),
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


def stable_audio_3() -> Denoiser:
    model = StableAudio3DiTModel(
        io_channels=4,
        embed_dim=16,
        depth=2,
        num_heads=2,
        cond_token_dim=16,
        global_cond_dim=16,
        timestep_features_dim=8,
        ff_mult=1.0,
        num_memory_tokens=2,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return {
            "hidden_states": tensor(1, 4, 8, seed=step),
            "timestep": time(step, 1.0),
            "encoder_hidden_states": tensor(1, text, 16, seed=text),
            "global_hidden_states": tensor(1, 16, seed=text),
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


def ace_step() -> Denoiser:
    model = AceStepTransformer1DModel(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        in_channels=12,
        audio_acoustic_hidden_dim=4,
        encoder_hidden_size=16,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return {
            "hidden_states": tensor(1, 8, 4, seed=step),
            "timestep": time(step, 1.0),
            "timestep_r": time(step, 1.0),
            "encoder_hidden_states": tensor(1, text, 16, seed=text),
            "context_latents": tensor(1, 8, 8, seed=9),
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


def prior() -> Denoiser:
    model = PriorTransformer(
        num_attention_heads=2, attention_head_dim=8, num_layers=2, embedding_dim=12, num_embeddings=5
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        # Its texts are padded to one length.
        return {
            "hidden_states": tensor(1, 12, seed=step),
            "timestep": time(step),
            "proj_embedding": tensor(1, 12, seed=text),
            "encoder_hidden_states": tensor(1, 5, 12, seed=text),
            "attention_mask": torch.ones(1, 5).bool(),
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


DENOISERS = {
    "AceStepTransformer1DModel": ace_step,
    "PriorTransformer": prior,
    "StableAudio3DiTModel": stable_audio_3,
    "StableAudioDiTModel": stable_audio,
}
