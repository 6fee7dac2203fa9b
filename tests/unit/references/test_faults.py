"""What cannot be lean is full, said in one line and counted; what cannot be asked for is an error."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import Flux2KleinKVPipeline

import omnireuse
from omnireuse import EveryNth, Strategy
from omnireuse.errors import ConfigError, WrongTypeError
from omnireuse.references import DECLARED, References
from omnireuse.references.attention import free_bytes
from tests.helpers.editing import EDITING, picture
from tests.helpers.tiny import TINY, Tiny

ALWAYS = EveryNth(every=1)
FULL = "full calls"


def run(tiny: Tiny, plan: Any = True, steps: int = 4, **call: Any) -> tuple[torch.Tensor, omnireuse.Summary]:
    with omnireuse.enable(tiny.pipe, policy=ALWAYS, references=plan) as handle:
        return tiny.run(steps=steps, **call), handle.summary()


def fail_lean_calls(pipe: Any, _patch: pytest.MonkeyPatch) -> None:
    def fail(_module: Any, given: Any) -> None:
        if given[0].shape[1] == 16:  # the target's tokens alone
            raise RuntimeError("no such kernel")

    pipe.transformer.x_embedder.register_forward_pre_hook(fail)


def break_keys(pipe: Any, _patch: pytest.MonkeyPatch, value: float = float("nan")) -> None:
    def broken(_module: Any, _given: Any, result: torch.Tensor) -> torch.Tensor:
        return result.index_fill(1, torch.tensor([result.shape[1] - 1]), value)

    pipe.transformer.single_transformer_blocks[1].attn.to_v.register_forward_hook(broken)


def leave_no_memory(_pipe: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("omnireuse.references.attention.free_bytes", lambda _device: 1000)


def attend_in_its_own_way(pipe: Any, _patch: pytest.MonkeyPatch) -> None:
    block = pipe.transformer.transformer_blocks[0].attn

    class Own(type(block.processor)):  # type: ignore[misc]  # a class that is read
        def __call__(self, attn: Any, hidden_states: Any, encoder_hidden_states: Any = None, *_: Any, **__: Any) -> Any:
            return hidden_states, encoder_hidden_states

    block.set_processor(Own())


def disorder(pipe: Any, _patch: pytest.MonkeyPatch) -> None:
    class Disordered(type(pipe)):  # type: ignore[misc]  # a class that is read
        def prepare_latents(self, *args: Any, **kwargs: Any) -> Any:
            *others, ids = super().prepare_latents(*args, **kwargs)
            ids[-1, 0] = 0
            return *others, ids

    pipe.__class__ = Disordered


FAULTS: list[tuple[Callable[..., None], str, int]] = [
    (fail_lean_calls, "step 1, branch 0: a lean call failed with RuntimeError: no such kernel", 8),
    (break_keys, "step 0, branch 0: keys or values of attention 3 are NaN or infinite", 8),
    (partial(break_keys, value=float("inf")), "step 0, branch 0: keys or values of attention 3 are NaN or infinite", 8),
    (leave_no_memory, "GiB are needed, and 0.00 GiB are free on cpu; references='host'", 8),
    (attend_in_its_own_way, "3 of 4 attentions were seen", 8),
    (disorder, "tokens of the target follow those of a reference", 0),
]


@pytest.mark.parametrize(("fault", "said", "full"), FAULTS)
def test_a_fault_makes_the_run_full_and_is_said_once(
    fault: Callable[..., None],
    said: str,
    full: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny = EDITING["kontext"]()
    fault(tiny.pipe, monkeypatch)
    expected = tiny.run(steps=4)
    latents, summary = run(tiny)
    torch.testing.assert_close(latents, expected, rtol=0, atol=0, equal_nan=True)
    assert summary.fallbacks == {FULL: 1}
    assert summary.references is not None
    assert (summary.references.full, summary.references.lean) == (full, 0)
    assert fault is not leave_no_memory or summary.references.kept_bytes == 0
    assert caplog.text.count(said) == 1
    assert caplog.text.count("references=False asks for no lean calls") == 1


def test_a_denoiser_compiled_meanwhile_makes_calls_full(caplog: pytest.LogCaptureFixture) -> None:
    tiny = EDITING["kontext"]()
    expected = tiny.run(steps=2)
    with omnireuse.enable(tiny.pipe, policy=ALWAYS, references=True) as handle:
        tiny.pipe.transformer.compile(backend="eager")
        latents = tiny.run(steps=2)
        assert handle.summary().fallbacks == {FULL: 1}
    torch.testing.assert_close(latents, expected, rtol=1e-4, atol=1e-5)
    assert "0 of 4 attentions were seen" in caplog.text


def test_what_cannot_be_compared_makes_calls_full(caplog: pytest.LogCaptureFixture) -> None:
    tiny = EDITING["kontext"]()
    expected = tiny.run(steps=4)
    latents, summary = run(tiny, joint_attention_kwargs={"more": object()})
    assert torch.equal(latents, expected)
    assert summary.fallbacks == {FULL: 1}
    assert "what joint_attention_kwargs (object) holds cannot be compared between calls" in caplog.text


def test_free_memory_of_the_host_counts_what_files_take() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is None or free >= 2**20
    assert free_bytes(torch.device("meta")) is None


FLUX, QWEN = DECLARED["FluxTransformer2DModel"], DECLARED["QwenImageTransformer2DModel"]
TOKENS = {"hidden_states": torch.zeros(1, 6, 4), "encoder_hidden_states": torch.zeros(1, 3, 4)}
IDS = torch.tensor([[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1], [2, 0, 0], [2, 0, 1]])


def test_references_of_several_sizes_are_counted_together() -> None:
    split = FLUX.split(TOKENS | {"img_ids": IDS})
    assert (split.text, split.target, split.references) == (3, 2, 4)  # type: ignore[union-attr]
    split = QWEN.split(TOKENS | {"img_shapes": [[(1, 1, 1), (1, 2, 2), (1, 1, 1)]]})
    assert (split.text, split.target, split.references) == (3, 1, 5)  # type: ignore[union-attr]
    assert FLUX.split(TOKENS | {"img_ids": IDS * 0}) is None
    assert QWEN.split(TOKENS | {"img_shapes": [[(1, 2, 3)]]}) is None


@pytest.mark.parametrize(
    ("declared", "given", "why"),
    [
        (FLUX, {"img_ids": IDS[:5]}, r"img_ids have another form \(\(5, 3\)\)"),
        (FLUX, {"img_ids": None}, r"img_ids have another form \(NoneType\)"),
        (FLUX, {"img_ids": IDS[[0, 2, 1, 3, 4, 5]]}, "tokens of the target follow those of a reference"),
        (FLUX, {"img_ids": torch.stack([IDS, IDS + 1])}, "img_ids differ between the samples"),
        (FLUX, {"img_ids": IDS, "controlnet_block_samples": []}, "controlnet_block_samples is given"),
        (QWEN, {"img_shapes": [[(1, 1, 2), (1, 1, 2)]]}, "img_shapes declare 4 tokens, and 6 are given"),
        (QWEN, {"img_shapes": [[(1, 1, 2), (1, 2, 2)], [(1, 1, 4), (1, 1, 2)]]}, "img_shapes differ between"),
        (QWEN, {"img_shapes": [(1, 1, 2)]}, "img_shapes have another form"),
        (QWEN, {"img_shapes": None}, "img_shapes have another form"),
        (QWEN, {"img_shapes": [[(2, 3)]]}, "img_shapes have another form"),
        (QWEN, {"hidden_states": torch.zeros(1, 2, 3, 4)}, "hidden_states and encoder_hidden_states are not"),
    ],
)
def test_calls_of_another_form_have_no_split(declared: Any, given: dict[str, Any], why: str) -> None:
    found = declared.split(TOKENS | given)
    assert isinstance(found, str)
    assert re.match(why, found)


def test_a_call_without_a_picture_has_no_full_and_no_lean_calls() -> None:
    tiny = EDITING["kontext"]()
    expected = tiny.run(steps=3, image=None)
    latents, summary = run(tiny, steps=3, image=None)
    assert torch.equal(latents, expected)
    assert summary.references is not None
    assert (summary.references.full, summary.references.lean) == (0, 0)
    assert not summary.fallbacks


def klein_kv() -> Any:
    return Flux2KleinKVPipeline(**EDITING["flux_2_klein"]().pipe.components)


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (lambda: TINY["flux"]().pipe, {}, r"FluxPipeline gets no reference tokens that are declared"),
        (lambda: TINY["wan"]().pipe, {"policy": ALWAYS}, r"WanPipeline gets no reference tokens that are declared"),
        (klein_kv, {}, r"Flux2KleinKVPipeline keeps keys and values of its references itself"),
        (lambda: EDITING["kontext"]().pipe, {"backend": "tea_cache"}, r"regions 'step' and 'call', got a named cache"),
        (lambda: EDITING["kontext"]().pipe, {"policy": ALWAYS, "region": "blocks"}, r"got region 'blocks'"),
        (lambda: EDITING["kontext"]().pipe, {"tolerance": 0.05}, r"nobody has measured tolerance with lean calls"),
    ],
)
@pytest.mark.parametrize("references", [True, "host", References()])
def test_what_does_not_go_with_lean_calls_is_an_error(
    make: Callable[[], Any], given: dict[str, Any], message: str, references: Any
) -> None:
    pipe = make()
    with pytest.raises(ConfigError, match=rf"enable\(references=.*\): .*{message}"):
        omnireuse.enable(pipe, references=references, **given)
    assert omnireuse.handle_of(pipe) is None


@pytest.mark.parametrize("references", [None, False])
def test_without_lean_calls_any_pipeline_will_do(references: Any) -> None:
    for pipe in (TINY["flux"]().pipe, klein_kv()):
        with omnireuse.enable(pipe, references=references) as handle:
            assert handle.summary().references is None


def test_a_compiled_denoiser_is_an_error() -> None:
    pipe = EDITING["kontext"]().pipe
    pipe.transformer.compile(backend="eager")
    with pytest.raises(ConfigError, match="the denoiser of FluxKontextPipeline is compiled"):
        omnireuse.enable(pipe, references=True)


@pytest.mark.parametrize("references", ["gpu", 1, 4.0, []])
def test_another_kind_of_value_is_an_error(references: Any) -> None:
    with pytest.raises(WrongTypeError, match="references must be None, True, False or 'host', got"):
        omnireuse.enable(EDITING["kontext"]().pipe, references=references)


@pytest.mark.parametrize("given", [{"full_every": 0}, {"full_every": 1.5}, {"full_every": -1}])
def test_a_plan_out_of_range_is_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        References(**given)


def test_a_strategy_of_another_region_is_an_error() -> None:
    strategy = Strategy(policy=ALWAYS, region="blocks")
    with pytest.raises(ConfigError, match="got region 'blocks'"):
        omnireuse.enable(EDITING["kontext"]().pipe, strategy, references=True)


def test_somebody_else_may_stand_around_the_attention() -> None:
    tiny = EDITING["kontext"]()
    module = sys.modules[type(tiny.pipe.transformer).__module__]
    original = module.dispatch_attention_fn
    try:
        with omnireuse.enable(tiny.pipe, policy=ALWAYS, references=True):
            inner = module.dispatch_attention_fn
            module.dispatch_attention_fn = lambda *args, **kwargs: inner(*args, **kwargs)
            around = module.dispatch_attention_fn
            tiny.run(steps=2)
        assert module.dispatch_attention_fn is around, "what somebody else has put there stays"
        latents = tiny.run(steps=2)
    finally:
        module.dispatch_attention_fn = original
    assert torch.equal(latents, tiny.run(steps=2, image=picture()))
