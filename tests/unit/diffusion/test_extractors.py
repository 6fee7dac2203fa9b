"""Models outside diffusers, served through a function that takes their forward apart."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from omnireuse.diffusion.cache.teacache import (
    CacheContext,
    TeaCacheBackend,
    TeaCacheConfig,
    apply_teacache_hook,
    get_extractor,
    register_extractor,
)
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import ConfigError, UnknownNameError, UnsupportedModelError, WrongTypeError
from tests.helpers.foreign import IDENTITY, Foreign, denoise, take_apart


def test_a_bare_module_is_served_through_its_extractor() -> None:
    register_extractor("Foreign", take_apart)
    assert get_extractor("Foreign") is take_apart
    module = Foreign()
    full = denoise(module)
    module.ran = 0
    handle = apply_teacache_hook(module, TeaCacheConfig(rel_l1_thresh=1e-9, coefficients=IDENTITY))
    assert torch.equal(denoise(module), full)
    assert module.ran == 8
    handle.disable()
    module.ran = 0
    with apply_teacache_hook(module, TeaCacheConfig(rel_l1_thresh=0.5, coefficients=IDENTITY)) as handle:
        handle.expect(8)
        reused = denoise(module)
        assert 2 <= module.ran < 8
        assert handle.events[-1].reason == "last"
        handle.expect(8)
        assert torch.equal(denoise(module), reused)
        assert {event.run for event in handle.events} == {1, 2}
    assert torch.equal(denoise(module), full)


def adapted(module: Foreign) -> torch.nn.Module:
    wrapped: torch.nn.Module = get_peft_model(module, LoraConfig(r=2, target_modules=["out"], init_lora_weights=False))
    return wrapped


WRAPPERS = [adapted, functools.partial(torch.compile, backend="eager")]


@pytest.mark.parametrize("wrap", WRAPPERS, ids=["peft", "torch.compile"])
def test_a_wrapped_module_is_served_through_the_extractor_of_what_is_inside(wrap: Any) -> None:
    register_extractor("Foreign", take_apart)
    inner = Foreign()
    module = wrap(inner)
    full = denoise(module)
    backend = TeaCacheBackend(DiffusionCacheConfig(rel_l1_thresh=1e-9, coefficients=IDENTITY))
    pipeline = SimpleNamespace(transformer=module)
    backend.enable(pipeline)
    assert torch.equal(denoise(module), full)
    backend.disable(pipeline)
    inner.ran = 0
    with apply_teacache_hook(module, TeaCacheConfig(rel_l1_thresh=0.5, coefficients=IDENTITY)) as handle:
        handle.expect(8)
        assert not torch.equal(denoise(module), full)
    assert handle.summary().reused_calls == 8 - inner.ran > 0
    assert torch.equal(denoise(module), full)


def test_a_model_without_extractor_or_declaration_is_refused() -> None:
    class Unheard(torch.nn.Module):
        pass

    config = TeaCacheConfig(coefficients=IDENTITY)
    with pytest.raises(UnknownNameError, match="Unheard"):
        apply_teacache_hook(Unheard(), config)
    with pytest.raises(UnsupportedModelError, match="no denoiser"):
        TeaCacheBackend(DiffusionCacheConfig()).enable(SimpleNamespace())
    with pytest.raises(UnknownNameError, match="register_extractor"):
        get_extractor("Unheard")
    with pytest.raises(WrongTypeError):
        register_extractor("Unheard", 3)  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError):
        register_extractor("", take_apart)


def good(**changes: Any) -> CacheContext:
    fields: dict[str, Any] = {
        "modulated_input": torch.ones(2, 3, 4),
        "hidden_states": torch.ones(2, 3, 4),
        "encoder_hidden_states": None,
        "temb": torch.ones(2, 4),
        "run_transformer_blocks": lambda: (torch.ones(2, 3, 4),),
        "postprocess": lambda hidden: hidden,
    }
    return CacheContext(**(fields | changes))


def test_a_good_context_validates() -> None:
    good().validate()
    good(extra_states={"a": 1}).validate(run_blocks=True)
    # Models with a zero condition double the time embedding.
    good(temb=torch.ones(4, 4)).validate(run_blocks=True)


def test_a_context_takes_its_fields_by_position() -> None:
    hidden, text, temb = torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(2, 4)
    context = CacheContext(hidden, hidden, text, temb, lambda: (hidden, text), lambda hidden: hidden, {"a": 1})
    context.validate(run_blocks=True)
    assert (context.encoder_hidden_states is text, context.temb is temb, context.extra_states) == (True, True, {"a": 1})


RETURNS: dict[str, Any] = {
    "(h, e)": lambda h, e: (h, e),
    "(h,)": lambda h, e: (h,),
    "h": lambda h, e: h,
    "[h, e]": lambda h, e: [h, e],
    "(h, None)": lambda h, e: (h, None),
}


@pytest.mark.parametrize("text", [True, False], ids=["with encoder states", "without"])
@pytest.mark.parametrize("returns", sorted(RETURNS))
def test_blocks_may_return_hidden_states_alone(returns: str, text: bool) -> None:
    def extract(module: Foreign, *args: Any, **kwargs: Any) -> CacheContext:
        context = take_apart(module, *args, **kwargs)
        run = context.run_transformer_blocks
        context.run_transformer_blocks = lambda: RETURNS[returns](*run())
        context.encoder_hidden_states = context.encoder_hidden_states if text else None
        return context

    class Returning(Foreign):
        pass

    register_extractor("Returning", extract)
    module = Returning()
    full = denoise(module)
    config = TeaCacheConfig(0.5, IDENTITY)
    if ", e" in returns and not text:
        with apply_teacache_hook(module, config) as handle:
            handle.expect(8)
            with pytest.raises(RuntimeError, match="return encoder states only if encoder_hidden_states is set"):
                denoise(module)
    else:
        with apply_teacache_hook(module, config) as handle:
            handle.expect(8)
            assert torch.equal(denoise(module), expected())
        assert handle.summary().reused_calls > 0
    assert torch.equal(denoise(module), full)


def expected() -> torch.Tensor:
    """What reuse of the first stream gives."""
    register_extractor("Foreign", take_apart)
    module = Foreign()
    with apply_teacache_hook(module, TeaCacheConfig(0.5, IDENTITY)) as handle:
        handle.expect(8)
        return denoise(module)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"modulated_input": [1.0]}, TypeError),
        ({"temb": None}, TypeError),
        ({"encoder_hidden_states": "text"}, TypeError),
        ({"run_transformer_blocks": None}, TypeError),
        ({"postprocess": 3}, TypeError),
        ({"extra_states": [1]}, TypeError),
        ({"modulated_input": torch.ones(3, 3, 4)}, ValueError),
        ({"encoder_hidden_states": torch.ones(3, 3, 4)}, ValueError),
        ({"modulated_input": torch.ones(())}, ValueError),
        ({"modulated_input": torch.ones(2, 0)}, ValueError),
        ({"hidden_states": torch.full((2, 3, 4), math.nan)}, ValueError),
        ({"temb": torch.ones(2, 4, device="meta")}, ValueError),
    ],
)
def test_a_bad_context_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        good(**changes).validate()


@pytest.mark.parametrize(
    "changes",
    [
        {"run_transformer_blocks": lambda: 1 / 0},
        {"run_transformer_blocks": lambda: None},
        {"run_transformer_blocks": lambda: ()},
        {"run_transformer_blocks": lambda: (None, torch.ones(2, 3, 4))},
        {"run_transformer_blocks": lambda: (torch.ones(2, 3, 4), torch.ones(2, 3, 4))},
        {"run_transformer_blocks": lambda: (torch.ones(2, 3, 4),) * 3, "encoder_hidden_states": torch.ones(2, 3, 4)},
        {"run_transformer_blocks": lambda: (torch.ones(2, 9, 4),)},
        {"postprocess": lambda hidden: hidden.no_such_thing},
    ],
)
def test_callables_are_tried_out_when_asked(changes: dict[str, Any]) -> None:
    good(**changes).validate()
    with pytest.raises(RuntimeError):
        good(**changes).validate(run_blocks=True)


def test_the_first_context_of_a_model_is_validated() -> None:
    class Sloppy(Foreign):
        pass

    register_extractor("Sloppy", lambda module, *a, **k: good(modulated_input=torch.ones(9, 3, 4)))
    module = Sloppy()
    with apply_teacache_hook(module, TeaCacheConfig(coefficients=IDENTITY)) as handle:
        handle.expect(8)
        with pytest.raises(ConfigError, match="batch size"):
            denoise(module)
