"""What lean calls change in held-out edits of people, beside step reuse, peers and fewer steps."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

import omnireuse
from bench._common import Row, Rows
from bench._editing_peers import Dropped, RegionWise, TextKept, Whole
from bench._player import cache_in
from bench._reference_figures import draw_edits
from bench.harm import closeness
from omnireuse import EveryNth
from omnireuse.errors import StateError
from omnireuse.references import References
from omnireuse.tuning.tuner import Tuner
from reference.drawing import Array
from reference.edits.drawing import Drawer, draw_parts
from reference.edits.evaluate import Examples, draw_examples, generate, judge
from reference.edits.task import held_out_edits
from reference.load import EDIT_SAMPLING, load_edit_pipeline

__all__ = ["STEPS", "measure"]

STEPS = {"faces-edit": 28, "faces-edit-8": 8}
SEED, TUNED_SEED, PICTURES = 41_000, 43_000, 3
TWO_SHARE, SHOWN = 0.25, 4
TOKENS, TEXT = (EDIT_SAMPLING["height"] // 8) ** 2, EDIT_SAMPLING["max_sequence_length"]
"""Of a picture, and of an instruction."""
ALL = EveryNth(every=1)
CURVE = {28: (None, 14, 7, 4, 2), 8: (None, 4, 2)}
"""Steps -> of how many computed calls one is full; None for the first alone."""
REGIONS = {28: {"first": 6, "last": 2, "between": (16,)}, 8: {"first": 2, "last": 1, "between": ()}}
"""Steps -> which of them RegionE computes whole: as published for 28."""


def named(every: int | None, *, last: bool = True) -> str:
    """The name of a way with these full calls."""
    if every is None:
        return "first and last full" if last else "first full"
    return f"every {every}{'nd' if every == 2 else 'th'} and last full"


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Add what the record does not have."""
    names = [name for name in STEPS if (options.model / name).is_dir()]
    if not names:
        print(f"quality is left out: {' and '.join(STEPS)} are not in {options.model}")
        return
    drawer = Drawer(draw_parts(options.parts_in))
    for number, name in itertools.product((1, 2), names):
        key = {"part": "quality", "model": name, "references": number}
        player = Player(options.model / name, number, options.edits, STEPS[name], drawer)
        if not rows.like(key | {"way": "full"}):
            rows.add(key | {"way": "full"} | player.judged(player.full, 1.0))
        for way in player.ways:
            if not rows.like(key | {"way": way}):
                rows.add(key | {"way": way} | player.play(way))
                print(rows.record["rows"][-1], flush=True)
        if number == 1 and STEPS[name] > 8 and not (options.out / "edits.png").exists():
            shown = _some(player.examples, 0, SHOWN)
            lean = player.lean(References(), shown)[0]
            draw_edits(shown, player.full[:SHOWN], lean, options.out / "edits.png")


