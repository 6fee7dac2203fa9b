"""What must be as it was for a lean call: references and all else that a call is given, but for the target's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from peft import LoraConfig

import omnireuse
from omnireuse import EveryNth
from omnireuse.references import References
from omnireuse.summary.summary import ReferenceCalls
from tests.helpers.editing import EDITING
from tests.helpers.tiny import Tiny

Change = Callable[[dict[str, Any]], dict[str, Any]]
ONE_FULL = References(full_every=None, full_last=False)


class Loop:
    """Calls of a pipeline's denoiser by hand, a step each, with the arguments of a run of its own."""

    def __init__(self, tiny: Tiny, plan: References = ONE_FULL) -> None:
        self.pipe, calls = tiny.pipe, list[dict[str, Any]]()
        hook = self.pipe.transformer.register_forward_pre_hook(
            lambda _module, _args, given: calls.append(given), with_kwargs=True
        )
        tiny.run(steps=2)
        hook.remove()
        self.given = calls[0]
        self.handle = omnireuse.enable(self.pipe, policy=EveryNth(every=1), region="call", references=plan)
        self.pipe.scheduler.set_timesteps(8, mu=1.0)

    def call(self, **changed: Any) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = self.pipe.transformer(**self.given | changed)[0]
        self.handle.advance()
        return result

    @property
    def counts(self) -> tuple[int, int]:
        calls = self.handle.summary().references
        assert isinstance(calls, ReferenceCalls)
        return calls.full, calls.lean


@pytest.fixture
def kontext() -> Iterator[Loop]:
    loop = Loop(EDITING["kontext"]())
    yield loop
    loop.handle.disable()


def _more(name: str, row: int = -1) -> Change:
    """The argument with another last row: in hidden_states that of a reference."""

    def change(given: dict[str, Any]) -> dict[str, Any]:
        value = given[name].clone()
        value[..., row, :] += 1
        return {name: value}

    return change


CHANGES: dict[str, Change] = {
    "a reference": _more("hidden_states"),
    "the text": _more("encoder_hidden_states"),
    "the length of the text": lambda given: {
        "encoder_hidden_states": given["encoder_hidden_states"][:, :4],
        "txt_ids": given["txt_ids"][:4],
    },
    "a vector of the text": _more("pooled_projections"),
    "a position": _more("img_ids"),
    "an option of attention": lambda given: {"joint_attention_kwargs": {"scale": 0.5}},
    "the batch": lambda given: {
        name: torch.cat([given[name]] * 2)
        for name in ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", CHANGES)
def test_another_condition_makes_the_next_call_full(kontext: Loop, what: str) -> None:
    kontext.call()
    kontext.call()
    assert kontext.counts == (1, 1)
    changed = CHANGES[what](kontext.given)
    result = kontext.call(**changed)
    assert kontext.counts == (2, 1)
    kontext.call(**changed)
    assert kontext.counts == (2, 2), "what is kept now belongs to the changed call"
    kontext.handle.disable()
    with torch.no_grad():
        expected = kontext.pipe.transformer(**kontext.given | changed)[0]
    assert torch.equal(result, expected[:, : result.shape[1]])


def test_the_target_and_the_timestep_may_change(kontext: Loop) -> None:
    kontext.call()
    kontext.call(**_more("hidden_states", row=0)(kontext.given), timestep=kontext.given["timestep"] * 0.5)
    assert kontext.counts == (1, 1)


def test_a_reference_that_was_changed_in_place_is_seen(kontext: Loop) -> None:
    kontext.call()
    kontext.given["hidden_states"][:, -1] += 1
    kontext.call()
    kontext.given["encoder_hidden_states"][:, -1] += 1
    kontext.call()
    assert kontext.counts == (3, 0)


def test_another_mask_makes_the_next_call_full() -> None:
    loop = Loop(EDITING["qwen_edit"]())
    mask = torch.ones(1, loop.given["encoder_hidden_states"].shape[1], dtype=torch.bool)
    with loop.handle:
        loop.call(encoder_hidden_states_mask=mask)
        loop.call(encoder_hidden_states_mask=mask.clone())
        assert loop.counts == (1, 1)
        mask = mask.clone()
        mask[:, -1] = False
        full = loop.call(encoder_hidden_states_mask=mask)
        assert loop.counts == (2, 1)
        lean = loop.call(encoder_hidden_states_mask=mask)
        assert loop.counts == (2, 2)
    torch.testing.assert_close(lean, full, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Already found")
def test_another_scale_in_a_later_layer_makes_the_next_call_full() -> None:
    tiny = EDITING["kontext"]()
    model = tiny.pipe.transformer
    for name, layer in (("first", "to_k"), ("second", "to_v")):
        model.add_adapter(LoraConfig(r=2, target_modules=[layer], init_lora_weights=False), name)
    loop = Loop(tiny)
    with loop.handle:
        for second, counts in ((1.0, (1, 0)), (1.0, (1, 1)), (0.5, (2, 1)), ({"transformer_blocks.1": 0.5}, (3, 1))):
            model.set_adapters(["first", "second"], weights=[1.0, second])
            loop.call()
            assert loop.counts == counts
        model.delete_adapters("second")
        model.add_adapter(LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False), "second")
        for second, counts in ((1.0, (4, 1)), (1.0, (4, 2)), (0.5, (5, 2))):
            model.set_adapters(["first", "second"], weights=[1.0, second])
            loop.call()
            assert loop.counts == counts


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_autocast_makes_the_next_call_full(kontext: Loop) -> None:
    kontext.call()
    with torch.autocast("cpu", torch.bfloat16):
        kontext.call()
        assert kontext.counts == (2, 0)
        kontext.call()
    assert kontext.counts == (2, 1)


def test_the_plan_says_which_calls_are_full() -> None:
    loop = Loop(EDITING["kontext"](), References(full_every=3))
    with loop.handle:
        kinds = []
        for _ in range(8):
            before = loop.counts[0]
            loop.call()
            kinds.append(loop.counts[0] > before)
    assert kinds == [True, False, False, True, False, False, True, False], "every third"
