"""The denoising blocks of the modular pipelines of diffusers, around tiny denoisers.

Texts, first frames and latents are given, so that no block encodes or decodes, but for those of WanAnimate2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import diffusers
import torch
from torch.nn import functional

from tests.helpers.tiny import TINY, Tiny, tensor, varied
from tests.models.diffusion.denoisers import OWN, denoiser, model_of
from tests.models.diffusion.pipelines import image, unet, video
from tests.models.diffusion.pipelines.base import SIZE, masks, texts

__all__ = ["PIPELINES", "Modular", "minimax_h3", "modular"]

FRAMES = {"in_channels": OWN, "out_channels": OWN}
"""For models whose latents have as many channels as those of their real autoencoder."""


class Modular(Tiny):
    """As `Tiny`, for pipelines that say by `output` what they return."""

    def run(self, *, steps: int = 6, seed: int = 0, **call: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        given = {"num_inference_steps": steps, "generator": generator, **self.inputs(), **call}
        with torch.compiler.set_stance("force_eager"):  # WanAnimate2 compiles its masks, for a minute
            state = self.pipe(**given)
        latents = state.get("latents")
        if latents is None:
            latents = torch.cat(state.get("latent_chunks") or state.get("segment_frames"), dim=2)
        assert isinstance(latents, torch.Tensor)
        return latents


def modular(
    name: str, parts: dict[str, Any], guider: Any = None, *, workflow: str | None = None, **inputs: Any
) -> Modular:
    """The denoising blocks of a modular pipeline.

    Args:
        name: class of the pipeline.
        parts: its components; those that these blocks do not have are left out.
        guider: for pipelines with a guider; guidance of scale 3 by default.
        workflow: one of the blocks among which the pipeline chooses by its inputs; None to let it choose.
        inputs: of each run.
    """
    kind = getattr(diffusers, name)
    blocks = getattr(diffusers, kind.default_blocks_name)().sub_blocks["denoise"]
    blocks = blocks if workflow is None else blocks.sub_blocks[workflow]
    pipe = kind(blocks=blocks)
    parts = {"scheduler": diffusers.FlowMatchEulerDiscreteScheduler(), **parts}
    for each in ("guider", "guider_2"):
        parts.setdefault(each, (guider or diffusers.ClassifierFreeGuidance(guidance_scale=3.0)).new())
    pipe.update_components(**{part: value for part, value in parts.items() if part in pipe.component_names})
    pipe.set_progress_bar_config(disable=True)
    return Modular(pipe, lambda **_: dict(inputs))


def of(model: str, **sizes: Any) -> dict[str, Any]:
    return {"transformer": denoiser(model, **sizes).model}


def around(model: str, *, sizes: dict[str, Any] | None = None, **inputs: Any) -> Callable[[str], Modular]:
    """A factory of pipelines of the tiny denoiser of this class, by their names."""
    return lambda name: modular(name, of(model, **sizes or {}), **inputs)


def flux(name: str, **more: Any) -> Modular:
    given = texts(32, pooled_prompt_embeds=32)
    return modular(name, TINY["flux"]().pipe.components, **given, height=32, width=32, **more)


def sd3(name: str = "StableDiffusion3ModularPipeline", guider: Any = None, **more: Any) -> Modular:
    return modular(name, of("SD3Transformer2DModel"), guider, **texts(pooled_prompt_embeds=16), **SIZE, **more)


def sdxl(name: str) -> Modular:
    tiny = unet.PIPELINES["sdxl"]()
    return modular(name, {**tiny.pipe.components, "scheduler": diffusers.EulerDiscreteScheduler()}, **tiny.inputs())


def qwen_image(name: str = "QwenImageModularPipeline", guider: Any = None, **more: Any) -> Modular:
    given = {**texts(), **masks("prompt_embeds_mask", dtype=torch.long), **SIZE, **more}
    return modular(name, of("QwenImageTransformer2DModel"), guider, **given)


def krea_2(name: str) -> Modular:
    tiny = image.PIPELINES["krea_2"]()
    return modular(name, tiny.pipe.components, **tiny.inputs())


def wan(name: str = "WanModularPipeline", tiny: str = "", parts: dict[str, Any] | None = None, **more: Any) -> Modular:
    made = video.PIPELINES[tiny]() if tiny else TINY["wan"]()
    given = texts(16 if tiny else 32)
    return modular(name, {**made.pipe.components, **(parts or {})}, **given, **video.SMALL, **more)


def wan_i2v(name: str, parts: dict[str, Any] | None = None, **more: Any) -> Modular:
    tiny = video.PIPELINES["wan_image_to_video"]()
    parts = parts or {"transformer_2": video.wan_i2v().pipe.transformer}
    given = {**texts(), "image_condition_latents": tensor(1, 20, 2, 2, 2, seed=7)}
    return modular(name, {**tiny.pipe.components, **parts}, **given, **video.SMALL, **more)


def wan_first_i2v(name: str) -> Modular:
    model = video.wan_transformer(in_channels=36, image_dim=16, added_kv_proj_dim=24)
    return wan_i2v(name, {"transformer": model}, image_embeds=tensor(1, 5, 16, seed=8))


def wan_vace(name: str) -> Modular:
    parts = {"transformer_2": video.wan_vace().pipe.transformer}
    return wan(name, "wan_vace", parts, denoiser_input_fields={"control_hidden_states": tensor(1, 96, 2, 2, 2, seed=9)})


def ltx_2(name: str) -> Modular:
    guiders = {f"{kind}guider": diffusers.LTX2Guidance(guidance_scale=3.0) for kind in ("", "audio_")}
    made = modular(
        name,
        {**of("LTX2VideoTransformer3DModel", **video.SOUND), **guiders},
        **texts(name="connector_prompt_embeds", connector_audio_prompt_embeds=(6, 16)),
        **masks("connector_attention_mask"),
        batch_size=1,
        dtype=torch.float32,
        **video.LARGE,
    )
    parts = video.sound_scales(sample_rate=16000, mel_hop_length=160)
    vars(parts["vae"]).update(spatial_compression_ratio=32, temporal_compression_ratio=8)
    vars(parts["audio_vae"]).update(mel_compression_ratio=4, temporal_compression_ratio=4)
    vars(made.pipe).update(parts)
    return made


def hunyuan_video_15(name: str) -> Modular:
    tiny = video.PIPELINES["hunyuan_video_15"]()
    model = of("HunyuanVideo15Transformer3DModel", in_channels=65, out_channels=32)
    return modular(name, {**tiny.pipe.components, **model}, **tiny.inputs(), batch_size=1)


def ideogram_4(name: str) -> Modular:
    parts = {f"{kind}transformer": of("Ideogram4Transformer2DModel")["transformer"] for kind in ("", "unconditional_")}
    given = {"text_features": tensor(1, 6, 16, seed=1), "text_lengths": [6], "guidance_schedule": [3.0] * 6}
    return modular(name, parts, **given, **SIZE)


def ernie_image(name: str) -> Modular:
    sizes = {"ffn_hidden_size": 16, "in_channels": 16, "out_channels": 16, "text_in_dim": 16}
    model = model_of("ErnieImageTransformer2DModel", **sizes, rope_axes_dim=(4, 2, 2))
    return modular(name, {"transformer": model}, **LISTS, **SIZE)


def flux_3(name: str) -> Modular:
    sizes = {"in_channels": 16, "cond_in_channels": 16, "timestep_channels": 16, "flow_map": "Distilled" in name}
    model = model_of("Flux3Transformer2DModel", **sizes, axes_dims_rope=(2, 2, 2, 2))
    return modular(name, {"transformer": model}, **texts(), **SIZE)


def minimax_music_3(name: str) -> Modular:
    encoder = diffusers.MiniMaxMusic3ConditionEncoder(condition_hidden_dim=8, num_condition_layers=2, out_dim=8)
    sizes = {"condition_dim": 8, "ff_inner_dim": 16, "rotary_dim": 4, "fourier_embedding_dim": 8}
    parts = {"condition_encoder": varied(encoder), "transformer": model_of("MiniMaxMusic3Transformer1DModel", **sizes)}
    return modular(name, parts, frame_hiddens=tensor(1, 4, 16, seed=1))


def anima(name: str) -> Modular:
    sizes = {"source_dim": 16, "target_dim": 16, "model_dim": 16, "num_layers": 1}
    conditioner = model_of("AnimaTextConditioner", **sizes, target_vocab_size=8, min_sequence_length=6)
    return modular(
        name,
        {"text_conditioner": conditioner, **of("CosmosTransformer3DModel")},
        **texts(name="qwen_prompt_embeds"),
        **{f"{kind}t5_input_ids": torch.arange(6)[None] for kind in ("", "negative_")},
        **masks("qwen_attention_mask", "t5_attention_mask", dtype=torch.long),
        **SIZE,
    )


def helios(name: str, scheduler: Any = None, **more: Any) -> Modular:
    model = model_of("HeliosTransformer3DModel", attention_head_dim=12, rope_dim=(4, 4, 4), **FRAMES)
    scheduler = scheduler or diffusers.HeliosScheduler(stages=1, stage_range=[0, 1])
    given = {"height": 32, "width": 32, "num_frames": 33, **more}
    return modular(name, {"transformer": model, "scheduler": scheduler}, **texts(), **given)


def helios_pyramid(name: str) -> Modular:
    # Three resolutions, each with steps of its own; gamma below 1/3, where the noise of a block has no inverse.
    more = {"height": 128, "width": 128, "pyramid_num_inference_steps_list": [4, 4, 4]}
    kind = diffusers.HeliosDMDScheduler if "Distilled" in name else diffusers.HeliosScheduler
    return helios(name, kind(gamma=0.3), **more)


def cosmos_3(name: str) -> Modular:
    """Token ids are given, as its text encoder makes them of a chat template."""
    sizes = {"head_dim": 8, "latent_channel": 4, "num_hidden_layers": 2, "patch_latent_dim": 16, "vocab_size": 8}
    model = model_of("Cosmos3OmniTransformer", **sizes, rope_axes_dim=(2, 1, 1))
    is_distilled = "Distilled" in name
    scheduler: Any = diffusers.FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)
    if not is_distilled:
        scheduler = diffusers.UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction")
    ids = {"cond_input_ids": [1, 2, 3, 4, 5, 6], "uncond_input_ids": [1, 2, 3, 4]}
    made = modular(name, {"transformer": model, "scheduler": scheduler}, **ids, **SIZE, num_frames=5, fps=24.0)
    if is_distilled:
        made.pipe.update_components(distilled_sigmas=[1.0, 0.9, 0.75, 0.5, 0.3, 0.1])
    return made


def echo(name: str) -> Modular:
    """It has no scheduler: its sigmas are an input. A first frame and a memory of frames and sound are given."""
    return modular(
        name,
        of("LTX2VideoTransformer3DModel", **video.SOUND),
        connector_prompt_embeds=tensor(1, 6, 16, seed=1),
        connector_audio_prompt_embeds=tensor(1, 6, 16, seed=2),
        connector_attention_mask=torch.ones(1, 6),
        first_frame_latents=tensor(1, 4, 1, 2, 2, seed=3),
        memory_video_latents=[tensor(1, 4, 1, 2, 2, seed=4)],
        memory_audio_latents=[tensor(1, 8, 2, 16, seed=5)],
        sigmas=[1.0, 0.9, 0.75, 0.5, 0.3, 0.1, 0.0],
        **video.LARGE,
    )


def minimax_h3(name: str = "MiniMaxH3ModularPipeline", workflow: str = "t2va") -> Modular:
    """Text only, or with an image for a reference, whose latents are given; they have a transformer each."""
    model = model_of("MiniMaxH3Transformer3DModel", time_embed_hidden_dim=16, rope_freq_dim=1, **FRAMES)
    given = {"prompt_embeds": tensor(1, 6, 16, seed=1), "text_token_tags": torch.ones(6, dtype=torch.long)}
    if workflow == "ref2va":
        reference = {"condition_latents": [tensor(1, 24, 1, 4, 4, seed=2)], "audio_condition_latents": []}
        given |= {"normalized_references": [SimpleNamespace(kind="image")], **reference}
    parts = {
        "transformer_ref" if workflow == "ref2va" else "transformer": model,
        "scheduler": diffusers.MiniMaxH3Scheduler(shift=12.0),
        "audio_scheduler": diffusers.MiniMaxH3Scheduler(shift=3.0),
    }
    return modular(name, parts, workflow=workflow, **given, **SIZE, num_frames=124)


class _PlainVae:
    """Averages pixels over blocks and repeats them: the next segment goes on from the decoded end of the last."""

    dtype = torch.float32
    temperal_downsample = (False, True, True)
    config = SimpleNamespace(z_dim=4, latents_mean=[0.0] * 4, latents_std=[1.0] * 4)

    def encode(self, pixels: torch.Tensor) -> Any:
        _, _, frames, height, width = pixels.shape
        latents = functional.adaptive_avg_pool3d(pixels, ((frames - 1) // 4 + 1, height // 8, width // 8))
        latents = torch.cat([latents, latents[:, :1]], dim=1)
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: latents))

    def decode(self, latents: torch.Tensor, *, return_dict: bool) -> tuple[torch.Tensor]:
        _, _, frames, height, width = latents.shape
        return (functional.interpolate(latents[:, :3], ((frames - 1) * 4 + 1, height * 8, width * 8)),)


def wan_animate_2(name: str) -> Modular:
    """Two segments of a driving video, which are encoded inside the loop."""
    sizes = {"dim": 24, "text_len": 8, "in_dim": 12, "out_dim": 4}
    made = modular(
        name,
        {"transformer": model_of("WanAnimate2Transformer3DModel", **sizes)},
        diffusers.ClassifierFreeGuidance(guidance_scale=1.0) if "Distilled" in name else None,
        **texts(),
        **{"num_segments": 2, "segment_frame_length": 5, "effective_segment": 4},
        prompt_ref_embeds=tensor(1, 6, 16, seed=1),
        reference_image_latents=tensor(8, 1, 4, 4, seed=2),
        driving_video_pixels=tensor(1, 3, 9, 32, 32, seed=3),
        condition_clip_context=tensor(1, 3, 1280, seed=4),
        denoiser_input_fields={"encoder_hidden_states_image": tensor(1, 3, 1280, seed=5)},
        height=32,
        width=32,
    )
    made.pipe.vae = _PlainVae()
    return made


LISTS = {f"{kind}prompt_embeds": [tensor(6, 16, seed=seed)] for seed, kind in enumerate(("", "negative_"))}
REFERENCE = tensor(1, 4, 1, 8, 8, seed=7)
flux_2 = around("Flux2Transformer2DModel", sizes={"in_channels": 16}, **texts(), **SIZE)
qwen_image_21 = around(
    "QwenImage21Transformer2DModel",
    **texts(),
    **masks("prompt_embeds_mask", dtype=torch.long),
    **{f"{kind}image_pad_mask": torch.zeros(1, 6, dtype=torch.bool) for kind in ("", "negative_")},
    height=128,
    width=128,
)
PIPELINES: dict[str, Callable[[str], Modular]] = {
    "AnimaModularPipeline": anima,
    "Cosmos3DistilledModularPipeline": cosmos_3,
    "Cosmos3OmniModularPipeline": cosmos_3,
    "EchoModularPipeline": echo,
    "ErnieImageModularPipeline": ernie_image,
    "Flux2KleinBaseModularPipeline": flux_2,
    "Flux2KleinModularPipeline": flux_2,
    "Flux2ModularPipeline": flux_2,
    "Flux3DistilledModularPipeline": flux_3,
    "Flux3ModularPipeline": flux_3,
    "FluxKontextModularPipeline": partial(flux, max_area=32 * 32),
    "FluxModularPipeline": flux,
    "HeliosModularPipeline": helios,
    "HeliosPyramidDistilledModularPipeline": helios_pyramid,
    "HeliosPyramidModularPipeline": helios_pyramid,
    "HunyuanVideo15ModularPipeline": hunyuan_video_15,
    "Ideogram4ModularPipeline": ideogram_4,
    "Krea2ModularPipeline": krea_2,
    "Krea2TurboModularPipeline": krea_2,
    "LTX25ModularPipeline": ltx_2,
    "LTX2ModularPipeline": ltx_2,
    "LTXModularPipeline": around(
        "LTXVideoTransformer3DModel", **texts(), **masks("prompt_attention_mask", dtype=torch.long), **video.LARGE
    ),
    "MiniMaxH3ModularPipeline": minimax_h3,
    "MiniMaxMusic3ModularPipeline": minimax_music_3,
    "QwenImage21ModularPipeline": qwen_image_21,
    "QwenImage21TurboModularPipeline": qwen_image_21,
    "QwenImageEditModularPipeline": partial(qwen_image, image_latents=REFERENCE),
    "QwenImageEditPlusModularPipeline": partial(qwen_image, image_latents=[REFERENCE]),
    "QwenImageLayeredModularPipeline": partial(qwen_image, image_latents=REFERENCE.transpose(1, 2), layers=2),
    "QwenImageModularPipeline": qwen_image,
    "StableDiffusion3ModularPipeline": sd3,
    "StableDiffusionXLModularPipeline": sdxl,
    "Wan22Image2VideoModularPipeline": wan_i2v,
    "Wan22ModularPipeline": partial(wan, tiny="wan_22_two_experts"),
    "Wan22VaceModularPipeline": wan_vace,
    "WanAnimate2DistilledModularPipeline": wan_animate_2,
    "WanAnimate2ModularPipeline": wan_animate_2,
    "WanImage2VideoModularPipeline": wan_first_i2v,
    "WanModularPipeline": wan,
    "ZImageModularPipeline": around("ZImageTransformer2DModel", **LISTS, **SIZE),
}
"""Class -> factory, which takes its name."""
