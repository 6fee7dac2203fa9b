"""A ControlNet's calls are counted, and left out at steps that a schedule reuses; computed steps get equal bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Steps
from tests.helpers.tiny import Tiny, flux_control, stable_diffusion_control

pytestmark = pytest.mark.filterwarnings("ignore:.*FluxPosEmbed")  # deprecated, and used by the ControlNet of diffusers
STEPS = (0, 2, 3, 6)


@dataclass(frozen=True, kw_only=True)
class Unannounced(omnireuse.Policy):
    """The same steps, said at each step only."""

    def wants_reuse(self, state: Any, view: omnireuse.StepView) -> bool:
        return view.index not in STEPS


def made(handle: omnireuse.Handle) -> tuple[int, int]:
    return handle.summary().companions["controlnet"]


@pytest.mark.parametrize("make", [flux_control, stable_diffusion_control])
def test_calls_of_reused_steps_are_left_out_and_computed_steps_get_equal_bits(make: Callable[[], Tiny]) -> None:
    tiny = make()
    calls: list[int] = []
    tiny.pipe.controlnet.register_forward_hook(lambda *_: calls.append(1))
    with omnireuse.enable(tiny.pipe, policy=Unannounced(), prediction_target="output") as handle:
        expected = tiny.run(steps=8)
    assert made(handle) == (8, 8)
    assert "8 of 8 calls of controlnet made" in str(handle.summary())
    calls.clear()
    with omnireuse.enable(tiny.pipe, policy=Steps(steps=STEPS), prediction_target="output") as handle:
        assert torch.equal(tiny.run(steps=8), expected)
        assert torch.equal(tiny.run(steps=8), expected)
    assert made(handle) == (10, 16), "steps 0, 2, 3, 6 and the last"
    assert len(calls) == 10
    assert "10 of 16 calls of controlnet made" in str(handle.summary())


def test_regions_that_call_the_denoiser_keep_every_call() -> None:
    tiny = flux_control()
    for region in ("call", "blocks", "tail"):
        with omnireuse.enable(tiny.pipe, policy=Steps(steps=STEPS), region=region) as handle:
            tiny.run(steps=8)
        assert made(handle) == (8, 8)


def test_an_output_that_is_changed_on_the_way_keeps_every_call() -> None:
    tiny = stable_diffusion_control()
    with omnireuse.enable(tiny.pipe, policy=Steps(steps=STEPS)) as handle:
        tiny.run(steps=8, guess_mode=True)  # adds zeros for the unconditional branch
    assert made(handle) == (8, 8)


def test_a_call_that_was_left_out_is_made_where_the_step_computes_after_all() -> None:
    """Guidance ends at a step that the schedule reuses: the batch is another one, and the step is computed."""

    def unguided(pipe: Any, step: int, timestep: Any, kept: dict[str, Any]) -> dict[str, Any]:
        if step != 3:
            return {}
        pipe._guidance_scale = 1.0
        return {name: value.chunk(2)[-1] for name, value in kept.items()}

    results = []
    for policy in (Unannounced(), Steps(steps=STEPS)):
        tiny = stable_diffusion_control()
        with omnireuse.enable(tiny.pipe, policy=policy, prediction_target="output") as handle:
            inputs = ["prompt_embeds", "image"]
            latents = tiny.run(steps=8, callback_on_step_end=unguided, callback_on_step_end_tensor_inputs=inputs)
        assert any(event.reason == "layout" and event.step == 4 for event in handle.events)
        results.append((latents, made(handle)))
    (expected, all_made), (latents, some_made) = results
    assert torch.equal(latents, expected)
    assert (all_made, some_made) == ((8, 8), (6, 8)), "the five of the schedule, and that of step 4"


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
@pytest.mark.parametrize("make", [flux_control, stable_diffusion_control])
def test_the_step_where_a_control_begins_or_ends_is_computed(make: Callable[[], Tiny], region: Any) -> None:
    tiny = make()
    span = {"control_guidance_start": 0.3, "control_guidance_end": 0.7}
    if region in ("blocks", "tail") and make is stable_diffusion_control:
        pytest.skip("a U-Net has no declared stack")
    with omnireuse.enable(tiny.pipe, policy=Steps(steps=(0, 1, 11)), region=region) as handle:
        tiny.run(steps=20, **span)
        changes = [event.step for event in handle.events if event.reason == "layout"]
    assert sorted(set(changes)) == [6, 14]
