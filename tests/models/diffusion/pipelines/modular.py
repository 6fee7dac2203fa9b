"""The denoising blocks of the modular pipelines of diffusers, around tiny denoisers.

Texts, first frames and latents are given, so that no block encodes or decodes, but for those of WanAnimate2.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import diffusers
import torch
from diffusers import (
    AnimaTextConditioner,
    ClassifierFreeGuidance,
    Cosmos3OmniTransformer,
    ErnieImageTransformer2DModel,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux3Transformer2DModel,
    HeliosDMDScheduler,
    HeliosScheduler,
    HeliosTransformer3DModel,
    LTX2Guidance,
    MiniMaxH3Scheduler,
    MiniMaxH3Transformer3DModel,
    MiniMaxMusic3ConditionEncoder,
    MiniMaxMusic3Transformer1DModel,
    UniPCMultistepScheduler,
    WanAnimate2Transformer3DModel,
    WanTransformer3DModel,
)
from torch.nn import functional

from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.denoisers import hunyuan, image, image_flux, image_later, video
from tests.models.diffusion.denoisers.base import tensor, varied
from tests.models.diffusion.pipelines import image_later as later_images
from tests.models.diffusion.pipelines import unet
from tests.models.diffusion.pipelines import video as videos
from tests.models.diffusion.pipelines.base import texts

__all__ = ["PIPELINES", "Modular", "minimax_h3", "modular"]


class Modular(Tiny):
    """As `Tiny`, for pipelines that say by `output` what they return."""

    def run(self, *, steps: int = 6, seed: int = 0, **call: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        given = {"num_inference_steps": steps, "generator": generator, **self.inputs(), **call}
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
    parts = {"scheduler": FlowMatchEulerDiscreteScheduler(), **parts}
    for each in ("guider", "guider_2"):
        parts.setdefault(each, (guider or ClassifierFreeGuidance(guidance_scale=3.0)).new())
    pipe.update_components(**{part: value for part, value in parts.items() if part in pipe.component_names})
    pipe.set_progress_bar_config(disable=True)
    return Modular(pipe, lambda **_: dict(inputs))


def _of(tiny: Tiny) -> dict[str, Any]:
    return dict(tiny.pipe.components)


def _masks(*names: str, dtype: torch.dtype = torch.long) -> dict[str, Any]:
    return {f"{kind}{name}": torch.ones(1, 6, dtype=dtype) for kind in ("", "negative_") for name in names}


def flux(name: str = "FluxModularPipeline", **more: Any) -> Modular:
    given = texts(32, pooled_prompt_embeds=32)
    return modular(name, _of(TINY["flux"]()), **given, height=32, width=32, **more)


def flux_kontext() -> Modular:
    return flux("FluxKontextModularPipeline", max_area=32 * 32)


def flux_2(name: str) -> Modular:
    parts = {"transformer": image_flux.flux_2(in_channels=16).model}
    return modular(name, parts, **texts(), height=64, width=64)


def sd3(guider: Any = None, **more: Any) -> Modular:
    parts = {"transformer": image.sd3().model}
    return modular(
        "StableDiffusion3ModularPipeline", parts, guider, **texts(pooled_prompt_embeds=16), height=64, width=64, **more
    )


def sdxl() -> Modular:
    tiny = unet.PIPELINES["sdxl"]()
    given = tiny.inputs()
    parts = {**_of(tiny), "scheduler": EulerDiscreteScheduler()}
    return modular("StableDiffusionXLModularPipeline", parts, **given)


def qwen_image(name: str = "QwenImageModularPipeline", guider: Any = None, **more: Any) -> Modular:
    parts = {"transformer": image.qwen_image().model}
    given = {**texts(), **_masks("prompt_embeds_mask"), "height": 64, "width": 64, **more}
    return modular(name, parts, guider, **given)


def qwen_image_21(name: str) -> Modular:
    parts = {"transformer": image_later.qwen_image_21().model}
    none = {f"{kind}image_pad_mask": torch.zeros(1, 6, dtype=torch.bool) for kind in ("", "negative_")}
    return modular(name, parts, **texts(), **_masks("prompt_embeds_mask"), **none, height=128, width=128)


def z_image() -> Modular:
    given = {f"{kind}prompt_embeds": [tensor(6, 16, seed=seed)] for seed, kind in enumerate(("", "negative_"))}
    return modular("ZImageModularPipeline", {"transformer": image.z_image().model}, **given, height=64, width=64)


def krea_2(name: str) -> Modular:
    given = later_images.PIPELINES["krea_2"]().inputs()
    return modular(name, {"transformer": image_later.krea_2(in_channels=16).model}, **given)


def wan(name: str = "WanModularPipeline", tiny: str = "", parts: dict[str, Any] | None = None, **more: Any) -> Modular:
    made = videos.PIPELINES[tiny]() if tiny else TINY["wan"]()
    given = texts(16 if tiny else 32)
    return modular(name, {**_of(made), **(parts or {})}, **given, height=16, width=16, num_frames=5, **more)


def wan_i2v(name: str, parts: dict[str, Any], **more: Any) -> Modular:
    tiny = videos.PIPELINES["wan_image_to_video"]()
    condition = tensor(1, 20, 2, 2, 2, seed=7)
    given = {**texts(), "image_condition_latents": condition}
    return modular(name, {**_of(tiny), **parts}, **given, height=16, width=16, num_frames=5, **more)


def wan_first_i2v() -> Modular:
    sizes = {**video.WAN, "in_channels": 36, "out_channels": 16, "rope_max_seq_len": 32}
    model = WanTransformer3DModel(**sizes, image_dim=16, added_kv_proj_dim=24)
    embeds = tensor(1, 5, 16, seed=8)
    return wan_i2v("WanImage2VideoModularPipeline", {"transformer": varied(model)}, image_embeds=embeds)


def wan_vace() -> Modular:
    parts = {"transformer_2": videos.wan_vace().pipe.transformer}
    fields = {"control_hidden_states": tensor(1, 96, 2, 2, 2, seed=9)}
    return wan("Wan22VaceModularPipeline", "wan_vace", parts, denoiser_input_fields=fields)


def ltx() -> Modular:
    given = {**texts(), **_masks("prompt_attention_mask")}
    parts = {"transformer": video.ltx().model}
    return modular("LTXModularPipeline", parts, **given, height=64, width=64, num_frames=9)


def ltx_2(name: str) -> Modular:
    given: dict[str, Any] = {}
    for seed, kind in enumerate(("", "negative_")):
        given[f"{kind}connector_prompt_embeds"] = tensor(1, 6, 16, seed=seed)
        given[f"{kind}connector_audio_prompt_embeds"] = tensor(1, 6, 16, seed=10 + seed)
        given[f"{kind}connector_attention_mask"] = torch.ones(1, 6)
    guiders = {f"{kind}guider": LTX2Guidance(guidance_scale=3.0) for kind in ("", "audio_")}
    parts = {"transformer": video.ltx_2(audio_in_channels=128, audio_out_channels=128).model, **guiders}
    made = modular(name, parts, **given, batch_size=1, dtype=torch.float32, height=64, width=64, num_frames=9)
    # Of the autoencoders it wants to know how their latents are scaled.
    scales = {"spatial_compression_ratio": 32, "temporal_compression_ratio": 8}
    made.pipe.vae = SimpleNamespace(
        **scales, latents_mean=torch.zeros(4), latents_std=torch.ones(4), config=SimpleNamespace(scaling_factor=1.0)
    )
    of_sound = SimpleNamespace(mel_bins=64, latent_channels=8, sample_rate=16000, mel_hop_length=160)
    made.pipe.audio_vae = SimpleNamespace(
        mel_compression_ratio=4,
        temporal_compression_ratio=4,
        latents_mean=torch.zeros(128),
        latents_std=torch.ones(128),
        config=of_sound,
    )
    return made


def hunyuan_video_15() -> Modular:
    tiny = videos.PIPELINES["hunyuan_video_15"]()
    parts = {**_of(tiny), "transformer": hunyuan.hunyuan_video_15(in_channels=65, out_channels=32).model}
    return modular("HunyuanVideo15ModularPipeline", parts, **tiny.inputs(), batch_size=1)


def ideogram_4() -> Modular:
    parts = {f"{kind}transformer": image_later.ideogram_4().model for kind in ("", "unconditional_")}
    given = {
        "text_features": tensor(1, 6, 16, seed=1),
        "text_lengths": [6],
        "guidance_schedule": [3.0] * 6,
        "height": 64,
        "width": 64,
    }
    return modular("Ideogram4ModularPipeline", parts, **given)


def ernie_image() -> Modular:
    model = ErnieImageTransformer2DModel(
        hidden_size=16,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=16,
        in_channels=16,
        out_channels=16,
        text_in_dim=16,
        rope_axes_dim=(4, 2, 2),
    )
    given = {f"{kind}prompt_embeds": [tensor(6, 16, seed=seed)] for seed, kind in enumerate(("", "negative_"))}
    return modular("ErnieImageModularPipeline", {"transformer": varied(model)}, **given, height=64, width=64)


def flux_3(name: str) -> Modular:
    model = Flux3Transformer2DModel(
        in_channels=16,
        cond_in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        timestep_channels=16,
        axes_dims_rope=(2, 2, 2, 2),
        flow_map="Distilled" in name,
    )
    return modular(name, {"transformer": varied(model)}, **texts(), height=64, width=64)


def minimax_music_3() -> Modular:
    encoder = MiniMaxMusic3ConditionEncoder(condition_hidden_dim=8, num_condition_layers=2, out_dim=8)
    model = MiniMaxMusic3Transformer1DModel(
        in_channels=4,
        condition_dim=8,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=8,
        ff_inner_dim=16,
        rotary_dim=4,
        fourier_embedding_dim=8,
    )
    parts = {"condition_encoder": varied(encoder), "transformer": varied(model)}
    return modular("MiniMaxMusic3ModularPipeline", parts, frame_hiddens=tensor(1, 4, 16, seed=1))


def anima() -> Modular:
    conditioner = AnimaTextConditioner(
        source_dim=16,
        target_dim=16,
        model_dim=16,
        num_layers=1,
        num_attention_heads=2,
        target_vocab_size=8,
        min_sequence_length=6,
    )
    parts = {"text_conditioner": varied(conditioner), "transformer": video.cosmos().model}
    given: dict[str, Any] = {}
    for seed, kind in enumerate(("", "negative_")):
        given[f"{kind}qwen_prompt_embeds"] = tensor(1, 6, 16, seed=seed)
        given[f"{kind}t5_input_ids"] = torch.arange(6)[None]
    return modular(
        "AnimaModularPipeline",
        parts,
        **given,
        **_masks("qwen_attention_mask", "t5_attention_mask"),
        height=64,
        width=64,
    )


def helios(name: str, scheduler: Any, **more: Any) -> Modular:
    model = HeliosTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        text_dim=16,
        freq_dim=16,
        ffn_dim=16,
        num_layers=2,
        rope_dim=(4, 4, 4),
    )
    parts = {"transformer": varied(model), "scheduler": scheduler}
    return modular(name, parts, **texts(), num_frames=33, **more)


def helios_whole() -> Modular:
    scheduler = HeliosScheduler(stages=1, stage_range=[0, 1])
    return helios("HeliosModularPipeline", scheduler, height=32, width=32)


def helios_pyramid(name: str, kind: Any) -> Modular:
    # Three resolutions, each with steps of its own; gamma below 1/3, where the noise of a block has no inverse.
    more = {"height": 128, "width": 128, "pyramid_num_inference_steps_list": [4, 4, 4]}
    return helios(name, kind(gamma=0.3), **more)


def cosmos_3(name: str) -> Modular:
    """Token ids are given, as its text encoder makes them of a chat template."""
    model = Cosmos3OmniTransformer(
        head_dim=8,
        hidden_size=16,
        intermediate_size=16,
        latent_channel=4,
        num_attention_heads=2,
        num_hidden_layers=2,
        num_key_value_heads=1,
        patch_latent_dim=16,
        vocab_size=8,
        rope_axes_dim=(2, 1, 1),
    )
    is_distilled = "Distilled" in name
    scheduler: Any = FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)
    if not is_distilled:
        scheduler = UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction")
    ids = {"cond_input_ids": [1, 2, 3, 4, 5, 6], "uncond_input_ids": [1, 2, 3, 4]}
    parts = {"transformer": varied(model), "scheduler": scheduler}
    made = modular(name, parts, **ids, height=64, width=64, num_frames=5, fps=24.0)
    if is_distilled:
        made.pipe.update_components(distilled_sigmas=[1.0, 0.9, 0.75, 0.5, 0.3, 0.1])
    return made


def echo() -> Modular:
    """It has no scheduler: its sigmas are an input. A first frame and a memory of frames and sound are given."""
    return modular(
        "EchoModularPipeline",
        {"transformer": video.ltx_2(audio_in_channels=128, audio_out_channels=128).model},
        connector_prompt_embeds=tensor(1, 6, 16, seed=1),
        connector_audio_prompt_embeds=tensor(1, 6, 16, seed=2),
        connector_attention_mask=torch.ones(1, 6),
        first_frame_latents=tensor(1, 4, 1, 2, 2, seed=3),
        memory_video_latents=[tensor(1, 4, 1, 2, 2, seed=4)],
        memory_audio_latents=[tensor(1, 8, 2, 16, seed=5)],
        sigmas=[1.0, 0.9, 0.75, 0.5, 0.3, 0.1, 0.0],
        height=64,
        width=64,
        num_frames=9,
    )


def minimax_h3(workflow: str = "t2va") -> Modular:
    """Text only, or with an image for a reference, whose latents are given; they have a transformer each."""
    model = MiniMaxH3Transformer3DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        hidden_size=16,
        num_layers=2,
        num_refiner_layers=1,
        ffn_dim=16,
        text_dim=16,
        freq_dim=16,
        time_embed_hidden_dim=16,
        time_embed_dim=8,
        rope_freq_dim=1,
    )
    given = {"prompt_embeds": tensor(1, 6, 16, seed=1), "text_token_tags": torch.ones(6, dtype=torch.long)}
    if workflow == "ref2va":
        reference = {"condition_latents": [tensor(1, 24, 1, 4, 4, seed=2)], "audio_condition_latents": []}
        given |= {"normalized_references": [SimpleNamespace(kind="image")], **reference}
    parts = {
        "transformer_ref" if workflow == "ref2va" else "transformer": varied(model),
        "scheduler": MiniMaxH3Scheduler(shift=12.0),
        "audio_scheduler": MiniMaxH3Scheduler(shift=3.0),
    }
    return modular("MiniMaxH3ModularPipeline", parts, workflow=workflow, **given, height=64, width=64, num_frames=124)


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


def wan_animate_2(name: str, guider: Any = None) -> Modular:
    """Two segments of a driving video, which are encoded inside the loop."""
    model = WanAnimate2Transformer3DModel(
        dim=24,
        ffn_dim=16,
        freq_dim=16,
        text_dim=16,
        text_len=8,
        in_dim=12,
        out_dim=4,
        num_heads=2,
        num_layers=2,
    )
    segments = {"num_segments": 2, "segment_frame_length": 5, "effective_segment": 4}
    made = modular(
        name,
        {"transformer": varied(model)},
        guider,
        **texts(),
        **segments,
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


PIPELINES: dict[str, Callable[[], Modular]] = {
    "Flux2KleinBaseModularPipeline": lambda: flux_2("Flux2KleinBaseModularPipeline"),
    "Flux2KleinModularPipeline": lambda: flux_2("Flux2KleinModularPipeline"),
    "Flux2ModularPipeline": lambda: flux_2("Flux2ModularPipeline"),
    "FluxKontextModularPipeline": flux_kontext,
    "FluxModularPipeline": flux,
    "AnimaModularPipeline": anima,
    "ErnieImageModularPipeline": ernie_image,
    "Flux3DistilledModularPipeline": lambda: flux_3("Flux3DistilledModularPipeline"),
    "Flux3ModularPipeline": lambda: flux_3("Flux3ModularPipeline"),
    "HeliosModularPipeline": helios_whole,
    "HeliosPyramidDistilledModularPipeline": lambda: helios_pyramid(
        "HeliosPyramidDistilledModularPipeline", HeliosDMDScheduler
    ),
    "HeliosPyramidModularPipeline": lambda: helios_pyramid("HeliosPyramidModularPipeline", HeliosScheduler),
    "HunyuanVideo15ModularPipeline": hunyuan_video_15,
    "Ideogram4ModularPipeline": ideogram_4,
    "LTX25ModularPipeline": lambda: ltx_2("LTX25ModularPipeline"),
    "LTX2ModularPipeline": lambda: ltx_2("LTX2ModularPipeline"),
    "MiniMaxMusic3ModularPipeline": minimax_music_3,
    "QwenImageEditModularPipeline": lambda: qwen_image(
        "QwenImageEditModularPipeline", image_latents=tensor(1, 4, 1, 8, 8, seed=7)
    ),
    "QwenImageEditPlusModularPipeline": lambda: qwen_image(
        "QwenImageEditPlusModularPipeline", image_latents=[tensor(1, 4, 1, 8, 8, seed=7)]
    ),
    "QwenImageLayeredModularPipeline": lambda: qwen_image(
        "QwenImageLayeredModularPipeline", image_latents=tensor(1, 1, 4, 8, 8, seed=7), layers=2
    ),
    "Wan22Image2VideoModularPipeline": lambda: wan_i2v(
        "Wan22Image2VideoModularPipeline", {"transformer_2": videos.wan_i2v().pipe.transformer}
    ),
    "Wan22VaceModularPipeline": wan_vace,
    "WanImage2VideoModularPipeline": lambda: wan_first_i2v(),
    "Krea2ModularPipeline": lambda: krea_2("Krea2ModularPipeline"),
    "Krea2TurboModularPipeline": lambda: krea_2("Krea2TurboModularPipeline"),
    "LTXModularPipeline": ltx,
    "QwenImage21ModularPipeline": lambda: qwen_image_21("QwenImage21ModularPipeline"),
    "QwenImage21TurboModularPipeline": lambda: qwen_image_21("QwenImage21TurboModularPipeline"),
    "QwenImageModularPipeline": qwen_image,
    "StableDiffusion3ModularPipeline": sd3,
    "StableDiffusionXLModularPipeline": sdxl,
    "Wan22ModularPipeline": lambda: wan("Wan22ModularPipeline", "wan_22_two_experts"),
    "WanModularPipeline": wan,
    "ZImageModularPipeline": z_image,
    "Cosmos3DistilledModularPipeline": lambda: cosmos_3("Cosmos3DistilledModularPipeline"),
    "Cosmos3OmniModularPipeline": lambda: cosmos_3("Cosmos3OmniModularPipeline"),
    "EchoModularPipeline": echo,
    "MiniMaxH3ModularPipeline": minimax_h3,
    "WanAnimate2DistilledModularPipeline": lambda: wan_animate_2(
        "WanAnimate2DistilledModularPipeline", ClassifierFreeGuidance(guidance_scale=1.0)
    ),
    "WanAnimate2ModularPipeline": lambda: wan_animate_2("WanAnimate2ModularPipeline"),
}
