"""`torch.compile` beside reuse: what is compiled stays whole, and nothing compiles again from step to step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

import omnireuse
from omnireuse import EveryNth
from omnireuse.policies.base import Policy
from tests.helpers.sweep import sweep
from tests.helpers.tiny import Tiny, qwen_image, small_flux

FIXED = EveryNth(every=2)


def in_place(tiny: Tiny, backend: Any) -> None:
    tiny.pipe.transformer.compile(backend=backend)


def wrapped(tiny: Tiny, backend: Any) -> None:
    tiny.pipe.transformer = torch.compile(tiny.pipe.transformer, backend=backend)


def blocks(tiny: Tiny, backend: Any) -> None:
    tiny.pipe.transformer.compile_repeated_blocks(backend=backend)


@pytest.fixture(autouse=True)
def counter() -> Iterator[CompileCounter]:
    """Counts the graphs that are compiled; torch.compile forgets them all before and after."""
    torch._dynamo.reset()
    counters.clear()
    yield CompileCounter()
    torch._dynamo.reset()


@pytest.fixture
def flux() -> Tiny:
    """One block of each kind, as each costs seconds to compile."""
    return small_flux()


def eager(region: str, policy: Policy = FIXED, **call: Any) -> torch.Tensor:
    tiny = small_flux()
    with omnireuse.enable(tiny.pipe, policy=policy, region=region):
        return tiny.run(**call)


CASES = [(in_place, "step"), (wrapped, "call"), (blocks, "blocks"), (blocks, "tail")]
QUICK = [(in_place, "step"), (blocks, "blocks")]


@pytest.mark.parametrize(("compiled", "region"), sweep(CASES, quick=QUICK))
def test_nothing_compiles_again_from_step_to_step_nor_from_enabling_to_enabling(
    flux: Tiny, counter: CompileCounter, compiled: Callable[..., None], region: str
) -> None:
    full, expected = flux.run(), eager(region)
    compiled(flux, counter)
    assert torch.equal(flux.run(), full)
    plain = counter.frame_count
    for _ in range(2):
        with omnireuse.enable(flux.pipe, policy=FIXED, region=region) as handle:
            assert torch.equal(flux.run(), expected)
            assert counter.frame_count == plain
            assert handle.summary().reused_calls > 0
            assert torch.equal(flux.run(), expected)
    assert torch.equal(flux.run(), full)
    assert counter.frame_count == plain
    assert not counters["graph_break"]


@pytest.mark.parametrize(("compiled", "region"), sweep([*CASES, (in_place, "blocks")], quick=QUICK))
def test_a_model_may_be_compiled_after_enabling(
    flux: Tiny, counter: CompileCounter, compiled: Any, region: str
) -> None:
    full, expected = flux.run(), eager(region)
    with omnireuse.enable(flux.pipe, policy=FIXED, region=region) as handle:
        compiled(flux, counter)
        assert torch.equal(flux.run(), expected)
        graphs = counter.frame_count
        # A model compiled whole runs as it was written in a region between its blocks.
        assert bool(graphs) is (compiled is blocks or region in ("step", "call"))
        assert handle.summary().runs == 1
        assert {event.branch for event in handle.events} == ({"step"} if region == "step" else {"cond", "uncond"})
    assert torch.equal(flux.run(), full)
    assert counter.frame_count == (graphs or 1)


def test_blocks_that_share_compiled_code_still_do_so(counter: CompileCounter) -> None:
    # More blocks than torch.compile puts up with recompilations of one piece of code.
    tiny = qwen_image()
    kind = type(tiny.pipe.transformer)
    config = dict(tiny.pipe.transformer.config) | {"num_layers": torch._dynamo.config.recompile_limit + 2}
    tiny.pipe.transformer = kind.from_config(config).eval()
    blocks(tiny, counter)
    tiny.run()
    plain = counter.frame_count
    with omnireuse.enable(tiny.pipe, policy=FIXED, region="blocks"):
        tiny.run()
    assert counter.frame_count == plain


@pytest.mark.parametrize(
    ("compiled", "region"), sweep([(in_place, "blocks"), (wrapped, "tail")], quick=[(in_place, "blocks")])
)
def test_a_model_compiled_whole_runs_uncompiled_in_regions_between_its_blocks(
    flux: Tiny, counter: CompileCounter, region: str, compiled: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "omnireuse")
    full, expected = flux.run(), eager(region)
    compiled(flux, counter)
    assert torch.equal(flux.run(), full)
    whole = counter.frame_count
    with omnireuse.enable(flux.pipe, policy=FIXED, region=region) as handle:
        assert torch.equal(flux.run(), expected)
        assert handle.summary().reused_calls > 0
    assert "compiled whole" in caplog.text
    # Its graph is as it was.
    assert torch.equal(flux.run(), full)
    assert counter.frame_count == whole


SHAPES = ({}, {"height": 16, "batch": 2})


@pytest.mark.sweep
def test_other_sizes_and_batches_compile_as_often_as_without_reuse(flux: Tiny, counter: CompileCounter) -> None:
    flux.pipe.transformer.compile(backend=counter, fullgraph=True)
    expected = [eager("step", **shape) for shape in SHAPES]
    for shape in SHAPES:
        flux.run(**shape)
    plain = counter.frame_count
    for _ in range(2):
        with omnireuse.enable(flux.pipe, policy=FIXED) as handle:
            for shape, same in zip(SHAPES, expected, strict=True):
                assert torch.equal(flux.run(**shape), same)
            assert handle.summary().reused_calls > 0
    assert counter.frame_count == plain
    assert not counters["graph_break"]


def test_a_wrapped_model_is_known_by_its_own_name(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines negate the outputs of some models, and their wrappers have other names."""
    monkeypatch.setattr("omnireuse.hooks.regions.call._NEGATED", {"FluxTransformer2DModel"})
    options: dict[str, Any] = {"policy": FIXED, "forecaster": "blend", "region": "call"}
    with omnireuse.enable(flux.pipe, **options):
        expected = flux.run()
    wrapped(flux, "eager")
    with omnireuse.enable(flux.pipe, **options):
        assert torch.allclose(flux.run(), expected, atol=1e-5)
