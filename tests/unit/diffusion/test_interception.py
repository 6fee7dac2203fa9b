"""How reuse gets in: no type and no attribute changes, nothing stays behind, and other objects notice nothing."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    FluxImg2ImgPipeline,
    FluxPipeline,
)

import omnireuse
from omnireuse import EveryNth
from omnireuse.diffusion.cache import TeaCacheConfig, apply_teacache_hook
from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.interception import MethodCall, intercept
from tests.helpers.sweep import crossed
from tests.helpers.tiny import FLUX_CALL, TINY, Tiny

REGIONS = ("step", "call", "blocks", "tail")
FIXED: dict[str, Any] = {"policy": EveryNth(every=2), "forecaster": "hold"}
SLOT = "_compiled_call_impl"


def parts(pipe: Any) -> list[Any]:
    """All that reuse stands before."""
    return [pipe, pipe.scheduler, *pipe.transformer.modules()]


def methods(pipe: Any) -> list[Any]:
    """The methods that reuse stands before, as their classes have them."""
    classes = type(pipe), type(pipe.scheduler), type(pipe.transformer)
    names = ("__call__",), ("step", "set_timesteps"), ("__call__", "cache_context")
    return [getattr(each, name) for each, own in zip(classes, names, strict=True) for name in own]


@pytest.mark.parametrize("region", REGIONS)
def test_types_and_attributes_are_what_they_were(flux: Tiny, region: str) -> None:
    flux.run()
    types = [type(part) for part in parts(flux.pipe)]
    attributes = [set(vars(part)) for part in parts(flux.pipe)]
    plain = methods(flux.pipe)
    with omnireuse.enable(flux.pipe, **FIXED, region=region) as handle:
        flux.run()
        assert handle.summary().reused_calls > 0
        assert [type(part) for part in parts(flux.pipe)] == types
        assert [set(vars(part)) for part in parts(flux.pipe)[:2]] == attributes[:2]
        # A module has what torch's own module.compile() gives it.
        assert all(
            set(vars(part)) - before <= {SLOT} for part, before in zip(parts(flux.pipe), attributes, strict=True)
        )
    assert [set(vars(part)) for part in parts(flux.pipe)] == attributes
    assert methods(flux.pipe) == plain


def test_signatures_and_names_of_methods_are_kept(flux: Tiny) -> None:
    plain = [(method.__qualname__, inspect.signature(method)) for method in methods(flux.pipe)]
    with omnireuse.enable(flux.pipe):
        assert [(method.__qualname__, inspect.signature(method)) for method in methods(flux.pipe)] == plain


@pytest.mark.parametrize(
    "copier",
    [copy.copy, copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_of_parts_are_plain(flux: Tiny, copier: Any) -> None:
    with omnireuse.enable(flux.pipe, **FIXED, region="blocks") as handle:
        for part in (flux.pipe.scheduler, flux.pipe.transformer, flux.pipe.transformer.transformer_blocks[0]):
            twin = copier(part)
            assert type(twin) is type(part)
            assert SLOT not in vars(twin)
            assert set(vars(twin)) == set(vars(part)) - {SLOT}
        twin_scheduler = copier(flux.pipe.scheduler)
        twin_scheduler.set_timesteps(4)
        copier(flux.pipe.transformer)
        assert handle.summary().calls == handle.summary().calls_outside == 0


def test_an_enabled_pipeline_is_saved_as_a_plain_one(flux: Tiny, tmp_path: Path) -> None:
    flux.pipe.save_pretrained(tmp_path / "plain")
    with omnireuse.enable(flux.pipe, **FIXED, region="blocks"):
        flux.pipe.save_pretrained(tmp_path / "enabled")
    files = [path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    for path in files:
        assert (tmp_path / "plain" / path).read_bytes() == (tmp_path / "enabled" / path).read_bytes()


# -- pipelines that share parts -----------------------------------------------------------------------------------


def image_run(pipe: Any, flux: Tiny) -> torch.Tensor:
    given = flux.inputs(guided=False, batch=1) | {"num_inference_steps": 8, "strength": 0.75, "output_type": "latent"}
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    result = pipe(**given, image=image, generator=torch.Generator().manual_seed(0))[0]
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("region", REGIONS)
def test_from_pipe_works_while_enabled_and_gives_a_pipeline_without_reuse(flux: Tiny, region: str) -> None:
    full = flux.run()
    plain = image_run(quiet(FluxImg2ImgPipeline.from_pipe(flux.pipe)), flux)
    with omnireuse.enable(flux.pipe, **FIXED, region=region) as handle:
        reused = flux.run()
        decided = handle.summary().calls
        image = quiet(FluxImg2ImgPipeline.from_pipe(flux.pipe))
        back = quiet(FluxPipeline.from_pipe(image))
        assert image.transformer is back.transformer is flux.pipe.transformer
        assert image.scheduler is back.scheduler is flux.pipe.scheduler
        for _ in range(2):
            # Its calls go through the parts that the enabled pipeline has, and are only counted.
            outside = handle.summary().calls_outside
            assert torch.equal(image_run(image, flux), plain)
            assert handle.summary().calls_outside == outside + 6
            assert torch.equal(Tiny(back, flux.inputs).run(), full)
            assert handle.summary().calls_outside == outside + 6 + 12
            assert handle.summary().calls == decided
            assert torch.equal(flux.run(), reused)
            decided = handle.summary().calls
        with omnireuse.enable(image, **FIXED, region=region) as second:
            assert not torch.equal(image_run(image, flux), plain)
            assert second.summary().reused_calls > 0
            assert torch.equal(flux.run(), reused)
            assert torch.equal(Tiny(back, flux.inputs).run(), full)
    assert torch.equal(flux.run(), full)


def test_a_loop_that_was_left_in_the_middle_leaves_nothing_to_a_pipeline_that_shares_the_denoiser(flux: Tiny) -> None:
    other = TINY["flux"]()
    other.pipe.transformer = flux.pipe.transformer
    full = other.run(seed=5)
    with omnireuse.enable(flux.pipe, **FIXED, region="call") as handle, torch.no_grad():
        flux.pipe.scheduler.set_timesteps(6)
        given = FLUX_CALL
        timestep = flux.pipe.scheduler.timesteps[:1] / 1000
        flux.pipe.transformer(hidden_states=torch.ones(1, 16, 16), timestep=timestep, **given)
        assert handle.summary().calls == 1
        assert torch.equal(other.run(seed=5), full)
        assert handle.summary().calls == 1


def quiet(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe


# -- the class that defines a method ------------------------------------------------------------------------------


class Calling:
    def step(self, value: int) -> int:
        """Add one."""
        return value + 1


class Calls(Calling):
    def step(self, value: int) -> int:
        return super().step(10 * value)


def doubled(call: MethodCall) -> Any:
    return 2 * call.make()


def test_what_calls_the_method_of_its_base_is_intercepted_once() -> None:
    plain, special = Calling(), Calls()
    before = Calling.step, Calls.step
    layers = [intercept(each, object(), {"step": doubled}) for each in (plain, special)]
    assert (plain.step(1), special.step(1)) == (4, 22)
    assert (Calling().step(1), Calls().step(1)) == (2, 11)
    layers.append(intercept(special, object(), {"step": lambda call: call.make() + 1}))
    assert special.step(1) == 23
    for layer in layers:
        layer.undo()
        layer.undo()
    assert (Calling.step, Calls.step) == before
    assert (plain.step(1), special.step(1)) == (2, 11)


def test_a_method_that_was_wrapped_by_others_meanwhile_stays_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = Calling(), Calling()
    original = Calling.step
    layer = intercept(plain, object(), {"step": doubled})
    placed = Calling.step
    monkeypatch.setattr(Calling, "step", lambda self, value: placed(self, value) + 100)
    assert (plain.step(1), other.step(1)) == (104, 102)
    second = intercept(other, object(), {"step": doubled})
    assert (plain.step(1), other.step(1)) == (104, 204)
    layer.undo()
    assert (plain.step(1), other.step(1)) == (102, 204)
    again = intercept(plain, object(), {"step": doubled})
    assert (plain.step(1), other.step(1)) == (204, 204)
    again.undo()
    second.undo()
    assert (plain.step(1), other.step(1)) == (102, 102)
    monkeypatch.undo()
    assert plain.step(1) == 2
    monkeypatch.setattr(Calling, "step", original)


def test_an_interception_that_nobody_holds_ends_and_leaves_the_class(flux: Tiny) -> None:
    plain, before = Calling(), Calling.step
    intercept(plain, object(), {"step": doubled})
    gc.collect()
    assert Calling.step is before
    assert plain.step(1) == 2


def test_a_method_that_is_an_attribute_of_the_object_is_refused(flux: Tiny) -> None:
    flux.pipe.scheduler.step = flux.pipe.scheduler.step
    before = methods(flux.pipe)
    with pytest.raises(UnsupportedModelError, match=r"Scheduler.step was replaced on this object"):
        omnireuse.enable(flux.pipe)
    assert SLOT not in vars(flux.pipe.transformer)
    assert methods(flux.pipe) == before


# -- the life of an enabled pipeline ------------------------------------------------------------------------------


@pytest.mark.parametrize("region", REGIONS)
def test_an_enabled_pipeline_that_nobody_holds_is_freed_and_gives_its_parts_back(region: str) -> None:
    tiny = TINY["flux"]()
    transformer, scheduler, before = tiny.pipe.transformer, tiny.pipe.scheduler, methods(tiny.pipe)
    full = tiny.run()
    handle = omnireuse.enable(tiny.pipe, **FIXED, region=region)
    tiny.run()
    pipe = weakref.ref(tiny.pipe)
    del tiny
    gc.collect()
    assert pipe() is None
    assert handle.summary().runs == 1
    assert not any(SLOT in vars(module) for module in transformer.modules())
    again = TINY["flux"]()
    again.pipe.transformer, again.pipe.scheduler = transformer, scheduler
    assert methods(again.pipe) == before
    assert torch.equal(again.run(), full)


@pytest.mark.parametrize("region", REGIONS)
def test_nobody_need_keep_the_handle(flux: Tiny, region: str) -> None:
    full = flux.run()
    omnireuse.enable(flux.pipe, **FIXED, region=region)
    reused = flux.run()
    assert not torch.equal(reused, full)
    flux.pipe.transformer = copy.deepcopy(flux.pipe.transformer)
    flux.pipe.scheduler = copy.deepcopy(flux.pipe.scheduler)
    gc.collect()
    assert torch.equal(flux.run(), reused)


def test_a_hook_on_a_bare_denoiser_lasts_as_long_as_the_denoiser(flux: Tiny) -> None:
    gc.collect()
    before = vars(FluxPipeline)["__call__"]
    config = TeaCacheConfig(rel_l1_thresh=0.2, transformer_type="FluxTransformer2DModel")
    apply_teacache_hook(flux.pipe.transformer, config)
    gc.collect()
    assert SLOT in vars(flux.pipe.transformer)
    transformer = weakref.ref(flux.pipe.transformer)
    del flux.pipe.transformer
    gc.collect()
    assert transformer() is None
    assert vars(FluxPipeline)["__call__"] is before


# -- off, forced to compute, or removed --------------------------------------------------------------------------------


COMPUTING = {
    "never": {"policy": "never"},
    "every step": {"policy": EveryNth(every=1), "forecaster": "blend"},
    "threshold 0+": {"policy": omnireuse.TeaCache(rel_l1_thresh=1e-12), "forecaster": "polynomial"},
    "easy_cache": {"policy": omnireuse.EasyCache(threshold=1e-12)},
    "sea_cache": {"policy": omnireuse.SeaCache(threshold=1e-12)},
    "error_control": {"policy": omnireuse.ErrorControl(tolerance=1e-12)},
}


def regions_of(tiny: Tiny) -> list[str]:
    return ["step", "call"] + (["blocks"] if hasattr(tiny.pipe, "transformer") else [])


@pytest.mark.parametrize(("kind", "guided"), crossed(sorted(COMPUTING), [True, False]))
def test_computing_everything_is_bit_equal(tiny: Tiny, kind: str, guided: bool) -> None:
    full = tiny.run(guided=guided)
    for region in regions_of(tiny)[: 2 if kind in ("easy_cache", "sea_cache") else 3]:
        with omnireuse.enable(tiny.pipe, region=region, **COMPUTING[kind]) as handle:
            assert torch.equal(tiny.run(guided=guided), full)
        assert handle.summary().computed_calls > 0
        assert handle.summary().reused_calls == 0


def test_disabling_restores_the_untouched_pipeline(tiny: Tiny) -> None:
    full = tiny.run()
    parts = [
        tiny.pipe,
        tiny.pipe.scheduler,
        *(m for m in tiny.pipe.components.values() if isinstance(m, torch.nn.Module)),
    ]
    modules = [module for part in parts if isinstance(part, torch.nn.Module) for module in part.modules()]
    before = [(type(each), set(vars(each))) for each in (*parts, *modules)]
    bound = (tiny.pipe.scheduler.step, tiny.pipe.scheduler.set_timesteps)
    for region in regions_of(tiny):
        handle = omnireuse.enable(tiny.pipe, policy="fixed", region=region)
        assert not torch.equal(tiny.run(), full)
        handle.disable()
        handle.disable()
        assert [(type(each), set(vars(each))) for each in (*parts, *modules)] == before
        assert (tiny.pipe.scheduler.step, tiny.pipe.scheduler.set_timesteps) == bound
        assert torch.equal(tiny.run(), full)


def test_reuse_is_repeatable(tiny: Tiny) -> None:
    with omnireuse.enable(tiny.pipe, speedup=2):
        assert torch.equal(tiny.run(), tiny.run())


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pipe: pickle.loads(pickle.dumps(pipe))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_an_enabled_pipeline_is_a_plain_pipeline(flux: Tiny, copier: Any) -> None:
    full = flux.run()
    with omnireuse.enable(flux.pipe, policy="fixed", region="blocks") as handle:
        reused = flux.run()
        twin = Tiny(copier(flux.pipe), flux.inputs)
        decisions = handle.summary().calls
        assert torch.equal(twin.run(), full)
        assert type(twin.pipe) is type(TINY["flux"]().pipe)
        assert handle.summary().calls == decisions
        assert torch.equal(flux.run(), reused)
