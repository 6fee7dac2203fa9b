"""After any change of what an embedding depends on, a call gives what a pipeline without a cache gives."""

import gc
import warnings
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import (
    PromptCacheOptions,
    bump_epoch,
    install_prompt_embed_cache,
    uninstall_prompt_embed_cache,
)
from omnireuse.diffusion.prompts.reads import reads_of

from .conftest import Pipeline
from .pipelines import flux, stable_diffusion


def weight(pipeline):
    return pipeline.text_encoder.out.weight


def add_under_no_grad(p):
    with torch.no_grad():
        weight(p).add_(1)


def add_in_inference_mode(p):
    with torch.inference_mode():
        weight(p).mul_(2)


def load_state(p):
    p.text_encoder.load_state_dict({k: v + 1 for k, v in p.text_encoder.state_dict().items()})


def load_state_by_assignment(p):
    p.text_encoder.load_state_dict({k: v + 1 for k, v in p.text_encoder.state_dict().items()}, assign=True)


def step(fused):
    def change(p):
        optimizer = torch.optim.AdamW(p.text_encoder.parameters(), lr=0.1, fused=fused)
        p.text_encoder("abc").sum().backward()
        optimizer.step()

    return change


def replace_encoder(p):
    p.text_encoder = type(p.text_encoder)().eval()


def replace_layer(p):
    p.text_encoder.out = nn.Linear(4, 4)


def replace_layer_behind_the_back(p):
    p.text_encoder._modules["out"] = nn.Linear(4, 4)


def give_other_data(p):
    weight(p).data = torch.ones(4, 4)


def cast(p):
    p.text_encoder.to(torch.float64)


def quantise(p):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p.text_encoder = torch.ao.quantization.quantize_dynamic(p.text_encoder, {nn.Linear}, dtype=torch.qint8)


def quantise_in_place(p):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(p.text_encoder, {nn.Linear}, dtype=torch.qint8, inplace=True)


def set_style(p):
    p.style = "other"


CHANGES = [add_under_no_grad, add_in_inference_mode, load_state, load_state_by_assignment, step(False), step(True)]
CHANGES += [replace_encoder, replace_layer, replace_layer_behind_the_back, give_other_data, cast, quantise]
CHANGES += [quantise_in_place, set_style]


def direct(pipeline, *args, **kwargs):
    """The pipeline's own encode_prompt, past any cache."""
    with torch.no_grad():
        return type(pipeline).encode_prompt(pipeline, *args, **kwargs)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_is_seen_by_the_very_next_hit(change):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    old = pipeline.encode_prompt("abc")[0]
    assert torch.equal(pipeline.encode_prompt("abc")[0], old)
    assert cache.hits == 1
    change(pipeline)
    new = pipeline.encode_prompt("abc")[0]
    assert torch.equal(new, direct(pipeline, "abc")[0])
    assert new.dtype != old.dtype or not torch.equal(new, old)
    assert torch.equal(pipeline.encode_prompt("abc")[0], new)
    assert cache.hits == 2
    uninstall_prompt_embed_cache(pipeline)


def test_a_write_through_data_is_seen_by_the_next_miss_or_when_told():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    weight(pipeline).data.add_(1)
    pipeline.encode_prompt("a miss audits")
    assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])
    weight(pipeline).data.add_(1)
    bump_epoch(pipeline)
    assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])


def test_an_engine_that_tells_skips_the_counters():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline, options=PromptCacheOptions(weights="told"))
    pipeline.encode_prompt("abc")
    add_under_no_grad(pipeline)
    pipeline.encode_prompt("abc")
    assert cache.hits == 1
    bump_epoch(pipeline)
    assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])


def test_what_does_not_touch_the_prompt_keeps_the_entries():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    with torch.no_grad():
        pipeline.denoiser.weight.add_(1)
    pipeline.denoiser = nn.Linear(2, 2)
    pipeline.unrelated = 3
    pipeline.text_encoder.to("cpu")
    pipeline.encode_prompt("abc")
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_move_there_and_back_keeps_the_entries():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    for parameter in pipeline.text_encoder.parameters():
        parameter.data = parameter.data.clone()  # what a round trip to another device leaves
    pipeline.encode_prompt("abc")
    assert (cache.hits, cache.misses) == (1, 1)


def test_entries_of_the_past_leave_memory():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    for prompt in "abc":
        pipeline.encode_prompt(prompt)
    add_under_no_grad(pipeline)
    pipeline.encode_prompt("a")
    assert len(cache.store) == 1


def test_a_change_during_an_encode_is_not_stored():
    class Racing(Pipeline):
        def encode_prompt(self, prompt):
            out = self.text_encoder(prompt).detach()
            if prompt == "race":
                add_under_no_grad(self)  # as another thread would
            return out

    pipeline = Racing()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("race")
    assert cache.details()["outdated"] == 1
    assert len(cache.store) == 0


def test_training_mode_with_dropout_bypasses():
    pipeline = Pipeline()
    pipeline.text_encoder.drop = nn.Dropout(0.5)
    cache = install_prompt_embed_cache(pipeline)
    pipeline.text_encoder.train()
    pipeline.encode_prompt("abc")
    assert cache.bypassed_by["training"] == 1
    pipeline.text_encoder.eval()
    pipeline.encode_prompt("abc")
    pipeline.encode_prompt("abc")
    assert cache.hits == 1


