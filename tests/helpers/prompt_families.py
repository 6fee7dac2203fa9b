"""More pipeline families: only what encode_prompt uses is built, every other component is None."""

import functools
import inspect

import diffusers
import torch
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2Model,
    GlmConfig,
    GlmModel,
    LlamaConfig,
    LlamaModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    UMT5Config,
    UMT5EncoderModel,
)

from tests.helpers.prompt_pipelines import FAMILIES, clip, t5, tokenizer

DECODER = {"vocab_size": 128, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "head_dim": 8}
DECODER |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3}


def seeded(build):
    """The factory with weights that are the same every time."""

    def make():
        torch.manual_seed(4)
        return build().eval()

    return make


gemma = seeded(lambda: Gemma2Model(Gemma2Config(**DECODER)))
glm = seeded(lambda: GlmModel(GlmConfig(**DECODER)))
llama = seeded(lambda: LlamaModel(LlamaConfig(**DECODER)))
umt5 = functools.partial(t5, UMT5EncoderModel, UMT5Config)
bert = seeded(
    lambda: BertModel(
        BertConfig(
            vocab_size=128,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=96,
        )
    )
)


@seeded
def qwen_vl():
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    text = DECODER | {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))


def bare(name, **parts):
    """The pipeline ``name`` with ``parts`` and without anything else."""
    cls = getattr(diffusers, name)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    absent = {p.name: None for p in parameters if p.default is inspect.Parameter.empty}
    return cls(**(absent | parts))


def single(name, encoder, length=12, **kwargs):
    """A family with one encoder and its tokenizer."""
    build = lambda: bare(name, text_encoder=encoder(), tokenizer=tokenizer(length))  # noqa: E731  # one expression
    return build, {"device": "cpu"} | kwargs


def hunyuan_dit():
    parts = {"text_encoder": bert(), "tokenizer": tokenizer(77), "text_encoder_2": t5(), "tokenizer_2": tokenizer(24)}
    return bare("HunyuanDiTPipeline", **parts)


def hunyuan_video():
    parts = {
        "text_encoder": llama(),
        "tokenizer": tokenizer(400),
        "text_encoder_2": clip(),
        "tokenizer_2": tokenizer(77),
    }
    return bare("HunyuanVideoPipeline", **parts)


SHORT = {"max_sequence_length": 16}
CLASSIC = {"num_images_per_prompt": 1, "do_classifier_free_guidance": True}
ALL = FAMILIES | {
    "allegro": single("AllegroPipeline", t5, **SHORT),
    "animatediff": single("AnimateDiffPipeline", clip, **CLASSIC),
    "aura_flow": single("AuraFlowPipeline", umt5, **SHORT),
    "chroma": single("ChromaPipeline", t5, **SHORT),
    "cogvideox": single("CogVideoXPipeline", t5, **SHORT),
    "cogview3": single("CogView3PlusPipeline", t5, **SHORT),
    "cogview4": single("CogView4Pipeline", glm, **SHORT),
    "controlnet": single("StableDiffusionControlNetPipeline", clip, **CLASSIC),
    "deepfloyd_if": single("IFPipeline", t5),
    "hunyuan_dit": (hunyuan_dit, {"device": "cpu"}),
    "hunyuan_video": (hunyuan_video, {"device": "cpu"} | SHORT),
    "kandinsky3": single("Kandinsky3Pipeline", t5, 128),
    "latte": single("LattePipeline", t5),
    "ltx": single("LTXPipeline", t5, **SHORT),
    "lumina2": single("Lumina2Pipeline", gemma, 128, max_sequence_length=128),
    "mochi": single("MochiPipeline", t5, **SHORT),
    "pixart_alpha": single("PixArtAlphaPipeline", t5, **SHORT),
    "qwen_image": single("QwenImagePipeline", qwen_vl, 512, max_sequence_length=400),
    "sana": single("SanaPipeline", gemma, **SHORT),
    "skyreels": single("SkyReelsV2Pipeline", umt5, **SHORT),
}
"""Name: (how to build one, arguments of encode_prompt beside the prompts)."""
