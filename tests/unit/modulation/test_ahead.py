"""A new schedule or prompt brings in each projection once, and pictures keep their bits whatever is foreseen."""

import logging
from typing import Any
from unittest import mock

import diffusers
import pytest
import torch

import omnireuse
from omnireuse.modulation import ahead
from tests.helpers.tiny import Tiny, tensor

from .test_pipelines import KINDS
from .test_rows import Denoiser, equal, run


def installed(kind: str) -> tuple[Any, Any, Any]:
    """A plain pipeline, one whose weights are away, and its cache."""
    plain, t = KINDS[kind](), KINDS[kind]()
    cache = omnireuse.install_modulation_cache(t.pipe, release="disk")
    assert cache is not None
    for _ in range(2):
        t.run(steps=3)
    assert cache.details()["released"]
    return plain, t, cache


def brought_in(cache: Any) -> int:
    return int(cache.details()["brought_in"])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["qwen_image", "aura_flow", "cogview_4", "minimax_h3"])
def test_a_new_schedule_brings_in_each_projection_once(kind: str) -> None:
    plain, t, cache = installed(kind)
    assert torch.equal(t.run(steps=5), plain.run(steps=5))
    of_size = 2 * (kind == "cogview_4")  # not of the step
    assert brought_in(cache) == cache.details()["released"] - of_size
    t.run(steps=5)
    assert "0 projections computed in the last picture" in cache.summary()
    assert "bypassed_unforeseen" not in cache.details()


@torch.no_grad()
def test_so_does_the_schedule_of_a_sibling_with_a_scheduler_of_its_own() -> None:
    plain, t, cache = installed("qwen_image")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    sibling = diffusers.QwenImagePipeline.from_pipe(t.pipe, scheduler=scheduler)
    assert omnireuse.install_modulation_cache(sibling, release="disk") is cache
    plain.pipe.scheduler = scheduler
    assert torch.equal(Tiny(sibling, t.inputs).run(steps=5), plain.run(steps=5))
    assert brought_in(cache) == cache.details()["released"]


@torch.no_grad()
def test_so_does_a_new_prompt_for_each_branch() -> None:
    plain, t, cache = installed("flux")
    prompt = {"pooled_prompt_embeds": tensor(1, 32, seed=7), "negative_pooled_prompt_embeds": tensor(1, 32, seed=8)}
    assert torch.equal(t.run(steps=3, **prompt), plain.run(steps=3, **prompt))
    found = cache.details()
    assert found["released"] < found["brought_in"] <= 2 * found["released"]
    assert "bypassed_unforeseen" not in found


@torch.no_grad()
@pytest.mark.parametrize("first", ["cache", "reuse"])
def test_reuse_between_steps_is_not_asked_by_what_runs_ahead(first: str) -> None:
    plain, t, cache = installed("qwen_image")
    policy = omnireuse.EveryNth(every=2)
    with omnireuse.enable(plain.pipe, policy=policy):
        want = plain.run(steps=5)
    with omnireuse.enable(t.pipe, policy=policy):
        if first == "reuse":
            cache.close()
            cache = omnireuse.install_modulation_cache(t.pipe, release="disk")
            for _ in range(3):
                t.run(steps=3)
        assert torch.equal(t.run(steps=5), want)
    assert brought_in(cache) == cache.details()["released"]


@torch.no_grad()
def test_wrong_guesses_cost_nothing_but_time() -> None:
    plain, t, cache = installed("qwen_image")
    way = cache.tables[0]._ahead
    way._ways = (lambda t, dtype: torch.cat([(t[:1] / 1000).to(dtype), torch.rand(3)]),)
    assert torch.equal(t.run(steps=5), plain.run(steps=5))
    assert "bypassed_unforeseen" not in cache.details()  # the second step found the right way
    with mock.patch.object(ahead, "_run_to", side_effect=RuntimeError("a denoiser that cannot be called twice")):
        assert torch.equal(t.run(steps=4), plain.run(steps=4))
    assert cache.details()["bypassed_unforeseen"]


@torch.no_grad()
def test_a_denoiser_without_a_scheduler_computes_at_each_step(caplog: Any) -> None:
    plain, cached = Denoiser([0, 2], 64), Denoiser([0, 2], 64)
    cache = omnireuse.install_modulation_cache(cached, release="disk")
    assert cache is not None
    for _ in range(2):
        assert equal(run(plain), run(cached))
    with caplog.at_level(logging.INFO, "omnireuse"):
        assert equal(run(plain, prompt=1), run(cached, prompt=1))
    assert brought_in(cache) == cache.details()["bypassed_unforeseen"] == 8
    assert "unforeseen" in caplog.text


@torch.no_grad()
@pytest.mark.parametrize("hides", [False, True])
def test_a_bar_shows_what_takes_over_a_second(hides: bool) -> None:
    _, t, cache = installed("qwen_image")
    t.pipe.set_progress_bar_config(disable=hides)
    with mock.patch.object(ahead, "tqdm", wraps=ahead.tqdm) as bar:
        t.run(steps=5)
    (shown,) = bar.call_args_list
    assert shown.kwargs["delay"] == 1
    assert shown.kwargs["disable"] is hides
    assert len(shown.args[0]) > cache.details()["projections"]  # activations, too
