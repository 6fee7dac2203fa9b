"""Region `tail` and the residual threshold, against what is computed by hand beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import ResidualDiff, Steps, TeaCache
from omnireuse.arguments.targets import strategy_of
from omnireuse.errors import ConfigError
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.strategy import Strategy
from omnireuse.models import BLOCK_STACKS
from omnireuse.policies.base import StepView
from tests.helpers.tiny import TINY, Tiny

MODELS = ("flux", "qwen_image", "wan")
# Any drift passes.
LOOSE = {"residual_diff_threshold": 1e9, "max_warmup_steps": 2}


def blocks_of(tiny: Tiny) -> list[torch.nn.Module]:
    model = tiny.pipe.transformer
    return [block.module for block in BLOCK_STACKS[type(model).__name__].blocks_of(model)]


# -- never reusing changes nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_never_reusing_is_bit_equal_for_every_split(name: str) -> None:
    tiny = TINY[name]()
    full = tiny.run(steps=4)
    count = len(blocks_of(tiny))
    for first in range(1, count + 1):
        for last in (0, count - first):
            splits = {"first_blocks": first, "last_blocks": last}
            policy = ResidualDiff(residual_diff_threshold=1e-9)
            with omnireuse.enable(tiny.pipe, strategy_of(policy=policy, region="tail", **splits)) as handle:
                assert torch.equal(tiny.run(steps=4), full)
            assert handle.summary().calls == 8
    with omnireuse.enable(tiny.pipe, strategy_of(policy="never", region="tail", first_blocks=0)):
        assert torch.equal(tiny.run(steps=4), full)
    assert torch.equal(tiny.run(steps=4), full)


# -- a reused step by hand --------------------------------------------------------------------------------------------


class Watched:
    """The blocks of a tiny Flux and what went in and out of them at each step."""

    def __init__(self, tiny: Tiny) -> None:
        self.ran: list[int] = []
        self.outputs: list[dict[int, tuple[torch.Tensor, ...]]] = []
        self.inputs: list[dict[int, tuple[torch.Tensor, ...]]] = []
        self.leaving: list[torch.Tensor] = []
        self.embedded: list[torch.Tensor] = []
        model = tiny.pipe.transformer
        model.x_embedder.register_forward_hook(lambda _m, _a, out: self._begin(out))
        model.context_embedder.register_forward_hook(lambda _m, _a, out: self.texts.append(out.clone()))
        model.norm_out.register_forward_pre_hook(lambda _m, args: self.leaving.append(args[0].clone()))
        self.texts: list[torch.Tensor] = []
        self.blocks = blocks_of(tiny)
        for index, block in enumerate(self.blocks):
            block.register_forward_pre_hook(self._entering(index), with_kwargs=True)
            block.register_forward_hook(self._left(index))

    def _begin(self, embedded: torch.Tensor) -> None:
        self.embedded.append(embedded.clone())
        self.inputs.append({})
        self.outputs.append({})

    def _entering(self, index: int) -> Any:
        def hook(_module: Any, _args: Any, kwargs: Any) -> None:
            self.ran.append(index)
            self.inputs[-1][index] = (kwargs["encoder_hidden_states"].clone(), kwargs["hidden_states"].clone())

        return hook

    def _left(self, index: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            self.outputs[-1][index] = tuple(stream.clone() for stream in output)

        return hook


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)])
def test_a_reused_middle_is_entry_plus_residual(flux: Tiny, first: int, last: int) -> None:
    seen = Watched(flux)
    count = len(seen.blocks)
    policy = Steps(steps=(0, 2))
    with omnireuse.enable(flux.pipe, Strategy(policy=policy, region="tail", first_blocks=first, last_blocks=last)):
        flux.run(steps=5, guided=False)
    # Steps 0, 2 and 4 compute; the first and the last blocks run at every step.
    for index in range(count):
        runs = 5 if index < first or index >= count - last else 3
        assert seen.ran.count(index) == runs, index
    end = count - last
    for stream in (0, 1):
        residual = seen.outputs[2][end - 1][stream] - seen.inputs[2][first][stream]
        entry = (seen.texts[3], seen.embedded[3])[stream] if first == 0 else seen.outputs[3][first - 1][stream]
        if last:
            assert torch.equal(seen.inputs[3][end][stream], entry + residual)
        elif stream == 1:
            assert torch.equal(seen.leaving[3], entry + residual)


def test_the_outputs_of_the_middle_can_be_remembered_instead(flux: Tiny) -> None:
    seen = Watched(flux)
    with omnireuse.enable(
        flux.pipe,
        Strategy(policy=Steps(steps=(0, 2)), region="tail", last_blocks=1, prediction_target="output"),
    ):
        flux.run(steps=5, guided=False)
    for stream in (0, 1):
        assert torch.equal(seen.inputs[3][3][stream], seen.outputs[2][2][stream])


def test_additions_between_blocks_count_once_on_a_reused_step(flux: Tiny) -> None:
    # As a ControlNet adds after every block: what is added before the middle enters it, what is added within it is in
    # its residual, and what is added behind it the model adds itself. The addition changes from step to step.
    seen = Watched(flux)
    model = flux.pipe.transformer
    inner = type(model).forward

    def additions() -> dict[str, list[torch.Tensor]]:
        now = torch.full((1, 16, 32), 0.1 + 0.1 * len(seen.embedded))
        return {
            "controlnet_block_samples": [now, 2 * now],
            "controlnet_single_block_samples": [3 * now, 4 * now],
        }

    model.forward = lambda *a, **k: inner(model, *a, **(k | additions()))
    with omnireuse.enable(
        flux.pipe, Strategy(policy=Steps(steps=(0, 2)), region="tail", first_blocks=1, last_blocks=1)
    ):
        flux.run(steps=5, guided=False)
    at_2, at_3 = 0.3, 0.4
    entry_2, entry_3 = (seen.outputs[step][0][1] + torch.tensor(addition) for step, addition in ((2, at_2), (3, at_3)))
    # Between blocks 1 and 2 the addition is within the middle; behind block 2 it is made anew.
    expected = entry_3 + (seen.outputs[2][2][1] - entry_2) + 3 * at_3
    torch.testing.assert_close(seen.inputs[3][3][1], expected, rtol=1e-5, atol=1e-5)
    # And behind the last block too.
    torch.testing.assert_close(seen.leaving[3], seen.outputs[3][3][1] + 4 * at_3, rtol=1e-5, atol=1e-5)


def write_in_place(block: torch.nn.Module) -> None:
    inner = type(block).forward

    def forward(hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        encoder, hidden = inner(block, hidden_states, encoder_hidden_states, **kwargs)
        return encoder_hidden_states.copy_(encoder), hidden_states.copy_(hidden)

    block.forward = forward


def test_blocks_that_write_in_place_spoil_neither_residual_nor_signal(flux: Tiny) -> None:
    strategy = {"policy": ResidualDiff(**LOOSE), "region": "tail", "first_blocks": 1, "last_blocks": 1}
    with omnireuse.enable(flux.pipe, strategy_of(**strategy)) as handle:
        clean = flux.run(steps=6)
    drifts = [event.drift for event in handle.events]
    assert handle.summary().reused_calls > 0
    for block in flux.pipe.transformer.transformer_blocks:
        write_in_place(block)
    with omnireuse.enable(flux.pipe, strategy_of(**strategy)) as handle:
        assert torch.equal(flux.run(steps=6), clean)
    assert [event.drift for event in handle.events] == drifts


# -- the signal and its threshold -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_signal_is_measured_against_the_last_computed_step(flux: Tiny, first: int) -> None:
    seen = Watched(flux)
    policy = ResidualDiff(residual_diff_threshold=1e9, max_warmup_steps=1, max_continuous_cached_steps=2)
    with omnireuse.enable(flux.pipe, Strategy(policy=policy, region="tail", first_blocks=first)) as handle:
        flux.run(steps=8, guided=False)
    assert [event.reused for event in handle.events] == [False, True, True, False, True, True, False, False]
    residuals = [
        outputs[first - 1][1] - embedded for outputs, embedded in zip(seen.outputs, seen.embedded, strict=True)
    ]
    last = residuals[0]
    for event, now in list(zip(handle.events, residuals, strict=True))[1:]:
        expected = (last - now).abs().mean() / last.abs().mean()
        assert event.drift == pytest.approx(float(expected), rel=1e-5)
        if not event.reused:
            last = now


def test_each_branch_measures_its_own_signal() -> None:
    tiny = TINY["qwen_image"]()
    with omnireuse.enable(tiny.pipe, policy=ResidualDiff(**LOOSE), region="tail") as handle:
        tiny.run(steps=6)
    of = {branch: [e.drift for e in handle.events if e.branch == branch] for branch in ("cond", "uncond")}
    assert of["cond"] != of["uncond"]


@pytest.mark.parametrize("region", ["call", "blocks", "tail"])
def test_branches_that_go_together_follow_the_first(flux: Tiny, region: str) -> None:
    # Where branches decide apart, these do so.
    options = {"policy": ResidualDiff(residual_diff_threshold=0.9, max_warmup_steps=1), "region": region}
    if region == "blocks":
        options["policy"] = TeaCache(rel_l1_thresh=1.0, coefficients=(0, 0, 0, 1.0, 0))
    done = {}
    for together in (False, True):
        with omnireuse.enable(flux.pipe, strategy_of(**options, shared_cfg_decision=together)) as handle:
            flux.run(steps=10)
        for branch in ("cond", "uncond"):
            done[together, branch] = [event for event in handle.events if event.branch == branch]
        assert handle.summary().reused_calls > 0
    reused = {key: [event.reused for event in events] for key, events in done.items()}
    assert reused[True, "uncond"] == reused[True, "cond"]
    assert all(event.drift is None for event in done[True, "uncond"])
    assert {event.reason for event in done[True, "uncond"]} == {"first", "together", "last"}
    if region == "tail":  # the signals of the others hardly know the prompt
        assert reused[False, "uncond"] != reused[False, "cond"]


def test_a_decision_reads_one_figure_from_the_device(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    ratio = Agreement.ratio
    monkeypatch.setattr(Agreement, "ratio", lambda self, pairs: (reads.append(1), ratio(self, pairs))[1])
    with omnireuse.enable(flux.pipe, policy=ResidualDiff(**LOOSE), region="tail") as handle:
        flux.run(steps=6)
    # All but the first decision of each branch.
    assert len(reads) == len(handle.events) - 2


def drive(policy: Any, drifts: list[float | None], total: int | None = None) -> list[bool]:
    state, done = policy.start(), []
    for index, drift in enumerate(drifts):
        view = StepView(index=index, total=total, drift=drift)
        done.append(policy.wants_reuse(state, view))
        state = policy.after(state, view, done[-1])
    return done


def test_the_threshold_does_not_accumulate() -> None:
    policy = ResidualDiff(residual_diff_threshold=0.24, max_warmup_steps=1, max_continuous_cached_steps=-1)
    assert drive(policy, [None, *[0.2] * 500]) == [False, *[True] * 500]
    # One step far off computes, and the next close one is reused.
    assert drive(policy, [None, 0.2, 0.25, 0.2, 0.24, 0.1]) == [False, True, False, True, False, True]


def test_warm_up_and_limits() -> None:
    close = [None, *[0.0] * 11]
    kept = {"residual_diff_threshold": 0.1}
    assert drive(ResidualDiff(max_warmup_steps=4, **kept), close) == [
        *[False] * 4, *[True] * 3, False, *[True] * 3, False,
    ]  # fmt: skip
    free = {"max_warmup_steps": 1, "max_continuous_cached_steps": -1, **kept}
    assert drive(ResidualDiff(max_cached_steps=5, **free), close) == [False, *[True] * 5, *[False] * 6]
    assert not any(drive(ResidualDiff(max_cached_steps=0, **free), close))
    assert not any(drive(ResidualDiff(max_continuous_cached_steps=0, **kept), close))
    assert drive(ResidualDiff(max_warmup_steps=0, **kept), [None, None, float("nan"), 0.0]) == [False] * 3 + [True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("residual_diff_threshold", 0),
        ("residual_diff_threshold", float("nan")),
        ("max_warmup_steps", -1),
        ("max_cached_steps", -2),
        ("max_continuous_cached_steps", 1.5),
    ],
)
def test_every_field_is_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"ResidualDiff\({name}=.*{name} must"):
        ResidualDiff(**{name: value})


# -- splits that cannot be, and stacks whose streams join -------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"region": "tail", "first_blocks": 4, "last_blocks": 1}, "at most the 4 blocks of FluxTransf.*, got 5"),
        ({"region": "tail", "first_blocks": -1}, "first_blocks must be a whole number of at least 0"),
        ({"region": "tail", "last_blocks": True}, "last_blocks must be a whole number of at least 0"),
        ({"region": "tail", "first_blocks": 0}, "first_blocks must be at least 1 if their residual is watched"),
        ({"region": "blocks", "first_blocks": 1}, "first_blocks must be left out in region 'blocks'"),
        ({"region": "step", "last_blocks": 1}, "last_blocks must be left out in region 'step'"),
        ({"region": "blocks", "signal": "first_residual"}, "signal must be"),
        ({"region": "step", "shared_cfg_decision": True}, "shared_cfg_decision must be left out in region 'step'"),
    ],
)
def test_splits_that_cannot_be_are_refused_before_anything_happens(
    flux: Tiny, options: dict[str, Any], message: str
) -> None:
    before = [type(each) for each in (flux.pipe, flux.pipe.transformer, *blocks_of(flux))]
    with pytest.raises(ConfigError, match=message):
        omnireuse.enable(flux.pipe, strategy_of(policy="residual_diff", **options))
    assert [type(each) for each in (flux.pipe, flux.pipe.transformer, *blocks_of(flux))] == before


def test_a_split_without_a_middle_computes_everything_and_says_so(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    full = flux.run()
    with omnireuse.enable(
        flux.pipe, Strategy(policy=ResidualDiff(**LOOSE), region="tail", first_blocks=2, last_blocks=2)
    ) as h:
        assert "all 4 blocks always run" in caplog.text
        assert torch.equal(flux.run(), full)
    assert (h.summary().reused_calls, h.summary().computed_calls) == (0, 12)


# -- several pipelines, and any combination ---------------------------------------------------------------------------


def test_two_pipelines_of_one_class_do_not_disturb_each_other() -> None:
    here, there = TINY["flux"](), TINY["flux"]()
    full = there.run(steps=6)
    strategies = [
        {"policy": ResidualDiff(**LOOSE), "region": "tail", "first_blocks": 1},
        {"policy": ResidualDiff(**LOOSE), "region": "tail", "first_blocks": 2, "last_blocks": 1},
    ]
    alone = []
    for strategy in strategies:
        with omnireuse.enable(here.pipe, strategy_of(**strategy)):
            assert torch.equal(there.run(steps=6), full)
            alone.append(here.run(steps=6))
    assert not torch.equal(*alone)
    with (
        omnireuse.enable(here.pipe, strategy_of(**strategies[0])),
        omnireuse.enable(there.pipe, strategy_of(**strategies[1])),
    ):
        for _ in range(2):
            assert torch.equal(here.run(steps=6), alone[0])
            assert torch.equal(there.run(steps=6), alone[1])
    assert torch.equal(here.run(steps=6), full)
    assert torch.equal(there.run(steps=6), full)


def test_the_residual_of_other_regions_is_measured_since_the_last_computed_step_too(flux: Tiny) -> None:
    # In region "call" the signal is the latents: they move away from those of the last computed step.
    policy = ResidualDiff(residual_diff_threshold=1e9, max_warmup_steps=1, max_continuous_cached_steps=-1)
    with omnireuse.enable(flux.pipe, policy=policy, region="call") as handle:
        flux.run(steps=8, guided=False)
    drifts = [event.drift for event in handle.events[1:]]
    assert drifts == sorted(drifts)


def test_the_first_blocks_signal_of_the_stack_serves_the_tail_as_well(flux: Tiny) -> None:
    policy = TeaCache(rel_l1_thresh=1e-9)
    drifts = []
    for region in ("tail", "blocks"):
        with omnireuse.enable(flux.pipe, policy=policy, region=region, signal="modulated_input") as handle:
            flux.run(steps=4)
        drifts.append([event.drift for event in handle.events])
    assert drifts[0] == drifts[1]
