"""Every declared model keeps the contract of adapters; a new declaration is picked up by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from omnireuse.errors import UnknownNameError
from omnireuse.models import BLOCK_STACKS
from omnireuse.testing import check_adapter
from tests.models.diffusion.denoisers import DENOISERS

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:In CPU autocast, but the target dtype:UserWarning"),
]


@pytest.mark.parametrize("name", BLOCK_STACKS)
def test_a_declaration_keeps_the_contract(name: str) -> None:
    denoiser = DENOISERS[name]()
    check_adapter(BLOCK_STACKS[name], denoiser.model, lambda: denoiser.model(**denoiser.inputs(0, 6)))


def test_broken_declarations_are_found() -> None:
    denoiser, stack = DENOISERS["FluxTransformer2DModel"](), BLOCK_STACKS["FluxTransformer2DModel"]

    def run() -> object:
        return denoiser.model(**denoiser.inputs(0, 6))

    with pytest.raises(AssertionError, match="in the order of lists"):
        check_adapter(replace(stack, lists=stack.lists[::-1]), denoiser.model, run)
    with pytest.raises(AssertionError, match="must have a row for each sample"):
        check_adapter(replace(stack, signal=lambda *_: torch.zeros(7)), denoiser.model, run)
    with pytest.raises(AssertionError, match="must not write to its arguments"):
        check_adapter(replace(stack, signal=lambda _, given: given["hidden_states"].zero_()), denoiser.model, run)
    asks = replace(stack, signal=lambda _, given: given["hidden_stats"])
    with pytest.raises(UnknownNameError, match=r"unknown argument of .*'hidden_stats'; did you mean 'hidden_states'"):
        check_adapter(asks, denoiser.model, run)
    fails = replace(stack, signal=lambda _, given: {"none": given}[next(iter(given))])
    with pytest.raises(KeyError):
        check_adapter(fails, denoiser.model, run)
