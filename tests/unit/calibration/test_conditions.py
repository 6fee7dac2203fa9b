"""What changes the conditions of a pipeline, what leaves them as they are, and what looking at them costs."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import AlignDevicesHook, ModelHook, add_hook_to_module
from diffusers import FirstBlockCacheConfig, FlowMatchEulerDiscreteScheduler
from peft import LoraConfig
from torch.utils._python_dispatch import return_and_correct_aliasing

import omnireuse
from omnireuse.base.records import as_text, read_record
from omnireuse.errors import StateError
from omnireuse.profiles.conditions import OTHER_WEIGHTS, Conditions, ConditionsWatch, watch_of
from omnireuse.profiles.origin import Origin
from tests.helpers.tiny import TINY

CPU = torch.device("cpu")


class Doubled(torch.Tensor):
    """A wrapper subclass as torchao's are: it holds half of its values in bfloat16."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, half: torch.Tensor) -> Doubled:
        return torch.Tensor._make_wrapper_subclass(cls, half.shape, dtype=torch.float32)  # type: ignore[attr-defined]

    def __init__(self, half: torch.Tensor) -> None:
        self.held = half

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], *_: Any) -> Doubled:
        return cls(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [each.held.float() * 2 if isinstance(each, Doubled) else each for each in args]
        if function is torch.ops.aten.detach.default:
            return return_and_correct_aliasing(function, args, kwargs or {}, cls(args[0].held))
        return function(*plain, **kwargs or {})


class Packed(torch.nn.Parameter):
    """A parameter class of its own, as those of bitsandbytes and GGUF are."""


def flux() -> Any:
    return TINY["flux"]().pipe


def first_layer(pipe: Any) -> Any:
    return pipe.transformer.transformer_blocks[0].attn.to_q


# -- changes --------------------------------------------------------------------------------------------------------


def in_place(pipe: Any) -> None:
    with torch.no_grad():
        first_layer(pipe).weight.mul_(1.001)


def other_storage(pipe: Any) -> None:
    first_layer(pipe).weight.data = first_layer(pipe).weight.data * 1.001


def written_uncounted(pipe: Any) -> None:
    weight = first_layer(pipe).weight
    weight.data.copy_(weight.data * 1.001)


def fused_step(pipe: Any) -> None:
    weight = first_layer(pipe).weight
    weight.grad = torch.ones_like(weight)
    torch.optim.Adam([weight], lr=0.1, fused=True).step()


def other_parameter(pipe: Any) -> None:
    first_layer(pipe).weight = torch.nn.Parameter(first_layer(pipe).weight.detach() + 0.1)


def other_denoiser(pipe: Any) -> None:
    pipe.transformer = copy.deepcopy(pipe.transformer)
    in_place(pipe)


def adapter(pipe: Any) -> None:
    config = LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False)
    pipe.transformer.add_adapter(config, "style")


def subclass(pipe: Any) -> None:
    first_layer(pipe).weight = torch.nn.Parameter(Doubled(first_layer(pipe).weight.detach().bfloat16() / 2))


def parameter_class(pipe: Any) -> None:
    first_layer(pipe).weight = Packed(first_layer(pipe).weight.detach())


def quantised_layers(pipe: Any) -> None:
    torch.ao.quantization.quantize_dynamic(pipe.transformer, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)


def hook(pipe: Any) -> None:
    def brighter(module: Any, inputs: Any, output: Any) -> Any:
        return output

    first_layer(pipe).register_forward_hook(brighter)


def pre_hook(pipe: Any) -> None:
    def louder(module: Any, inputs: Any) -> Any:
        return inputs

    first_layer(pipe).register_forward_pre_hook(louder)


def own_forward(pipe: Any) -> None:
    layer = first_layer(pipe)

    def slower(*args: Any) -> Any:
        return type(layer).forward(layer, *args)

    layer.forward = slower


def forward_of_the_class(pipe: Any) -> None:
    def patched(self: Any, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight, self.bias)

    torch.nn.Linear.forward = patched  # type: ignore[method-assign]


def hook_of_accelerate(pipe: Any) -> None:
    class Halving(ModelHook):
        def post_forward(self, module: Any, output: Any) -> Any:
            return output

    add_hook_to_module(first_layer(pipe), Halving())


def cache_of_diffusers(pipe: Any) -> None:
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.4))


def layerwise_casting(pipe: Any) -> None:
    pipe.transformer.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)


def cast(pipe: Any) -> None:
    # As `pipe.to` does, without its log.
    torch.nn.Module.to(pipe.transformer, torch.bfloat16)


def other_scheduler(pipe: Any) -> None:
    from diffusers import FlowMatchHeunDiscreteScheduler

    pipe.scheduler = FlowMatchHeunDiscreteScheduler()


def other_training_steps(pipe: Any) -> None:
    pipe.scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=500)


