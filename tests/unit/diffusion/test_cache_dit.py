"""The backend on the real `cache-dit` library: what it does is counted, and nothing of it stays behind."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model

import omnireuse
from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import ConfigError, MissingExtraError, StateError, UnsupportedModelError
from omnireuse.policies import scm_mask
from tests.helpers.tiny import TINY, Tiny

# The library takes 1 for "any drift passes".
LOOSE = {"residual_diff_threshold": 1.0, "max_warmup_steps": 2}


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cache_dit", None)
    for make in (
        lambda: get_cache_backend("cache_dit", {}),
        lambda: omnireuse.enable(TINY["flux"]().pipe, "cache_dit"),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install 'omnireuse\[cache-dit\]'"):
            make()
    assert issubclass(MissingExtraError, ImportError)


cache_dit = pytest.importorskip("cache_dit", reason="the extra cache-dit is not installed")


def contents(tiny: Tiny) -> list[Any]:
    """Every attribute of the pipeline and of all modules of its denoiser, in order."""
    model = tiny.pipe.transformer
    found: list[Any] = [type(tiny.pipe), dict(vars(tiny.pipe)), list(model.state_dict())]
    for name, module in model.named_modules():
        plain = {key: value for key, value in vars(module).items() if not key.startswith("_") or callable(value)}
        found.append((name, type(module), sorted(vars(module)), plain, list(module._modules)))
    return found


@pytest.mark.parametrize("name", ["flux", "qwen_image", "wan"])
def test_it_reuses_counts_and_leaves_nothing_behind(name: str) -> None:
    tiny = TINY[name]()
    full = tiny.run(steps=8)
    before = contents(tiny)
    handle = omnireuse.enable(tiny.pipe, "cache_dit", **LOOSE, max_cached_steps=3)
    reused = tiny.run(steps=8)
    summary = handle.summary()
    assert 0 < summary.reused_calls <= 6
    assert (summary.calls, summary.steps, summary.runs) == (16, 8, 1)
    assert "cache_dit" in str(summary)
    assert not torch.equal(reused, full)
    assert torch.equal(tiny.run(steps=8), reused)
    handle.disable()
    assert torch.equal(tiny.run(steps=8), full)
    assert contents(tiny) == before


@pytest.mark.parametrize("guided", [True, False])
def test_every_branch_has_its_own_context(guided: bool) -> None:
    # Flux under true guidance calls its denoiser twice a step, which the library does not expect of it.
    tiny = TINY["flux"]()
    options = {"scm_steps_mask_policy": "fast", "scm_steps_policy": "static", "max_warmup_steps": 1}
    with omnireuse.enable(tiny.pipe, "cache_dit", **options) as handle:
        for steps in (8, 12):
            tiny.run(steps=steps, guided=guided)
    branches = {event.branch for event in handle.events}
    assert branches == ({"cond", "uncond"} if guided else {"cond"})
    for branch in branches:
        done = tuple(int(not event.reused) for event in handle.events if event.branch == branch)
        # The mask follows the step count.
        assert done == scm_mask("fast", 8) + scm_mask("fast", 12)


def test_never_reusing_is_bit_equal(flux: Tiny) -> None:
    full = flux.run(steps=6)
    with omnireuse.enable(flux.pipe, "cache_dit", residual_diff_threshold=1e-9) as handle:
        assert torch.equal(flux.run(steps=6), full)
        # A call that belongs to no run is passed on.
        given = {
            "hidden_states": torch.ones(1, 16, 16),
            "encoder_hidden_states": torch.ones(1, 6, 32),
            "pooled_projections": torch.ones(1, 32),
            "timestep": torch.ones(1),
            "img_ids": torch.zeros(16, 3),
            "txt_ids": torch.zeros(6, 3),
        }
        with torch.no_grad():
            outside = flux.pipe.transformer(**given).sample
    assert handle.summary().reused_calls == 0
    assert handle.summary().calls_outside == 1
    with torch.no_grad():
        assert torch.equal(flux.pipe.transformer(**given).sample, outside)


def adapted(model: torch.nn.Module) -> torch.nn.Module:
    return get_peft_model(model, LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False)).eval()


WRAPPERS = [adapted, functools.partial(torch.compile, backend="eager")]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", WRAPPERS, ids=["peft", "torch.compile"])
def test_a_wrapped_denoiser_is_served(flux: Tiny, wrap: Any) -> None:
    flux.pipe.transformer = wrap(flux.pipe.transformer)
    full = flux.run(steps=8)
    with omnireuse.enable(flux.pipe, "cache_dit", residual_diff_threshold=1e-9):
        assert torch.equal(flux.run(steps=8), full)
    with omnireuse.enable(flux.pipe, "cache_dit", **LOOSE, max_cached_steps=3) as handle:
        assert not torch.equal(flux.run(steps=8), full)
    assert handle.summary().reused_calls == 6
    assert torch.equal(flux.run(steps=8), full)


def test_the_library_agrees_with_the_native_cache() -> None:
    # One block list, one measure: both decide alike and both add the residual of the middle.
    tiny = TINY["wan"]()
    options = {"residual_diff_threshold": 0.15, "max_warmup_steps": 2, "max_continuous_cached_steps": 2}
    done, results = [], []
    for name in ("cache_dit", "db_cache"):
        with omnireuse.enable(tiny.pipe, name, **options) as handle:
            results.append(tiny.run(steps=9, guided=False))
        # The native cache computes the last step as well.
        done.append([event.reused for event in handle.events][:-1])
        drifts = [event.drift for event in handle.events]
        assert any(drift is not None and drift > 0 for drift in drifts)
    assert done[0] == done[1]
    assert True in done[0]
    torch.testing.assert_close(results[0], results[1], rtol=0.05, atol=0.05)


def test_forecasts_and_forced_refreshes_reach_the_library(flux: Tiny) -> None:
    results = []
    for options in ({}, {"enable_taylorseer": True, "taylorseer_order": 2}, {"force_refresh_step_hint": 4}):
        with omnireuse.enable(flux.pipe, "cache_dit", **LOOSE, **options) as handle:
            results.append(flux.run(steps=9))
        assert handle.summary().reused_calls > 0
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    # Behind a forced refresh the warm-up begins anew.
    done = [event.reused for event in handle.events if event.branch == "cond"]
    assert done[4:6] == [False, False]


def test_two_pipelines_of_one_class_do_not_disturb_each_other() -> None:
    here, there = TINY["flux"](), TINY["flux"]()
    full = there.run(steps=7)
    with omnireuse.enable(here.pipe, "cache_dit", **LOOSE):
        reused = here.run(steps=7)
        assert torch.equal(there.run(steps=7), full)
        with omnireuse.enable(there.pipe, "cache_dit", **LOOSE):
            assert torch.equal(there.run(steps=7), reused)
            assert torch.equal(here.run(steps=7), reused)
        assert torch.equal(there.run(steps=7), full)
        assert torch.equal(here.run(steps=7), reused)
    assert torch.equal(here.run(steps=7), full)


def test_an_exception_drops_the_state_and_the_next_run_is_clean(flux: Tiny) -> None:
    def stop(_pipe: Any, step: int, _t: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == 3:
            raise KeyError
        return kwargs

    with omnireuse.enable(flux.pipe, "cache_dit", **LOOSE):
        reused = flux.run(steps=7)
        with pytest.raises(KeyError):
            flux.run(steps=7, callback_on_step_end=stop)
        assert torch.equal(flux.run(steps=7), reused)


def test_what_it_cannot_serve_is_refused_and_undone(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(flux)
    with pytest.raises(
        ConfigError,
        match=r"enable\(Fn_compute_blocks=4, .*at most the 4 blocks of each block list of FluxTransf.*got 5",
    ):
        omnireuse.enable(flux.pipe, "cache_dit", Fn_compute_blocks=4, Bn_compute_blocks=1)
    with pytest.raises(UnsupportedModelError, match="cache-dit does not know Linear"):
        omnireuse.enable(SimpleNamespace(transformer=torch.nn.Linear(1, 1)), "cache_dit")
    with omnireuse.enable(flux.pipe), pytest.raises(StateError, match="already enabled"):
        omnireuse.enable(flux.pipe, "cache_dit")

    def fail(*_args: Any, **_kwargs: Any) -> None:
        flux.pipe.transformer._is_cached = True
        raise RuntimeError("half way")

    with monkeypatch.context() as patched:
        patched.setattr(cache_dit, "enable_cache", fail)
        with pytest.raises(RuntimeError, match="half way"):
            omnireuse.enable(flux.pipe, "cache_dit")
    assert contents(flux) == before
    cache_dit.enable_cache(flux.pipe.transformer)
    with pytest.raises(StateError, match="cache-dit is already enabled on this FluxTransformer2DModel"):
        omnireuse.enable(flux.pipe, "cache_dit")


def test_a_group_is_refused(flux: Tiny) -> None:
    backend = get_cache_backend("cache_dit", DiffusionCacheConfig())
    assert backend is not None
    with pytest.raises(ConfigError, match="group must be None"):
        omnireuse.enable(flux.pipe, "cache_dit", group=dist.ProcessGroup(0, 1))
