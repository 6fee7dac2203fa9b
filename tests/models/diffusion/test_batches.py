"""Each picture of a batch is what it is alone, on every tiny pipeline, or the summary says that the batch is as one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Blend, TeaCache
from omnireuse.errors import OmniReuseError
from tests.helpers.batches import STEPS, batched, deviations, generators, number_of_samples, threshold_between
from tests.helpers.sweep import sweep
from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.test_pipelines import PIPELINES, TRANSFORMERS

ALL = {**TINY, **PIPELINES}
AS_ONE = "one decision for a whole batch"
QUICK = {"animate_diff", "flux", "hidream", "qwen_image", "z_image_guided_half_way"}
WITHOUT_BLOCKS = {"stable_diffusion", *(set(PIPELINES) - TRANSFORMERS)}

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Batch:
    """Some samples of a pipeline, together or alone.

    Args:
        rows: numbers of the samples.
        more: arguments beside the inputs.
        number: the pipeline's argument for several samples of one prompt; None for a prompt each.
    """

    def __init__(self, tiny: Tiny, rows: tuple[int, ...], more: dict[str, Any], number: str | None) -> None:
        self.tiny, self.rows, self.more, self.number = tiny, rows, more, number

    def arguments(self, rows: tuple[int, ...]) -> dict[str, Any]:
        given = self.tiny.inputs(guided=True, batch=1) | self.more
        if self.number is None:
            given = batched(given, rows)
        elif len(rows) > 1:
            given[self.number] = len(rows)
        return {**given, "generator": generators(*rows)}

    def together(self) -> torch.Tensor:
        return self.tiny.run(steps=STEPS, **self.arguments(self.rows))

    def alone(self, row: int) -> torch.Tensor:
        return self.tiny.run(steps=STEPS, **self.arguments((row,)))

    @property
    def is_served(self) -> bool:
        """True if the pipeline itself takes such a batch and makes of each sample what it is alone."""
        try:
            together = self.together()
        except (RuntimeError, ValueError):
            return False
        is_each = len(together) == len(self.rows)
        return is_each and max(deviations(together, [self.alone(row) for row in self.rows])) < 1e-5


def batches(tiny: Tiny) -> Iterator[Batch]:
    known = inspect.signature(type(tiny.pipe).__call__).parameters
    unguided = {name: 1.0 for name in ("guidance_scale", "true_cfg_scale") if name in known}
    kinds: list[tuple[tuple[int, ...], dict[str, Any], str | None]] = [((0, 1, 2), {}, None), ((2, 0), unguided, None)]
    number = number_of_samples(tiny)
    kinds += [] if number is None else [((0, 1), {}, number), ((0, 1, 2), {}, number)]
    yield from (batch for kind in kinds if (batch := Batch(tiny, *kind)).is_served)


def serves(tiny: Tiny, region: str) -> bool:
    """False for a region that refuses the pipeline's model, or the way in which it is called."""
    try:
        with omnireuse.enable(tiny.pipe, policy="fixed", region=region):
            tiny.run(steps=STEPS)
    except OmniReuseError:
        return False
    return True


@pytest.mark.parametrize("name", sweep(sorted(ALL), quick=QUICK))
def test_each_sample_of_a_batch_is_what_it_is_alone(name: str) -> None:
    tiny = ALL[name]()
    regions = ["step", "call"] if name in WITHOUT_BLOCKS else ["step", "call", "blocks", "tail"]
    regions = [region for region in regions if serves(tiny, region)]
    for batch in batches(tiny):
        for region in regions:
            limit = threshold_between(tiny, region, **batch.arguments(batch.rows))
            options: dict[str, Any] = {"policy": TeaCache(rel_l1_thresh=limit), "forecaster": Blend(), "region": region}
            with omnireuse.enable(tiny.pipe, **options) as handle:
                together = batch.together()
            if handle.summary().fallbacks.get(AS_ONE):
                continue
            alone = []
            for row in batch.rows:
                with omnireuse.enable(tiny.pipe, **options):
                    alone.append(batch.alone(row))
            assert max(deviations(together, alone)) < 1e-5, (region, batch.rows, batch.number)