CHANGES = {
    in_place: OTHER_WEIGHTS,
    other_storage: OTHER_WEIGHTS,
    written_uncounted: OTHER_WEIGHTS,
    fused_step: OTHER_WEIGHTS,
    other_parameter: OTHER_WEIGHTS,
    other_denoiser: OTHER_WEIGHTS,
    adapter: "LoRA adapters style (",
    subclass: "the pipeline holds its weights as Doubled of bfloat16, the profile was measured with plain tensors",
    parameter_class: "the pipeline holds its weights as Packed of float32",
    quantised_layers: "qint8",
    hook: "the pipeline has hooks hook.brighter on transformer.transformer_blocks.0.attn.to_q, the profile was",
    pre_hook: "hooks pre_hook.louder on",
    own_forward: "hooks forward own_forward.slower on",
    forward_of_the_class: "hooks forward forward_of_the_class.patched on",
    hook_of_accelerate: "hooks Halving on",
    cache_of_diffusers: "FBCBlockHook on",
    layerwise_casting: "LayerwiseCastingHook on",
    cast: "the pipeline computes in bfloat16, the profile was measured in float32",
    other_scheduler: "scheduler FlowMatchHeunDiscreteScheduler, the profile was measured with FlowMatchEulerDiscrete",
    other_training_steps: "configuration",
}


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_at_the_next_look_and_named(
    change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is changed for all is put back afterwards.
    monkeypatch.setattr(torch.nn.Linear, "forward", torch.nn.Linear.forward)
    pipe = flux()
    watch = ConditionsWatch(pipe)
    before = watch.now()
    assert watch.now() == before
    change(pipe)
    said = before.unlike(watch.now())
    assert said is not None
    assert CHANGES[change] in said
    assert ConditionsWatch(pipe).now() == watch.now(), "whoever comes later sees the same"


def test_autocast_is_seen_where_it_is_on() -> None:
    pipe = flux()
    watch = ConditionsWatch(pipe)
    before = watch.now()
    with torch.autocast("cpu", torch.bfloat16):
        said = before.unlike(watch.now())
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(watch.now).result() == before, "autocast belongs to a thread"
    assert said == "the pipeline runs with autocast cpu bfloat16, the profile was measured with autocast off"
    assert watch.now() == before


def test_a_hook_for_all_modules_counts() -> None:
    pipe = flux()
    watch = ConditionsWatch(pipe)
    before = watch.now()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    try:
        assert "on every module" in str(before.unlike(watch.now()))
    finally:
        handle.remove()
    assert watch.now() == before


def test_adapters_count_with_their_weights_and_scales_while_they_are_in_use() -> None:
    pipe, twin = flux(), flux()
    watch = ConditionsWatch(pipe)
    plain = watch.now()
    adapter(pipe)
    styled = watch.now()
    assert styled.weights == plain.weights
    pipe.transformer.set_adapters(["style"], [0.5])
    assert styled.unlike(watch.now()) is not None
    pipe.transformer.set_adapters(["style"], [1.0])
    assert styled == watch.now()
    adapter(twin)
    assert styled.unlike(ConditionsWatch(twin).now()) is not None, "the same name with other random weights"
    pipe.transformer.disable_adapters()
    assert watch.now() == plain
    pipe.transformer.enable_adapters()
    pipe.transformer.delete_adapters("style")
    assert watch.now() == plain


# -- what is no change ----------------------------------------------------------------------------------------------


def nothing(pipe: Any) -> None:
    pass


def model_offload(pipe: Any) -> None:
    pipe.enable_model_cpu_offload(device="cpu")


def group_offload(pipe: Any) -> None:
    if not hasattr(torch, "accelerator"):
        pytest.skip("groups need torch 2.6")
    pipe.transformer.enable_group_offload(CPU, CPU, offload_type="block_level", num_blocks_per_group=1)


def sequential_offload(pipe: Any) -> None:
    cpu_offload(pipe.transformer, CPU)


def device_hooks(pipe: Any) -> None:
    for module in (pipe.transformer, *pipe.transformer.transformer_blocks):
        add_hook_to_module(module, AlignDevicesHook(execution_device=CPU, io_same_device=True), append=True)


def reuse(pipe: Any) -> None:
    omnireuse.enable(pipe, policy="residual_diff", region="blocks")


def another_shift(pipe: Any) -> None:
    pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)


def compiled(pipe: Any) -> None:
    pipe.transformer = torch.compile(pipe.transformer, backend="eager")


def moved(pipe: Any) -> None:
    # A move makes new storages, as here, and leaves values as they are.
    for weight in pipe.transformer.parameters():
        weight.data = weight.data.clone()