class Player:
    """One pipeline and held-out edits with so many references.

    Args:
        folder: of the pipeline.
        references: 1 or 2.
        edits: how many in all; a quarter of them has two references.
        steps: of a run.

    Attributes:
        examples: the edits with their pictures.
        full: what the untouched pipeline makes of them.
        ways: what is measured, by name: what gives the pictures and the share of tokens that were computed.
    """

    def __init__(self, folder: Path, references: int, edits: int, steps: int, drawer: Drawer) -> None:
        self.pipeline, self._references, self._steps = load_edit_pipeline(folder), references, steps
        self.pipeline.set_progress_bar_config(disable=True)
        draw = partial(_drawn, references=references, drawer=drawer)
        self.examples, self._tuned_on = draw(edits, SEED), draw(4 * PICTURES, TUNED_SEED)
        self._call = TEXT + (1 + references) * TOKENS
        self.full = self._make(steps)
        self.ways = self._ways()

    def _ways(self) -> Mapping[str, Callable[[], tuple[Array, float]]]:
        steps = self._steps
        ways: dict[str, Callable[[], tuple[Array, float]]] = {
            named(every): partial(self.lean, References(full_every=every, full_last=True)) for every in CURVE[steps]
        }
        alone = References(full_every=None, full_last=False)
        ways[named(None, last=False)] = partial(self.lean, alone)
        ways["every 4th full"] = partial(self.lean, References())
        ways["first full, text kept"] = lambda: self._left_out(TextKept)
        equal = self._lean_share(steps, 1)
        ways["fewer steps"] = lambda: self._fewer(round(equal * steps))
        ways["references dropped after the first call"] = lambda: self._left_out(lambda: Dropped("after the first"))
        ways["references dropped, random half"] = lambda: self._left_out(lambda: Dropped("random"))
        ways["references dropped, a quarter by area"] = lambda: self._left_out(lambda: Dropped("area"))
        ways["region-wise"] = lambda: self._region_wise(equal)
        ways["tuned"] = partial(self._reused, references=None, speedup=2 if steps >= 20 else None)
        if steps >= 20:
            ways["step reuse"] = partial(self._reused, references=False)
            ways["step reuse, 3x"] = partial(self._reused, references=False, speedup=3)
            ways["fewer steps, a third"] = lambda: self._fewer(round(steps / 3))
            ways[f"step reuse, {named(None, last=False)}"] = partial(self._reused, references=alone)
            for every in (None, 4, 2):
                ways[f"step reuse, {named(every)}"] = partial(
                    self._reused, references=References(full_every=every, full_last=True)
                )
            ways["fewer steps, half"] = lambda: self._fewer(steps // 2)
        return ways

    def play(self, way: str) -> Row:
        """What one way makes of the edits."""
        pictures, share = self.ways[way]()
        return self.judged(pictures, share)

    def judged(self, pictures: Array, share: float) -> Row:
        """PSNR of each picture to the full run, the shares of attributes that are right, and tokens computed."""
        right = judge(self.examples, pictures)
        return {
            "each": closeness(pictures, self.full),
            "changed_right": right.changed_right,
            "kept_right": right.kept_right,
            "edits_right": right.edits_right,
            "tokens": share,
        }

    def lean(self, plan: References, examples: Examples | None = None) -> tuple[Array, float]:
        """No step reused, and full calls by a plan."""
        with omnireuse.enable(self.pipeline, policy=ALL, references=plan) as handle:
            pictures = self._make(self._steps, examples)
            calls = handle.summary().references
        assert calls is not None
        return pictures, self._lean_share(calls.full + calls.lean, calls.full)

    def _lean_share(self, calls: int, full: int) -> float:
        """Tokens of so many calls, these of them full, by those of a full run."""
        return (full * self._call + (calls - full) * (TEXT + TOKENS)) / (self._steps * self._call)

    def _reused(self, references: bool | References | None, speedup: float | None = 2) -> tuple[Array, float]:
        """Fewer computed steps, tuned on some pictures; None lets tuning decide on lean calls."""
        with (
            tempfile.TemporaryDirectory() as folder,
            cache_in(folder),
            omnireuse.enable(self.pipeline, speedup=speedup, tune=PICTURES, references=references) as handle,
        ):
            tuner = handle.extension(Tuner)
            assert tuner is not None, "the pipeline is tuned"
            tuner.measure_all()
            for place in range(PICTURES):
                self._make(self._steps, _some(self._tuned_on, place, place + 1))
            if handle.tuning.state != "ready":
                raise StateError(f"nothing was tuned: {handle.tuning}")
            before = handle.summary().references
            pictures = self._make(self._steps)
            computed = sum(not event.reused for event in handle.events[-self._steps :])
            after = handle.summary().references
        lean = 0 if before is None or after is None else after.lean - before.lean
        return pictures, self._lean_share(computed, computed - lean)

    def _fewer(self, steps: int) -> tuple[Array, float]:
        return self._make(steps), steps / self._steps

    def _region_wise(self, equal: float) -> tuple[Array, float]:
        """Picture by picture; as many tokens are edited as take the time of lean calls after the first full one."""
        plan = REGIONS[self._steps]
        whole = plan["first"] + plan["last"] + len(plan["between"])
        own = (equal * self._steps - whole) * self._call / (self._steps - whole) - TEXT
        edited = min(1.0, max(own / TOKENS, 1 / TOKENS))
        made, shares = [], []
        for place in range(len(self.examples.edits)):
            pictures, share = self._left_out(
                lambda: RegionWise(steps=self._steps, edited=edited, **plan),
                _some(self.examples, place, place + 1),
                place,
            )
            made.append(pictures)
            shares.append(share)
        return np.concatenate(made), float(np.mean(shares))

    def _left_out(
        self, make: Callable[[], Whole], examples: Examples | None = None, place: int = 0
    ) -> tuple[Array, float]:
        peer = make()
        with peer.on(self.pipeline.transformer):
            pictures = self._make(self._steps, examples, place)
        return pictures, peer.tokens / (self._steps * self._call)

    @torch.no_grad()
    def _make(self, steps: int, examples: Examples | None = None, place: int = 0) -> Array:
        """In one call; its first picture is from the noise of this place."""
        sampling = EDIT_SAMPLING | {"num_inference_steps": steps}
        return generate(self.pipeline, examples or self.examples, sampling, seed=SEED + place)


def _drawn(edits: int, seed: int, *, references: int, drawer: Drawer) -> Examples:
    drawn = held_out_edits(edits, seed=seed, two_share=TWO_SHARE)
    return draw_examples([edit for edit in drawn if (edit.giver is not None) == (references == 2)], drawer, seed=seed)


def _some(examples: Examples, start: int, end: int) -> Examples:
    cut = slice(start, end)
    return Examples(edits=examples.edits[cut], references=examples.references[cut], truths=examples.truths[cut])
