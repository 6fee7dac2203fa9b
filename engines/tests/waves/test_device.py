"""Waves on a device without data: nothing mixes devices, and a schedule reads nothing back."""

from __future__ import annotations

import pytest
import torch

from bench._fake_device import HostReads, fake_device, outside
from engines.tests.waves.played import PLANS, Engine, request
from omnireuse.noise.schedulers import noise_levels
from omnireuse_engines import request as request_module
from omnireuse_engines.settings import KEY

MOST = {"half": 0, "third": 0, "off": 0, "measured": 1, "watched": 3}
"""Reads a decision."""


@pytest.mark.parametrize("plan", PLANS)
def test_a_wave_waits_for_the_device_only_where_it_measures(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [request(f"request {number}", plan, 20, number) for number in range(3)]
    monkeypatch.setattr(request_module, "noise_levels", outside(noise_levels))
    with fake_device() as device, torch.no_grad():
        engine = Engine(device=device)
        for state in states:
            state.latents = torch.empty(1, 6, 4, device=device)
        with HostReads() as reads:
            for _ in range(20):
                engine.wave(states)
    assert reads.count <= MOST[plan] * 20 * len(states)
    assert (reads.count > 0) == (MOST[plan] > 0)
    if plan != "off":
        assert all(state.extra[KEY].reused > 0 for state in states)
        assert sum(engine.rows) < 20 * len(states)
