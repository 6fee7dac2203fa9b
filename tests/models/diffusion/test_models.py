"""Every declared model in region `blocks`: exact where it computes, entry plus residual where it reuses."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch.utils import _pytree as pytree

import omnireuse
from omnireuse import Steps
from omnireuse.errors import StateError, UnsupportedModelError
from omnireuse.models import BLOCK_STACKS, UNSUPPORTED
from omnireuse.named.published import published_rows
from tests.helpers.sweep import sweep
from tests.helpers.tiny import tensor
from tests.models.diffusion.denoisers import DENOISERS, Denoiser, denoiser

VARIANTS = {
    f"{name} {words}": partial(denoiser, name, **sizes)
    for name, words, sizes in (
        ("AuraFlowTransformer2DModel", "without single blocks", {"num_single_dit_layers": 0}),
        ("HunyuanVideoTransformer3DModel", "by token replacement", {"image_condition_type": "token_replace"}),
        ("QwenImage21Transformer2DModel", "with one time for all", {"causal_condition": False}),
    )
}
# One of each: streams joined or apart, one list of blocks or two, skips between blocks, time for each token, conditions
# added between blocks, several outputs.
QUICK = {
    "ChromaTransformer2DModel",
    "CogVideoXTransformer3DModel",
    "FluxTransformer2DModel",
    "HunyuanDiT2DModel",
    "HunyuanVideoTransformer3DModel by token replacement",
    "LTX2VideoTransformer3DModel",
    "PriorTransformer",
    "SD3Transformer2DModel",
    "WanVACETransformer3DModel",
    "ZImageTransformer2DModel",
}
STEPS = 4
REUSED = 2  # holds what step 1 computed

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:In CPU autocast, but the target dtype:UserWarning"),
]


class Pipeline:
    """A denoiser and a scheduler, as rollout code holds them."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.transformer = denoiser.model
        self.scheduler = FlowMatchEulerDiscreteScheduler()
        self.inputs = denoiser.inputs

    @torch.no_grad()
    def run(self, inputs_of: tuple[int, ...] = tuple(range(STEPS)), texts: tuple[int, ...] = (6, 4)) -> list[Any]:
        """The outputs of every step, each on inputs of its own and once for each number of text tokens."""
        self.scheduler.set_timesteps(len(inputs_of))
        outputs = []
        for t, step in zip(self.scheduler.timesteps, inputs_of, strict=True):
            outputs.append([leaves_of(self.transformer(**self.inputs(step, text))) for text in texts])
            self.scheduler.step(torch.zeros(1), t, torch.zeros(1))
        return outputs


def leaves_of(output: Any) -> list[torch.Tensor]:
    output = output if isinstance(output, tuple) else output[0]
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def equal(ours: Any, theirs: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True))


@pytest.fixture(params=sweep(sorted({**DENOISERS, **VARIANTS}), quick=QUICK))
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    return Pipeline({**DENOISERS, **VARIANTS}[request.param]())


def test_every_declared_model_is_tried() -> None:
    assert set(DENOISERS) == set(BLOCK_STACKS)


@pytest.mark.parametrize("watching", ["modulated_input", "none"])
def test_computing_everything_is_bit_equal(pipeline: Pipeline, watching: str) -> None:
    plain = pipeline.run()
    with omnireuse.enable(pipeline, policy="never", region="blocks", signal=watching) as handle:
        assert equal(pipeline.run(), plain)
    assert handle.summary().computed_calls == 2 * STEPS
    drifts = [event.drift for event in handle.events if event.step]
    assert all(drift is not None and 0 < drift < float("inf") for drift in drifts) == (watching == "modulated_input")


