"""Each picture of a batch is what it is alone, on every tiny pipeline, or the summary says that the batch is as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Blend, TeaCache
from omnireuse.errors import OmniReuseError
from tests.helpers.batches import NUMBERS, STEPS, batched, deviations, generators, parameters_of, threshold_between
from tests.helpers.sweep import sweep
from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.test_pipelines import PIPELINES, TRANSFORMERS

ALL = {**TINY, **PIPELINES}
AS_ONE = "one decision for a whole batch"
WITHOUT_BLOCKS = {"stable_diffusion", *(set(PIPELINES) - TRANSFORMERS)}
CASES = [
    (name, region)
    for name in sorted(ALL)
    for region in ("step", "call", "blocks", "tail")
    if region in ("step", "call") or name not in WITHOUT_BLOCKS
]
# One of each: rows in the second dimension, in blocks of frames, in lists, beside lists of shapes, and broadcast.
QUICK = {
    ("animate_diff", "step"),
    ("flux", "blocks"),
    ("hidream", "step"),
    ("qwen_image", "call"),
    ("z_image_guided_half_way", "call"),
}
FEW = 3
"""Steps of a run that shows whether a pipeline takes a batch, or a region its model."""
# It takes one prompt, one video and one generator.
NO_BATCHES = {"wan_vace"}

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@dataclass(frozen=True)
class Batch:
    """Some samples of a pipeline, together or alone.

    Attributes:
        rows: numbers of the samples.
        more: arguments beside the inputs.
        number: the pipeline's argument for several samples of one prompt; None for a prompt each.
        images: as for `batched`.
    """

    tiny: Tiny
    rows: tuple[int, ...]
    more: dict[str, Any] = field(default_factory=dict)
    number: str | None = None
    images: bool = True

    def arguments(self, rows: tuple[int, ...]) -> dict[str, Any]:
        given = self.tiny.inputs(guided=True, batch=1) | self.more
        if self.number is None:
            given = batched(given, rows, images=self.images)
        elif len(rows) > 1:
            given[self.number] = len(rows)
        return {**given, "generator": generators(*rows)}

    def together(self, steps: int = STEPS) -> torch.Tensor:
        return self.tiny.run(steps=steps, **self.arguments(self.rows))

    def alone(self, row: int, steps: int = STEPS) -> torch.Tensor:
        return self.tiny.run(steps=steps, **self.arguments((row,)))

    @property
    def is_served(self) -> bool:
        """True if the pipeline itself takes such a batch and makes of each sample what it is alone."""
        try:
            together = self.together(FEW)
        except (RuntimeError, ValueError):
            return False
        is_each = len(together) == len(self.rows)
        return is_each and max(deviations(together, [self.alone(row, FEW) for row in self.rows])) < 1e-5


def batches(tiny: Tiny) -> list[Batch]:
    """Three prompts with guidance, two without it, two and three samples of one."""
    known = parameters_of(tiny)
    unguided = {name: 1.0 for name in ("guidance_scale", "true_cfg_scale") if name in known}
    numbers = [name for name in NUMBERS if name in known][:1]
    return [
        *(
            Batch(tiny, rows, more, images=i)
            for rows, more in (((0, 1, 2), {}), ((2, 0), unguided))
            for i in (True, False)
        ),
        *(Batch(tiny, rows, number=number) for number in numbers for rows in ((0, 1), (0, 1, 2))),
    ]


def served(tiny: Tiny, turn: int) -> Batch | None:
    """The first batch from number `turn` on of which the pipeline itself makes of each sample what it is alone."""
    found = batches(tiny)
    start = turn % len(found)
    return next((batch for batch in found[start:] + found[:start] if batch.is_served), None)


def serves(tiny: Tiny, region: str) -> bool:
    """False for a region that refuses the pipeline's model, or the way in which it is called."""
    try:
        with omnireuse.enable(tiny.pipe, policy="fixed", region=region):
            tiny.run(steps=FEW)
    except OmniReuseError:
        return False
    return True


# Each region of a pipeline with another kind of batch: all of both would take four times as long.
@pytest.mark.parametrize(("name", "region"), sweep(CASES, quick=QUICK))
def test_each_sample_of_a_batch_is_what_it_is_alone(name: str, region: str) -> None:
    tiny = ALL[name]()
    batch = served(tiny, turn=CASES.index((name, region)))
    assert (batch is not None) == (name not in NO_BATCHES)
    if batch is None or not serves(tiny, region):
        return
    limit = threshold_between(tiny, region, **batch.arguments(batch.rows))
    options: dict[str, Any] = {"policy": TeaCache(rel_l1_thresh=limit), "forecaster": Blend(), "region": region}
    with omnireuse.enable(tiny.pipe, **options) as handle:
        together = batch.together()
    summary = handle.summary()
    # None of these pipelines needs it.
    assert not summary.fallbacks.get(AS_ONE), summary
    alone = []
    for row in batch.rows:
        with omnireuse.enable(tiny.pipe, **options):
            alone.append(batch.alone(row))
    assert max(deviations(together, alone)) < 1e-5, (batch.rows, batch.number)