def test_autocast_has_entries_of_its_own():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    plain = pipeline.encode_prompt("abc")[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pipeline.encode_prompt("abc")[0].dtype == torch.bfloat16
    assert pipeline.encode_prompt("abc")[0].dtype == plain.dtype


def test_a_dropped_encoder_is_freed():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    gone = weakref.ref(pipeline.text_encoder)
    storage = weakref.ref(pipeline.text_encoder.out.weight)
    pipeline.text_encoder = None
    gc.collect()
    assert gone() is None
    assert storage() is None


def test_encode_prompt_replaced_on_the_class_is_read_anew():
    class Changing(Pipeline):
        def encode_prompt(self, prompt):
            return torch.zeros(1)

    pipeline = Changing()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p")
    Changing.encode_prompt = lambda self, prompt, strength=1: torch.full((1,), float(strength))
    assert pipeline.encode_prompt("p").item() == 1
    assert pipeline.encode_prompt("p", strength=5).item() == 5


def test_an_encode_prompt_without_source_watches_everything():
    pipeline = Pipeline()
    space = {"torch": torch}
    exec("def encode(prompt): return holder[0].text_encoder(prompt).detach()", space)
    space["holder"] = [pipeline]
    pipeline.encode_prompt = space["encode"]
    cache = install_prompt_embed_cache(pipeline)
    old = pipeline.encode_prompt("abc")
    pipeline.encode_prompt("abc")
    assert cache.hits == 1
    add_under_no_grad(pipeline)
    assert not torch.equal(pipeline.encode_prompt("abc"), old)


def test_what_a_call_changes_itself_is_no_part_of_its_key():
    class Keeping(Pipeline):
        def __init__(self):
            super().__init__()
            self.log, self.count = {}, 0

        def encode_prompt(self, prompt):
            self.log[prompt] = len(self.log)
            self.count = self.count + 1
            return self.text_encoder(prompt).detach()

    pipeline = Keeping()
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(3):
        pipeline.encode_prompt("abc")
    assert (cache.hits, pipeline.count) == (2, 1)


def test_what_flux_reads_leaves_the_denoiser_out():
    pipeline = flux()
    reads = reads_of(pipeline, pipeline.encode_prompt)
    assert reads.complete
    assert {"text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"} <= reads.objects
    assert "transformer" not in reads.objects
    assert ("transformer", "dtype") in reads.chains


# PEFT warns of a second adapter and asks a deprecated question of transformers: neither is ours.
@pytest.mark.filterwarnings("ignore:Already found a `peft_config`", "ignore:`is_gradient_checkpointing`")
class TestAdapters:
    """LoRA on the text encoder of a real pipeline."""

    @pytest.fixture
    def pipeline(self):
        pipeline = stable_diffusion()
        self.cache = install_prompt_embed_cache(pipeline)
        self.args = {"device": "cpu", "num_images_per_prompt": 1, "do_classifier_free_guidance": False}
        self.check(pipeline, is_new=True)
        yield pipeline
        uninstall_prompt_embed_cache(pipeline)

    def check(self, pipeline, *, is_new, **more):
        misses = self.cache.misses
        with torch.no_grad():
            got = pipeline.encode_prompt("a cat", **self.args, **more)[0]
        want = direct(pipeline, "a cat", **self.args, **more)[0]
        assert torch.equal(got, want)
        assert (self.cache.misses > misses) is is_new

    def add(self, pipeline, name, seed):
        torch.manual_seed(seed)
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "out_proj"], init_lora_weights=False)
        pipeline.text_encoder.add_adapter(config, adapter_name=name)

    def test_load_scale_switch_fuse_and_unload(self, pipeline):
        self.add(pipeline, "one", 1)
        self.check(pipeline, is_new=True)
        self.add(pipeline, "two", 2)
        self.check(pipeline, is_new=True)
        pipeline.text_encoder.set_adapter("one")
        self.check(pipeline, is_new=True)
        for layer in [m for m in pipeline.text_encoder.modules() if hasattr(m, "scaling")]:
            layer.scaling["one"] = 0.25
        self.check(pipeline, is_new=True)
        self.check(pipeline, is_new=False)
        for layer in [m for m in pipeline.text_encoder.modules() if hasattr(m, "scaling")]:
            layer.scaling["one"] = 2.0
        self.check(pipeline, is_new=False)  # the scale is part of the key: its entry is still there
        pipeline.text_encoder.disable_adapters()
        self.check(pipeline, is_new=True)
        pipeline.text_encoder.enable_adapters()
        for layer in [m for m in pipeline.text_encoder.modules() if hasattr(m, "merge")]:
            layer.merge(adapter_names=["one"])
        self.check(pipeline, is_new=True)
        for layer in [m for m in pipeline.text_encoder.modules() if hasattr(m, "unmerge")]:
            layer.unmerge()
        self.check(pipeline, is_new=True)

    def test_a_peft_wrapper_and_its_unloading(self, pipeline):
        config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        wrapped = get_peft_model(pipeline.text_encoder, config)
        pipeline.text_encoder = wrapped
        self.check(pipeline, is_new=True)
        pipeline.text_encoder = wrapped.merge_and_unload()
        self.check(pipeline, is_new=True)

    def test_the_scale_argument_keys_and_its_trace_is_left(self, pipeline):
        self.add(pipeline, "one", 1)
        self.check(pipeline, is_new=True, lora_scale=0.5)
        self.check(pipeline, is_new=True, lora_scale=1.5)
        self.check(pipeline, is_new=False, lora_scale=0.5)
        pipeline._lora_scale = None
        with torch.no_grad():
            pipeline.encode_prompt("a cat", **self.args, lora_scale=0.5)
        assert pipeline._lora_scale == 0.5