def test_a_reused_call_is_entry_plus_residual_through_the_output_layers(pipeline: Pipeline) -> None:
    plain = pipeline.run()
    by_hand = [by_hand_reuse(pipeline, text) for text in (6, 4)]
    with omnireuse.enable(pipeline, policy=Steps(steps=(0, 1, 3)), region="blocks"):
        reusing = pipeline.run()
    assert equal(reusing[:REUSED] + reusing[REUSED + 1 :], plain[:REUSED] + plain[REUSED + 1 :])
    assert not equal(reusing[REUSED], plain[REUSED])
    for ours, theirs in zip(pytree.tree_leaves(reusing[REUSED]), pytree.tree_leaves(by_hand), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def by_hand_reuse(pipeline: Pipeline, text: int) -> list[torch.Tensor]:
    """What the reused step must give: the last block of the plain model is made to return entry + residual."""
    model = pipeline.transformer
    stack = BLOCK_STACKS[type(model).__name__]
    lists = [getattr(model, name) for name in stack.lists if name not in stack.bypass and len(getattr(model, name))]
    first, last = lists[0][0], lists[-1][-1]
    names = list(inspect.signature(type(first).forward).parameters)[1:]
    entries: list[list[torch.Tensor]] = []
    leaving: list[Any] = []

    def note_entry(_module: Any, args: Any, kwargs: Any) -> None:
        given = dict(zip(names, args, strict=False)) | kwargs
        entries.append([given[stream].clone() for stream in stack.streams])

    def replace(_module: Any, _args: Any, output: Any) -> Any:
        leaving.append(output)
        if len(leaving) == 1:
            return output
        (before, now), after = entries, leaving[0]
        if isinstance(after, torch.Tensor):
            return after + torch.cat(now, dim=1) - torch.cat(before, dim=1)
        return tuple(a if a is None else n + (a - b) for a, b, n in zip(after, before, now, strict=True))

    hooks = [
        first.register_forward_pre_hook(note_entry, with_kwargs=True),
        last.register_forward_hook(replace),
    ]
    model(**pipeline.inputs(REUSED - 1, text))
    result = leaves_of(model(**pipeline.inputs(REUSED, text)))
    for hook in hooks:
        hook.remove()
    return result


def test_disabling_leaves_nothing(pipeline: Pipeline) -> None:
    def state() -> list[Any]:
        parts = [*pipeline.transformer.modules(), pipeline.scheduler]
        return [(type(part), set(vars(part))) for part in parts]

    plain = pipeline.run()
    before = state()
    handle = omnireuse.enable(pipeline, policy="fixed", region="blocks")
    assert state() != before
    pipeline.run()
    handle.disable()
    assert state() == before
    assert equal(pipeline.run(), plain)


def test_what_a_model_writes_in_place_between_blocks_does_not_spoil_the_entry() -> None:
    # As Chroma adds the residuals of a ControlNet after each single block.
    pipeline = Pipeline(DENOISERS["ChromaTransformer2DModel"]())
    control = [tensor(1, 9, 16, seed=8)] * 2
    inner = pipeline.inputs
    pipeline.inputs = lambda step, text: inner(step, text) | {"controlnet_single_block_samples": control}
    plain = pipeline.run((0, 1, 1, 3))
    with omnireuse.enable(pipeline, policy=Steps(steps=(0, 1, 3)), region="blocks"):
        reusing = pipeline.run((0, 1, 1, 3))
    torch.testing.assert_close(reusing[REUSED][0][0], plain[REUSED][0][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes", "added"),
    [
        ("WanVACETransformer3DModel", {"vace_layers": [0, 2]}, "control hint"),
        ("WanAnimateTransformer3DModel", {"num_layers": 3}, "face"),
    ],
)
def test_what_is_added_after_the_last_block_is_refused(name: str, sizes: dict[str, Any], added: str) -> None:
    pipeline = Pipeline(denoiser(name, **sizes))
    with pytest.raises(UnsupportedModelError, match=rf"{added} is added after its last block.*use region 'call'"):
        omnireuse.enable(pipeline, policy="fixed", region="blocks")


@pytest.mark.parametrize(("skipped", "which"), [(0, "first"), (2, "last")])
def test_a_model_that_leaves_out_an_end_of_its_stack_is_told_so(skipped: int, which: str) -> None:
    # As skip-layer guidance may ask of SD3.
    pipeline = Pipeline(DENOISERS["SD3Transformer2DModel"]())
    inner = pipeline.inputs
    pipeline.inputs = lambda step, text: inner(step, text) | {"skip_layers": [skipped]}
    with (
        omnireuse.enable(pipeline, policy="fixed", region="blocks"),
        pytest.raises(StateError, match=rf"did not run its {which} block.*use region 'call' or 'step'"),
    ):
        pipeline.run()


@pytest.mark.parametrize("model", sorted(UNSUPPORTED))
def test_models_without_a_stack_say_why(model: str) -> None:
    pipeline = Pipeline(Denoiser(type(model, (torch.nn.Module,), {})(), lambda _step, _text: {}))
    with pytest.raises(UnsupportedModelError, match=rf"cannot serve {model}: .*use region 'step' or 'call'"):
        omnireuse.enable(pipeline, policy="fixed", region="blocks")


def test_no_model_is_declared_and_refused_and_published_signals_are_known() -> None:
    assert not set(UNSUPPORTED) & set(BLOCK_STACKS)
    for row in published_rows("teacache_coefficients"):
        stack = BLOCK_STACKS.get(row["transformer_class"])
        rows = [
            each
            for each in published_rows("teacache_coefficients")
            if stack and each["transformer_class"] == stack.model
        ]
        assert stack is None or stack.signal_name in {each["signal"] for each in rows}
