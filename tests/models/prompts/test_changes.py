"""Real diffusers pipelines with tiny random weights: equal calls hit, and none hits after a change."""

import inspect
import itertools

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


def changed(pipeline, suffix, *, wholly):
    """Change one encoder and its tokenizer in one way after the other; says each."""
    encoder, words = getattr(pipeline, f"text_encoder{suffix}"), getattr(pipeline, f"tokenizer{suffix}")
    queries = {
        n: m for n, m in encoder.named_modules() if n.endswith((".q_proj", ".q", ".query")) and "vision" not in n
    }
    layer = next(iter(queries.values()))
    layer.weight.mul_(2)
    yield "weights in place"
    if wholly or suffix == "":
        yield from adapted(pipeline, encoder, f"text_encoder{suffix}", queries)
    if wholly:
        layer.weight = nn.Parameter(layer.weight * 2)
        yield "weights replaced"
        words.add_tokens(["at"])
        yield "vocabulary"
        words.padding_side = "left"
        yield "padding"  # which some pipelines set in each call
        encoder.to(torch.bfloat16)
        yield "dtype"
        encoder.to(torch.float32)
    other = tokenizer(words.model_max_length, first=5)
    other.add_tokens(list(words.get_added_vocab()))
    setattr(getattr(pipeline, "processor", None) or pipeline, f"tokenizer{suffix}", other)
    yield "tokenizer"


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


QUICK = {"flux", "lumina2", "wan"}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # PEFT asks transformers
@pytest.mark.parametrize("name", sweep(ALL, quick=QUICK))
@torch.no_grad()
def test_hits_equal_the_direct_call_and_no_change_is_missed(name):
    build, kwargs = ALL[name]
    pipeline = build()
    direct = type(pipeline).encode_prompt
    calls = [{"prompt": "dog"}, {"prompt": PROMPT}]
    if name not in ("qwen_image_edit", "hunyuan_image"):  # which want an image each, and a batch size
        calls.append({"prompt": ["cat", PROMPT]})
    more = {"negative_prompt": "bad", "do_classifier_free_guidance": False}
    parameters = inspect.signature(pipeline.encode_prompt).parameters
    calls.append({"prompt": PROMPT} | {name: more[name] for name in more if name in parameters})
    want = [direct(pipeline, **(kwargs | call)) for call in calls]
    assert not is_same(*want[:2])
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(2):
        for call, expected in zip(calls, want, strict=True):
            same(pipeline.encode_prompt(**(kwargs | call)), expected)
    assert cache.hits >= len(calls)
    assert cache.bypassed == 0
    old, call = want[1], {"prompt": PROMPT} | kwargs
    suffixes = [each for each in ("", "_2", "_3", "_4") if getattr(pipeline, f"text_encoder{each}", None) is not None]
    for suffix in suffixes[: 1 if name == "hunyuan_dit" else None]:  # which uses one encoder a call
        for what in changed(pipeline, suffix, wholly=name in QUICK):
            got, want = outcome(pipeline.encode_prompt, **call), outcome(direct, pipeline, **call)
            assert is_same(got, want), what
            assert what == "padding" or not is_same(want, old), f"{what} does nothing"
            old, hits = want, cache.hits
            assert is_same(outcome(pipeline.encode_prompt, **call), want), what
            assert cache.hits > hits or isinstance(want, type), what
    for suffix, dtype in itertools.product(suffixes[:1], (torch.bfloat16, "meta")):
        getattr(pipeline, f"text_encoder{suffix}").to(dtype)
        for _ in range(2):
            assert is_same(outcome(pipeline.encode_prompt, **call), outcome(direct, pipeline, **call)), dtype
