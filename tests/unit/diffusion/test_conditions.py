"""What changes in the middle of a run is noticed: the step is computed, and what was remembered is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel
from peft import LoraConfig

import omnireuse
from omnireuse.loop.conditions import CallConditions
from tests.helpers import tiny
from tests.helpers.sweep import crossed
from tests.helpers.tiny import Tiny, tensor
from tests.models.diffusion.pipelines import image

pytestmark = pytest.mark.filterwarnings("ignore:.*FluxPosEmbed")  # deprecated, and used by the ControlNet of diffusers

STEPS, SWITCH = 20, 7
COMPUTED = omnireuse.Steps(steps=(0, 1, 2, 5, 12, 16))


@dataclass
class Case:
    """A pipeline, and what changes of it; `change` returns what a callback returns."""

    tiny: Tiny
    change: Callable[[Any], dict[str, Any]]
    names: list[str] = field(default_factory=lambda: ["prompt_embeds"])

    def run(self, at: tuple[int, ...] = (SWITCH,), **call: Any) -> torch.Tensor:
        def callback(pipe: Any, step: int, _: Any, given: dict[str, Any]) -> dict[str, Any]:
            return self.change(given) if step + 1 in at else {}

        given = {"callback_on_step_end": callback, "callback_on_step_end_tensor_inputs": ["latents", *self.names]}
        return self.tiny.run(steps=STEPS, **given, **call)


def replaced(name: str) -> Case:
    made = tiny.flux()
    return Case(made, lambda given: {name: given[name] + tensor(*given[name].shape, seed=9)}, [name])


def written_in_place() -> Case:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        given["prompt_embeds"].mul_(-1.0)
        return {}

    return Case(tiny.flux(), change)


def swapped_in_place() -> Case:
    made = tiny.flux()
    model: FluxTransformer2DModel = made.pipe.transformer
    model.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))

    def change(_: Any) -> dict[str, Any]:
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.data.copy_(tensor(*weight.shape, seed=8))  # as PEFT does in a compiled model
        return {}

    return Case(made, change)


def swapped_by_name() -> Case:
    made = tiny.flux()
    queries = {name: layer for name, layer in made.pipe.transformer.named_modules() if name.endswith(".to_q")}

    def adapter(seed: int) -> dict[str, torch.Tensor]:
        found = {}
        for name, layer in queries.items():
            found[f"transformer.{name}.lora_A.weight"] = tensor(2, layer.in_features, seed=seed)
            found[f"transformer.{name}.lora_B.weight"] = tensor(layer.out_features, 2, seed=seed + 1)
        return found

    made.pipe.load_lora_weights(adapter(20), adapter_name="style")
    return Case(made, lambda _: made.pipe.load_lora_weights(adapter(50), adapter_name="style", hotswap=True) or {})


def other_checkpoint() -> Case:
    made = tiny.flux()
    other = {name: 1.1 * value for name, value in made.pipe.transformer.state_dict().items()}
    return Case(made, lambda _: made.pipe.transformer.load_state_dict(other) and {})


def scaled_adapter() -> Case:
    made = image.ip_adapter()
    return Case(made, lambda _: made.pipe.set_ip_adapter_scale(0.2) or {})


def other_control() -> Case:
    made = tiny.flux_control()
    images: list[torch.Tensor] = []
    forward = made.pipe.controlnet.forward

    def given(*args: Any, **kwargs: Any) -> Any:
        images.append(kwargs["controlnet_cond"])
        return forward(*args, **kwargs)

    made.pipe.controlnet.forward = given
    return Case(made, lambda _: images[-1].mul_(-3.0) is None or {})


CASES = {
    "prompt": lambda: replaced("prompt_embeds"),
    "scale of an IP-Adapter": scaled_adapter,
    "weights of LoRA": swapped_in_place,
    "LoRA of the same name": swapped_by_name,
    "all weights": other_checkpoint,
    "image of a ControlNet": other_control,
    "prompt in place": written_in_place,
}
HOW = {
    "default": {"tune": False},
    "step": {"policy": COMPUTED},
    "call": {"policy": COMPUTED, "region": "call"},
    "blocks": {"policy": COMPUTED, "region": "blocks"},
    "tail": {"policy": COMPUTED, "region": "tail"},
    "measures": {"policy": omnireuse.ErrorControl(tolerance=0.9)},
}


def at_step(handle: omnireuse.Handle, step: int, run: int = 1) -> list[bool]:
    return [each.reused for each in handle.events if each.step == step and each.run == run]


@pytest.mark.parametrize(("how", "what"), crossed([*HOW, "tuned"], [*CASES]))
def test_the_step_after_a_change_is_computed_and_nothing_before_it_is_used(what: str, how: str, cache: None) -> None:
    case = CASES[what]()
    if how in ("blocks", "tail") and not hasattr(case.tiny.pipe, "transformer"):
        pytest.skip("the blocks of a UNet are not declared")
    with omnireuse.enable(case.tiny.pipe, **HOW.get(how, {})) as handle:
        case.run()
        assert not any(at_step(handle, SWITCH))
        (said,) = [name for name in handle.summary().fallbacks if name.startswith("computing after a change of ")]
        assert handle.summary().fallbacks[said] == 1
        assert "fell back to computing after a change of" in str(handle.summary())
        if how == "tuned":
            assert handle.tuning.pictures == 0  # it is not measured
            return
        assert {each.reason for each in handle.events if each.step == SWITCH} <= {"layout", "together"}
        if how not in ("default", "measures"):
            assert all(at_step(handle, SWITCH - 1))
            reasons = {each.reason for each in handle.events if each.step == SWITCH + 1}
            assert reasons & {"policy", "unprimed"}


@pytest.mark.parametrize("how", HOW)
def test_a_change_that_only_a_later_branch_shows_is_computed_and_the_next_step_begins_anew(how: str) -> None:
    made = tiny.flux()
    prompts: list[torch.Tensor] = []
    forward = made.pipe.transformer.forward

    def given(*args: Any, **kwargs: Any) -> Any:
        prompts.append(kwargs["encoder_hidden_states"])
        return forward(*args, **kwargs)

    made.pipe.transformer.forward = given
    case = Case(made, lambda _: prompts[1].mul_(-1.0) is None or {})
    with omnireuse.enable(made.pipe, **HOW[how]) as handle:
        case.run()
        later = [each for each in handle.events if each.step == SWITCH][-1]
        assert not later.reused
        assert {each.reason for each in handle.events if each.step == SWITCH + 1} & {"layout", "policy"}
        first = next(each for each in handle.events if each.step == SWITCH + 1)
        assert not first.reused


@pytest.mark.parametrize("how", ["default", "measures"])
def test_a_condition_that_changes_at_every_step_computes_every_step_and_is_named(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = replaced("prompt_embeds")
    full = case.run(at=tuple(range(1, STEPS)))
    with omnireuse.enable(case.tiny.pipe, **HOW[how]) as handle:
        assert torch.equal(case.run(at=tuple(range(1, STEPS))), full)
        assert not any(each.reused for each in handle.events)
    assert (
        "nothing was reused: the content of the denoiser's inputs changed at every step (prompt_embeds" in caplog.text
    )


@pytest.mark.parametrize("how", HOW)
def test_a_callback_that_gives_back_what_it_got_changes_nothing(how: str) -> None:
    made = tiny.flux()
    runs = []
    for callback in (
        None,
        lambda _pipe, _step, _time, given: {**given, "prompt_embeds": given["prompt_embeds"].clone()},
    ):
        with omnireuse.enable(made.pipe, **HOW[how]) as handle:
            given = {
                "callback_on_step_end": callback,
                "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"],
            }
            runs.append(made.run(steps=STEPS, **given))
            assert handle.summary().fallbacks == {}
    assert torch.equal(*runs)


# --- conditions alone


def looks(*values: Any) -> list[int]:
    """The step of the latest change after each of so many steps with these values of an input."""
    conditions = CallConditions()
    return [conditions.look("branch", step, {"x": value}) for step, value in enumerate(values)]


def test_another_object_of_equal_content_is_the_same() -> None:
    assert looks(*(torch.ones(3) for _ in range(5)), torch.zeros(3)) == [0, 0, 0, 0, 0, 5]


def test_zeros_behind_a_prompt_are_no_change_if_a_host_pads() -> None:
    prompt = tensor(1, 3, 4, seed=1)
    padded = torch.cat([prompt, torch.zeros(1, 2, 4)], dim=1)
    longer = torch.cat([prompt, torch.ones(1, 2, 4)], dim=1)
    conditions, plain = CallConditions(are_padded=True), CallConditions()
    seen = [conditions.look("a", step, {"x": x}) for step, x in enumerate((prompt, prompt, padded, prompt, padded))]
    assert seen == [0] * 5
    assert conditions.look("a", 5, {"x": longer}) == 5
    assert conditions.look("a", 6, {"x": prompt}) == 6
    assert conditions.look("a", 7, {"x": padded * 2}) == 7
    assert [plain.look("a", step, {"x": x}) for step, x in enumerate((prompt, prompt, padded))] == [0, 0, 2]


def test_what_moves_from_the_beginning_is_no_condition() -> None:
    assert looks(*(torch.full((3,), float(step)) for step in range(5))) == [0] * 5
    assert looks(*range(5)) == [0] * 5
    assert looks(1, 1, 1, 2, 2, 1) == [0, 0, 0, 3, 3, 5]


@pytest.mark.parametrize("inference", [False, True])
def test_another_address_or_version_shows_a_change(inference: bool) -> None:
    with torch.inference_mode(inference):
        value = torch.ones(3)
        conditions = CallConditions()
        for step in range(3):
            conditions.look("branch", step, {"in": {"a": [value, value[:2]]}})
        value.data = torch.zeros(3)
        assert conditions.look("branch", 3, {"in": {"a": [value, value[:2]]}}) == 3
    assert conditions.changes == {"in.a[0]": [3], "in.a[1]": [3]}


def test_branches_are_looked_at_apart_and_a_change_of_one_counts_for_all() -> None:
    conditions, one, other = CallConditions(), torch.ones(2), torch.zeros(2)
    for step in range(4):
        assert conditions.look("cond", step, {"x": one}) == 0
        assert conditions.look("uncond", step, {"x": other}) == 0
    assert conditions.look("cond", 4, {"x": one}) == 0
    assert conditions.look("uncond", 4, {"x": one}) == 4
    assert conditions.look("cond", 5, {"x": one}) == 4
