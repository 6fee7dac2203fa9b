"""A request's prompt that changes on the way."""

from __future__ import annotations

import pytest
import torch

from engines.tests.waves.played import Engine, request

STEPS, SWITCH = 20, 7


@pytest.mark.parametrize("in_place", [False, True])
def test_a_request_computes_after_a_change_of_its_own_and_the_other_goes_on_as_if_alone(in_place: bool) -> None:
    waves = []
    for switch in (SWITCH, None):
        engine, (one, other) = Engine(), (request(name, "half", STEPS, seed) for seed, name in enumerate("ab"))
        one.prompt, other.prompt = torch.ones(3), torch.ones(3)
        before = 0
        for step in range(STEPS):
            if step == switch:
                before = one.extra["omnireuse"].computed
                one.prompt = one.prompt.mul_(2) if in_place else one.prompt * 2
            engine.wave([one, other])
            if step == switch:
                assert one.extra["omnireuse"].computed == before + 1
        waves.append((one, other))
    (one, other), (undisturbed, alone) = waves
    assert one.extra["omnireuse"].computed > undisturbed.extra["omnireuse"].computed
    assert other.extra["omnireuse"].computed == alone.extra["omnireuse"].computed
    assert torch.equal(other.latents, alone.latents)


def test_a_wave_that_pads_a_prompt_changes_no_picture() -> None:
    pictures = []
    for pads in (False, True):
        engine, one = Engine(), request("a", "half", STEPS, 0)
        one.prompt = torch.ones(1, 3, 2)
        one.lengths = [3]
        for step in range(STEPS):
            if pads and step == SWITCH:
                one.prompt, one.lengths = torch.cat([one.prompt, torch.zeros(1, 2, 2)], dim=1), [5]
            engine.wave([one])
        pictures.append((one.latents, one.extra["omnireuse"].computed))
    assert torch.equal(pictures[0][0], pictures[1][0])
    assert pictures[0][1] == pictures[1][1]
