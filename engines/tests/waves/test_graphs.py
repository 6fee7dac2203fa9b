"""Waves whose transformer returns one buffer for each size of a wave, as a CUDA graph of that size does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engines.tests.waves.played import PLANS, Engine, State, request


class Replayed(Engine):
    """Returns the same tensor for every wave of as many rows; the rest of the graphs' memory is overwritten."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.buffers: dict[int, torch.Tensor] = {}

    def denoise(self, batch: Sequence[State], *, states: Sequence[State], **kwargs: Any) -> torch.Tensor:
        output = super().denoise(batch, states=states, **kwargs)
        for buffer in self.buffers.values():
            buffer.fill_(float("nan"))
        return self.buffers.setdefault(len(states), torch.empty_like(output)).copy_(output)


def latents(engine: Engine, plan: str) -> list[torch.Tensor]:
    states = [request(f"request {number}", plan, 20, number) for number in range(3)]
    late = request("late", "off" if plan != "off" else "half", 14, 7)
    for wave in range(20):
        engine.wave([*states, *([late] if 3 <= wave < 17 else [])])
    return [state.latents for state in (*states, late)]


@pytest.mark.parametrize("plan", PLANS)
def test_waves_are_bit_equal(plan: str) -> None:
    for mine, plain in zip(latents(Replayed(), plan), latents(Engine(), plan), strict=True):
        assert plain.isfinite().all()
        assert torch.equal(mine, plain)
