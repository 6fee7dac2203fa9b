"""Tiny random diffusers pipelines with real text encoders and tokenizers, built without any download."""

import inspect
import warnings

import diffusers
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers.models.t5gemma.modeling_t5gemma import T5GemmaEncoder

from tests.helpers.tiny import TINY

SIZES = {"vocab_size": 128, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2}
SPECIAL = {"eos_token_id": 1, "bos_token_id": 3, "pad_token_id": 0}
DECODER = SIZES | SPECIAL | {"num_hidden_layers": 3, "head_dim": 8, "num_key_value_heads": 2}


def tokenizer(length=12, first=4):
    """One token a character, counted from ``first``; a start and an end as CLIP and T5 have them."""
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "<s>": 3} | {chr(c): c - 32 + first for c in range(32, 127)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 3), ("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    more = {"model_max_length": length, "chat_template": "{{ messages[0]['content'] }}"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **special, **more)


def seeded(kind, config, seed, **sizes):
    """A model with weights that are the same every time."""
    torch.manual_seed(seed)
    return getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()


def clip(kind="CLIPTextModel", width=16):
    sizes = SIZES | SPECIAL | {"hidden_size": width, "projection_dim": width, "max_position_embeddings": 77}
    return seeded(kind, "CLIPTextConfig", 1, **sizes)


def t5(kind="T5", width=16):
    sizes = {"d_model": width, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 2, "vocab_size": 128}
    return seeded(f"{kind}EncoderModel", f"{kind}Config", 2, **sizes)


def umt5():
    return t5("UMT5")


def decoder(kind, head="Model"):
    return lambda: seeded(f"{kind}{head}", f"{kind}Config", 4, **DECODER)


gemma = decoder("Gemma2")
qwen_3 = decoder("Qwen3", "ForCausalLM")
llama_lm = decoder("Llama", "ForCausalLM")


def bert():
    return seeded("BertModel", "BertConfig", 4, **SIZES, max_position_embeddings=96)


def qwen_vl():
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    text = DECODER | {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    kind = "Qwen2_5_VLForConditionalGeneration"
    return seeded(kind, "Qwen2_5_VLConfig", 4, text_config=text, vision_config=vision, image_token_id=99)


def gemma_encoder():
    torch.manual_seed(4)
    more = {"layer_types": ["full_attention"] * 3, "dropout_rate": 0.0}
    return T5GemmaEncoder(transformers.T5GemmaModuleConfig(**DECODER, **more)).eval()


def gemma_3():
    vision = SIZES | {"image_size": 14, "patch_size": 14}
    kind = "Gemma3ForConditionalGeneration"
    return seeded(kind, "Gemma3Config", 4, text_config=DECODER, vision_config=vision, mm_tokens_per_image=1)


def stable_diffusion():
    parts = TINY["stable_diffusion"]().pipe.components | {"text_encoder": clip(), "tokenizer": tokenizer()}
    return diffusers.StableDiffusionPipeline(**parts, requires_safety_checker=False)


def flux():
    texts = {"text_encoder": clip(width=32), "text_encoder_2": t5(width=32)}
    texts |= {"tokenizer": tokenizer(), "tokenizer_2": tokenizer(24)}
    return diffusers.FluxPipeline(**TINY["flux"]().pipe.components | texts)


# -- families of which only what encode_prompt uses is built, every other component being None ------------------------


def bare(name, **parts):
    """The pipeline ``name`` with ``parts`` and without anything else."""
    cls = getattr(diffusers, name)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    absent = {p.name: None for p in parameters if p.default is inspect.Parameter.empty}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`LoraLoaderMixin` is deprecated", FutureWarning)  # by PRX
        return cls(**(absent | parts))


def family(name, *encoders, **kwargs):
    """A pipeline's encoders, each with the length of its tokenizer or with 12; and how to call it."""
    pairs = [each if isinstance(each, tuple) else (each, 12) for each in encoders]

    def build():
        parts = {}
        for place, (encoder, length) in enumerate(pairs):
            suffix = f"_{place + 1}" if place else ""
            parts |= {f"text_encoder{suffix}": encoder(), f"tokenizer{suffix}": tokenizer(length)}
        return bare(name, **parts)

    return build, {"device": "cpu"} | kwargs


def projected():
    return clip("CLIPTextModelWithProjection")


def stable_diffusion_3():
    sizes = {"sample_size": 8, "patch_size": 1, "in_channels": 4, "out_channels": 4, "num_layers": 1}
    sizes |= {"attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 32}
    transformer = diffusers.SD3Transformer2DModel(**sizes, caption_projection_dim=16, pooled_projection_dim=32)
    pipe = family("StableDiffusion3Pipeline", (projected, 77), (projected, 77))[0]()
    pipe.register_modules(transformer=transformer)
    return pipe


IMAGE = "<|image_pad|>"


class Processor(transformers.Qwen2VLProcessor):
    """Of texts and images: that of videos needs torchvision."""

    def __init__(self, image_processor=None, tokenizer=None):
        self.image_token, self.image_token_id = IMAGE, tokenizer.convert_tokens_to_ids(IMAGE)
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer)


def with_processor(name, place):
    """A pipeline whose processor is under the name ``place``."""
    pipe = family(name, (qwen_vl, 512))[0]()
    pipe.tokenizer.add_tokens([IMAGE])
    sizes = {"patch_size": 14, "min_pixels": 28 * 28, "max_pixels": 28 * 28}
    pipe.register_modules(**{place: Processor(transformers.Qwen2VLImageProcessorPil(**sizes), pipe.tokenizer)})
    return pipe


def qwen_image_edit():
    return with_processor("QwenImageEditPipeline", "processor")


def longcat():
    return with_processor("LongCatImagePipeline", "text_processor")


SHORT = {"max_sequence_length": 16}
CLASSIC = {"num_images_per_prompt": 1, "do_classifier_free_guidance": True}
ALL = {
    "sd": (stable_diffusion, {"device": "cpu"} | CLASSIC),
    "sdxl": family("StableDiffusionXLPipeline", clip, projected),
    "sd3": (stable_diffusion_3, {"prompt_2": None, "prompt_3": None, "device": "cpu"}),
    "flux": (flux, {"prompt_2": None, "device": "cpu", "max_sequence_length": 24}),
    "wan": family("WanPipeline", umt5, **SHORT),
    "pixart": family("PixArtSigmaPipeline", t5, max_sequence_length=12),
    "allegro": family("AllegroPipeline", t5, **SHORT),
    "animatediff": family("AnimateDiffPipeline", clip, **CLASSIC),
    "aura_flow": family("AuraFlowPipeline", umt5, **SHORT),
    "chroma": family("ChromaPipeline", t5, **SHORT),
    "cogvideox": family("CogVideoXPipeline", t5, **SHORT),
    "cogview3": family("CogView3PlusPipeline", t5, **SHORT),
    "cogview4": family("CogView4Pipeline", decoder("Glm"), **SHORT),
    "controlnet": family("StableDiffusionControlNetPipeline", clip, **CLASSIC),
    "deepfloyd_if": family("IFPipeline", t5),
    "hunyuan_dit": family("HunyuanDiTPipeline", (bert, 77), (t5, 24)),
    "hunyuan_video": family("HunyuanVideoPipeline", (decoder("Llama"), 700), (clip, 77), max_sequence_length=500),
    "kandinsky3": family("Kandinsky3Pipeline", (t5, 128)),
    "latte": family("LattePipeline", t5),
    "ltx": family("LTXPipeline", t5, **SHORT),
    "lumina2": family("Lumina2Pipeline", (gemma, 256), max_sequence_length=256),
    "mochi": family("MochiPipeline", t5, **SHORT),
    "pixart_alpha": family("PixArtAlphaPipeline", t5, **SHORT),
    "qwen_image": family("QwenImagePipeline", (qwen_vl, 512), max_sequence_length=400),
    "sana": family("SanaPipeline", gemma, **SHORT),
    "skyreels": family("SkyReelsV2Pipeline", umt5, **SHORT),
    "sdxl_img2img": family("StableDiffusionXLImg2ImgPipeline", clip, projected),
    "sdxl_inpaint": family("StableDiffusionXLInpaintPipeline", clip, projected),
    "sdxl_pag": family("StableDiffusionXLPAGPipeline", clip, projected),
    "sd_img2img": family("StableDiffusionImg2ImgPipeline", clip, **CLASSIC),
    "sd_inpaint": family("StableDiffusionInpaintPipeline", clip, **CLASSIC),
    "chroma_img2img": family("ChromaImg2ImgPipeline", t5, **SHORT),
    "flux_kontext": family("FluxKontextPipeline", clip, (t5, 24), prompt_2=None, max_sequence_length=24),
    "flux_fill": family("FluxFillPipeline", clip, (t5, 24), prompt_2=None, max_sequence_length=24),
    "flux_img2img": family("FluxImg2ImgPipeline", clip, (t5, 24), prompt_2=None, max_sequence_length=24),
    "wan_i2v": family("WanImageToVideoPipeline", umt5, **SHORT),
    "wan_vace": family("WanVACEPipeline", umt5, **SHORT),
    "ltx_i2v": family("LTXImageToVideoPipeline", t5, **SHORT),
    "cogvideox_i2v": family("CogVideoXImageToVideoPipeline", t5, **SHORT),
    "sana_sprint": family("SanaSprintPipeline", gemma, **SHORT),
    "flux2_klein": family("Flux2KleinPipeline", qwen_3, text_encoder_out_layers=(1, 2), **SHORT),
    "hidream": family("HiDreamImagePipeline", projected, projected, (t5, 24), (llama_lm, 24), **SHORT),
    "ltx2": family("LTX2Pipeline", gemma_3, **SHORT),
    "z_image": family("ZImagePipeline", qwen_3, **SHORT),
    "qwen_image_edit": (qwen_image_edit, {"image": Image.new("RGB", (28, 28), "red"), "device": "cpu"}),
    "hunyuan_image": family("HunyuanImagePipeline", (qwen_vl, 512), (t5, 24)),
    "prx": family("PRXPipeline", gemma_encoder),
    "longcat": (longcat, {}),
}
"""Name: (how to build one, arguments of encode_prompt beside the prompts)."""