@pytest.mark.parametrize(
    "change",
    [nothing, model_offload, group_offload, sequential_offload, device_hooks, reuse, another_shift, compiled, moved],
)
def test_what_leaves_numbers_as_they_are_is_no_change(change: Callable[[Any], None]) -> None:
    pipe = flux()
    watch = ConditionsWatch(pipe)
    before = watch.now()
    change(pipe)
    assert before.unlike(watch.now()) is None
    assert before == watch.now()
    omnireuse.disable(pipe)


@pytest.mark.parametrize("name", TINY)
def test_two_pipelines_of_the_same_weights_are_under_the_same_conditions(name: str) -> None:
    one, other = TINY[name]().pipe, TINY[name]().pipe
    assert ConditionsWatch(one).now() == ConditionsWatch(other).now()


@pytest.mark.parametrize(
    ("torchs", "held"), [(subclass, "Doubled of bfloat16"), (parameter_class, "Packed of float32"), (nothing, "plain")]
)
def test_quantised_weights_have_a_digest(torchs: Callable[[Any], None], held: str) -> None:
    pipe, twin = flux(), flux()
    torchs(pipe)
    torchs(twin)
    origin = Origin.of(pipe)
    assert origin.weights is not None
    assert origin == Origin.of(twin)
    assert held in str(origin.holding)
    with torch.no_grad():
        weight = first_layer(twin).weight
        getattr(weight, "held", weight).mul_(1.01)
    assert Origin.of(twin).weights not in (None, origin.weights)


def test_the_method_of_quantisation_counts() -> None:
    pipe = flux()
    before = ConditionsWatch(pipe).now()
    pipe.transformer.register_to_config(quantization_config={"quant_method": "torchao", "group": 32})
    assert "plain tensors, torchao" in ConditionsWatch(pipe).now().holding
    assert before.unlike(ConditionsWatch(pipe).now()) is not None


def test_weights_that_are_not_in_memory_differ_from_all() -> None:
    pipe = flux()
    known = ConditionsWatch(pipe).now()
    pipe.transformer.to("meta")
    unknown = ConditionsWatch(pipe).now()
    assert unknown.weights is None
    for one, other in ((known, unknown), (unknown, known), (unknown, unknown)):
        assert "weights cannot be compared" in str(one.unlike(other))


# -- the watch ------------------------------------------------------------------------------------------------------


def test_where_nothing_has_changed_no_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = flux()
    watch = ConditionsWatch(pipe)
    before = watch.now()
    for module in ("profiles.conditions.held_by", "pipelines.snapshot.sampled"):
        monkeypatch.setattr(f"omnireuse.{module}", None)
    assert all(watch.now() is before for _ in range(3))


@pytest.mark.parametrize("sliced", ["its own", "another's"])
def test_a_slice_of_a_list_of_modules_is_no_change(sliced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Decoders and U-Nets of diffusers make one in each call, and torch says of it that a module has gained parts.
    pipe = flux()
    watch = ConditionsWatch(pipe)
    before = watch.now()
    monkeypatch.setattr("omnireuse.pipelines.snapshot.sampled", None)
    blocks = pipe.transformer.transformer_blocks if sliced == "its own" else pipe.vae.decoder.up_blocks
    assert len(blocks[:1]) == 1
    assert watch.now() is before


def test_the_pipeline_is_held_weakly() -> None:
    pipe = flux()
    gone = weakref.ref(pipe.transformer)
    watch = ConditionsWatch(pipe)
    watch.now()
    assert watch_of(pipe) is watch_of(pipe)
    del pipe
    gc.collect()
    assert gone() is None
    with pytest.raises(StateError, match="the pipeline is gone"):
        watch.now()


def test_threads_see_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = flux()
    watch = ConditionsWatch(pipe)
    barrier = threading.Barrier(4)

    def look() -> list[Conditions]:
        seen = []
        for _ in range(5):
            barrier.wait()
            seen.append(watch.now())
            if barrier.wait() == 0:
                in_place(pipe)
        return seen

    with ThreadPoolExecutor(4) as pool:
        seen = [each.result() for each in [pool.submit(look) for _ in range(4)]]
    assert all(each == seen[0] for each in seen)
    assert len(set(seen[0])) == 5


def test_conditions_survive_a_file(tmp_path: Path) -> None:
    pipe = flux()
    hook(pipe)
    now = ConditionsWatch(pipe).now()
    (tmp_path / "now.json").write_text(as_text(now, {}), "utf-8")
    assert read_record(Conditions, tmp_path / "now.json", {}, what="record", remedy="") == now
    assert hash(now) == hash(msgspec.structs.replace(now))


def test_a_guider_counts_with_its_settings() -> None:
    from diffusers import ClassifierFreeGuidance

    pipe = flux()
    pipe.guider = ClassifierFreeGuidance(guidance_scale=4.0)
    watch = ConditionsWatch(pipe)
    before = watch.now()
    pipe.guider = ClassifierFreeGuidance(guidance_scale=6.0)
    assert "guidance_scale=6.0" in str(before.unlike(watch.now()))
