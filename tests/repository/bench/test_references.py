"""Full and lean calls of editing models: times, what is left out, and what the pictures lose."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench import _reference_quality, references
from bench._editing_peers import Dropped, RegionWise, TextKept, Whole
from bench._editing_size import EDITING as SIZES
from bench._editing_size import EditingSampler
from omnireuse.errors import ConfigError
from omnireuse.references import DECLARED
from tests.helpers.editing import EDITING

STEPS = 5


@functools.cache
def kontext() -> Any:
    """A tiny pipeline."""
    return EDITING["kontext"]()


def made(peer: Whole | None = None) -> torch.Tensor:
    """What it makes with something left out, without guidance."""
    tiny = kontext()
    if peer is None:
        return tiny.run(steps=STEPS, true_cfg_scale=1.0)
    with peer.on(tiny.pipe.transformer):
        return tiny.run(steps=STEPS, true_cfg_scale=1.0)


@pytest.mark.parametrize(
    "peer",
    [
        Whole(),
        Dropped("random", share=1.0),
        RegionWise(steps=STEPS, first=STEPS, last=0, between=(), edited=0.5),
        RegionWise(steps=STEPS, first=1, last=4, between=(), edited=0.5),
    ],
)
def test_nothing_left_out_changes_nothing(peer: Whole) -> None:
    assert torch.equal(made(peer), made())
    # 16 tokens of the target, 64 of the reference, 6 of the text.
    assert peer.tokens == STEPS * 86


@pytest.mark.parametrize(
    ("peer", "tokens"),
    [
        (Dropped("random"), STEPS * (86 - 32)),
        (Dropped("area"), STEPS * (86 - 48)),
        (Dropped("after the first"), 86 + 4 * 22),
        (TextKept(), 86 + 4 * 16),
        (RegionWise(steps=STEPS, first=1, last=1, between=(2,), edited=0.25), 3 * 86 + 2 * (6 + 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_left_out_is_counted_and_close(peer: Whole, tokens: int) -> None:
    latents, full = made(peer), made()
    assert peer.tokens == tokens
    assert 0 < float((latents - full).norm() / full.norm()) < 1


def test_edited_tokens_alone_are_computed_anew() -> None:
    # All are edited: only the keys of the references are old, as they are in lean calls.
    latents = made(RegionWise(steps=STEPS, first=1, last=0, between=(), edited=1.0))
    few = made(RegionWise(steps=STEPS, first=1, last=0, between=(), edited=0.0625))
    full = made()
    assert float((latents - full).norm()) < float((few - full).norm())


def test_regions_are_of_one_picture() -> None:
    tiny = kontext()
    with (
        RegionWise(steps=STEPS, first=1, last=0, between=(), edited=0.5).on(tiny.pipe.transformer),
        pytest.raises(ValueError, match="one picture at a time"),
    ):
        tiny.run(steps=STEPS, true_cfg_scale=1.0, batch=2)


@pytest.mark.parametrize("name", SIZES)
def test_a_sampler_gives_its_references_as_the_pipeline_does(name: str) -> None:
    sampler = EditingSampler.made(SIZES[name], size="tiny", device=torch.device("cpu"), dtype=torch.float32)
    sampler.take(3)
    calls: list[dict[str, Any]] = []
    sampler.transformer.register_forward_pre_hook(lambda _, __, call: calls.append(call), with_kwargs=True)
    sampler.run(1, lambda _step: torch.no_grad())
    split: Any = DECLARED[type(sampler.transformer).__name__].split(calls[0])
    assert (split.target, split.references) == (16, 48)


@pytest.mark.slow
def test_times_are_added_to_a_record(tmp_path: Path) -> None:
    asked = ["--parts", "time", "--tiny", "--models", "flux.1-kontext", "--repeats", "1", "--out", str(tmp_path)]
    references.main([*asked, "--seconds", "0"])
    assert not (tmp_path / "references.json").exists()
    references.main(asked)
    kept = (tmp_path / "references.json").read_text("utf-8")
    rows = json.loads(kept)["rows"]
    calls = {(row["references"], row["on_host"]): row for row in rows if row["part"] == "call"}
    assert set(calls) == {*((count, False) for count in range(5)), (1, True), (2, True)}
    # Two blocks of each kind, 2 × 16 channels and 16 tokens in bfloat16.
    assert calls[1, True]["kept_bytes"] == calls[1, False]["kept_bytes"] == 2 * 4 * 32 * 16 * 2
    assert all(len(row["seconds"]["lean"]) == 1 for row in calls.values() if row["references"])
    computed = {(row["way"], row["steps"]): row["computed"] for row in rows if row["part"] == "run"}
    assert (computed["full", 28], computed["every 4th full", 28], computed["reuse, first full", 28]) == (28, 28, 15)
    assert ("reuse", 8) not in computed
    references.main(asked)
    assert len(json.loads((tmp_path / "references.json").read_text("utf-8"))["rows"]) == len(rows)
    assert (tmp_path / "references.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("asked", "why"),
    [(["--true"], "must be a CUDA device"), (["--repeats", "0"], "at least 1")],
)
def test_what_cannot_be_measured_is_refused(asked: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        references.main(asked)


@pytest.mark.slow
def test_kontext_keeps_at_true_size_what_its_shapes_say(tmp_path: Path) -> None:
    # In a process of its own: a device that torch knows stays known.
    command = [sys.executable, "-m", "bench", "references", "--parts", "memory", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ | {"OMNIREUSE_TUNE": "0"})
    assert done.returncode == 0, done.stderr
    rows = {row["model"]: row for row in json.loads((tmp_path / "references.json").read_text("utf-8"))["rows"]}
    # A key and a value of 4096 tokens and 3072 channels in 57 and in 60 attentions, in bfloat16.
    assert rows["flux.1-kontext"]["kept_bytes"] == 2 * 57 * 4096 * 3072 * 2
    assert rows["qwen-image-edit-plus"]["kept_bytes"] == 2 * 60 * 4096 * 3072 * 2


@pytest.mark.slow
@pytest.mark.integration
def test_edits_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (396, 7, 8, 8), np.uint8)
    np.savez_compressed(tmp_path / "parts.npz", parts=np.kron(noise, np.ones((1, 1, 2, 2), np.uint8)))
    monkeypatch.setattr(_reference_quality, "STEPS", {"faces-edit-8": 8})
    references.main(["--parts", "quality", "--edits", "4", "--parts-in", str(tmp_path), "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "references.json").read_text("utf-8"))["rows"]
    one = {row["way"]: row for row in rows if row["references"] == 1}
    assert {len(row["each"]) for row in one.values()} == {3}
    assert one["full"]["each"] == [100.0] * 3
    # One call of 141 tokens, and seven of 77; two more full ones; as many steps as take as long.
    assert one["first full"]["tokens"] == pytest.approx((141 + 7 * 77) / (8 * 141))
    assert one["every 2nd and last full"]["tokens"] == pytest.approx((5 * 141 + 3 * 77) / (8 * 141))
    assert one["region-wise"]["tokens"] == pytest.approx(one["first full"]["tokens"], abs=0.01)
    assert min(one["every 2nd and last full"]["each"]) > min(one["first full"]["each"]) > 10
    assert {row["references"] for row in rows} == {1, 2}
