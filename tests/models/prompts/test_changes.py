"""Real diffusers pipelines with tiny random weights: equal calls hit, and none hits after a change."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from tests.helpers.prompt_pipelines import ALL, tokenizer
from tests.helpers.sweep import sweep

from .test_pipelines import same

PROMPT = 'a "hat"'  # HunyuanImage gives its second encoder what is in quotation marks


def outcome(function, *args, **kwargs):
    """The result, or the type of the error."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # of the pipeline: the cache must not hide it
        return type(error)


def is_same(one, other):
    try:
        same(one, other)
    except AssertionError:
        return False
    return True


def changed(pipeline, suffix):
    """Change one encoder and its tokenizer in one way after the other; says each."""
    encoder, words = getattr(pipeline, f"text_encoder{suffix}"), getattr(pipeline, f"tokenizer{suffix}")
    queries = {
        n: m for n, m in encoder.named_modules() if n.endswith((".q_proj", ".q", ".query")) and "vision" not in n
    }
    layer = next(iter(queries.values()))
    layer.weight.mul_(2)
    yield "weights in place"
    layer.weight = nn.Parameter(layer.weight * 2)
    yield "weights replaced"
    encoder.to(torch.bfloat16)
    yield "dtype"
    encoder.to(torch.float32)
    yield "dtype back"
    yield from adapted(pipeline, encoder, f"text_encoder{suffix}", queries)
    words.add_tokens(["at"])
    yield "vocabulary"
    words.padding_side = "left"
    yield "padding"  # which some pipelines set in each call
    other = tokenizer(words.model_max_length, first=5)
    other.add_tokens(list(words.get_added_vocab()))
    setattr(getattr(pipeline, "processor", None) or pipeline, f"tokenizer{suffix}", other)
    yield "tokenizer"
    encoder.to("meta")
    yield "device"


def adapted(pipeline, encoder, place, layers):
    """Load, scale and unload a LoRA: by the pipeline if it loads them into this encoder, else by PEFT."""
    if place in getattr(pipeline, "_lora_loadable_modules", ()) and encoder.config.model_type.startswith("clip"):
        state = {f"{place}.{name}.lora_A.weight": torch.rand(2, layer.in_features) for name, layer in layers.items()}
        state |= {f"{place}.{name}.lora_B.weight": torch.rand(layer.out_features, 2) for name, layer in layers.items()}
        pipeline.load_lora_into_text_encoder(state, None, encoder, prefix=place, adapter_name="one", _pipeline=pipeline)
        yield "LoRA loaded"
        pipeline.set_adapters("one", 0.3)
        yield "LoRA scaled"
        pipeline.unload_lora_weights()
    else:
        wrapped = get_peft_model(encoder, LoraConfig(r=2, target_modules=list(layers), init_lora_weights=False))
        yield "adapter added"
        for layer in wrapped.modules():
            if hasattr(layer, "set_scale"):
                layer.set_scale("default", 0.3)
        yield "adapter scaled"
        wrapped.unload()
    yield "unloaded"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # PEFT asks transformers
@pytest.mark.parametrize("name", sweep(ALL, quick={"flux", "lumina2", "wan"}))
@torch.no_grad()
def test_equal_calls_hit_and_no_change_is_missed(name):
    build, kwargs = ALL[name]
    pipeline = build()
    direct = type(pipeline).encode_prompt
    suffixes = [each for each in ("", "_2", "_3", "_4") if getattr(pipeline, f"text_encoder{each}", None) is not None]
    for suffix in suffixes[: 1 if name == "hunyuan_dit" else None]:  # which uses one encoder a call
        pipeline = build()
        cache = install_prompt_embed_cache(pipeline)
        old = direct(pipeline, prompt=PROMPT, **kwargs)
        assert not is_same(direct(pipeline, prompt="dog", **kwargs), old)
        for _ in range(3):
            same(pipeline.encode_prompt(prompt=PROMPT, **kwargs), old)
        assert (cache.hits, cache.misses, cache.bypassed) == (2, 1, 0)
        for what in changed(pipeline, suffix):
            got = outcome(pipeline.encode_prompt, prompt=PROMPT, **kwargs)
            want = outcome(direct, pipeline, prompt=PROMPT, **kwargs)
            assert is_same(got, want), what
            assert what == "padding" or not is_same(want, old), f"{what} does nothing"
            old, hits = want, cache.hits
            assert is_same(outcome(pipeline.encode_prompt, prompt=PROMPT, **kwargs), want), what
            assert cache.hits > hits or isinstance(want, type), what
