"""The price of tuning, whatever the pattern of settings: counted in calls of the denoiser."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.tuning import entry
from omnireuse.tuning.budget import FROM, PRICE, Ledger, work_of
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import small_flux as tiny_flux

STEPS, PICTURES = 16, 30


class Work:
    """The calls of a denoiser with each picture, and those that it takes without reuse."""

    def __init__(self, tiny: Tiny) -> None:
        self._tiny, self._calls, self.spent, self.plain = tiny, 0, list[int](), list[int]()
        tiny.pipe.transformer.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self._calls += 1

    def picture(self, seed: int, **call: Any) -> None:
        call = {"steps": STEPS, **call}
        before = self._calls
        self._tiny.run(seed=seed, **call)
        self.spent.append(self._calls - before)
        self.plain.append(call["steps"] * (2 if call.get("guided", True) else 1))

    def ratios(self) -> list[float]:
        """All work so far as a multiple of the plain, from the tenth picture on."""
        sums = zip(itertools.accumulate(self.spent), itertools.accumulate(self.plain), strict=True)
        return [spent / plain for spent, plain in sums][FROM - 1 :]


def guidances(count: int) -> Iterable[dict[str, Any]]:
    return itertools.cycle({"true_cfg_scale": 2.0 + 0.5 * number} for number in range(count))


def mixed(seed: int) -> Iterable[dict[str, Any]]:
    draw = random.Random(seed)
    settings = [
        *({"true_cfg_scale": scale} for scale in (2.0, 3.0)),
        *({"guided": False, "guidance_scale": scale} for scale in (3.5, 5.0)),
        *({"steps": steps} for steps in (14, 20)),
    ]
    while True:
        yield draw.choice(settings)


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(guidances(1), id="one"),
        pytest.param(guidances(2), id="two", marks=pytest.mark.sweep),
        pytest.param(guidances(5), id="five", marks=pytest.mark.sweep),
        pytest.param(guidances(12), id="twelve", marks=pytest.mark.sweep),
        pytest.param(guidances(1000), id="always another", marks=pytest.mark.sweep),
        pytest.param(mixed(0), id="mixed"),
        pytest.param(mixed(1), id="mixed again", marks=pytest.mark.sweep),
    ],
)
def test_all_work_is_bounded_from_the_tenth_picture_on(flux: Tiny, pattern: Iterable[dict[str, Any]]) -> None:
    work = Work(flux)
    with omnireuse.enable(flux.pipe, computed_steps=8):
        for seed, call in zip(range(PICTURES), pattern, strict=False):
            work.picture(seed, **call)
    assert max(work.ratios()) <= PRICE


@pytest.mark.slow
def test_settings_that_rotate_are_tuned_in_time(flux: Tiny) -> None:
    work, ready = Work(flux), set()
    with omnireuse.enable(flux.pipe, computed_steps=8) as handle:
        for seed, call in zip(range(60), guidances(4), strict=False):
            work.picture(seed, **call)
            if handle.tuning.state == "ready":
                ready.add(call["true_cfg_scale"])
    assert len(ready) == 4
    assert sum(spent >= plain for spent, plain in zip(work.spent, work.plain, strict=True)) <= 3 * 4
    assert work.ratios()[-1] < 0.8


def test_another_number_of_computed_steps_each_time_is_not_measured_each_time(flux: Tiny) -> None:
    work = Work(flux)
    for seed in range(12):
        with omnireuse.enable(flux.pipe, computed_steps=3 + seed):
            work.picture(seed)
    full = [number for number, spent in enumerate(work.spent) if spent >= work.plain[number]]
    assert full == [0, 1], "the first, and one more as for a user who changes it once"
    assert max(work.ratios()) <= PRICE


def test_a_number_of_computed_steps_that_stays_is_measured(flux: Tiny) -> None:
    for count in (8, 7, 6):
        with omnireuse.enable(flux.pipe, computed_steps=count):
            flux.run(steps=STEPS)
    with omnireuse.enable(flux.pipe, computed_steps=5) as handle:
        flux.run(steps=STEPS)
        assert handle.tuning.state == "waiting"
        assert "measured from its second picture on" in str(handle.tuning)
        for seed in range(12):
            flux.run(steps=STEPS, seed=seed)
        assert handle.tuning.state == "ready"


def test_what_is_postponed_says_so_and_follows_the_untuned_default(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, computed_steps=8) as handle:
        for seed in range(3):
            flux.run(steps=STEPS, seed=seed)
        for seed in range(3):
            made = flux.run(steps=STEPS, true_cfg_scale=2.0, seed=seed)
        assert handle.tuning.state == "waiting"
        assert "all work stays within 1.1 times that without reuse" in str(handle.tuning)
    with omnireuse.enable(flux.pipe, computed_steps=8, tune=False):
        assert torch.equal(flux.run(steps=STEPS, true_cfg_scale=2.0, seed=2), made)


def test_trial_runs_that_there_is_no_time_for_follow_other_pictures(
    flux: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(flux)
    with omnireuse.enable(flux.pipe, computed_steps=8) as handle:
        for seed in range(3):
            work.picture(seed)
        expected = handle.tuning.expected
    monkeypatch.setattr(entry, "PATIENCE", 0.0)
    monkeypatch.setattr(entry, "UNNOTICED", 0.0)
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "other"))
    other = tiny_flux()
    slow, states = Work(other), []
    with omnireuse.enable(other.pipe, computed_steps=8) as handle:
        while "ready" not in states:
            assert len(states) < 20
            slow.picture(len(states))
            states.append(handle.tuning.state)
            assert states[-1] == "ready" or "trial runs go on" in str(handle.tuning) or len(states) == 1
        assert handle.tuning.expected == expected, "the same evidence"
    full = 2 * STEPS
    assert slow.spent[0] == full
    assert all(spent <= 1.5 * full for spent in slow.spent), "one trial run after each picture"
    assert all(spent <= full for spent in slow.spent[3:]), "once three are measured, the others follow the default"
    plain = sum(spent - full for spent in slow.spent if spent >= full)
    reused = [spent for spent in slow.spent if spent < full]
    assert plain + sum(each - full // 2 for each in reused) == sum(work.spent) - 3 * full, "the same work"
    assert max(slow.ratios(), default=0.0) <= PRICE


def test_a_ledger_looks_ahead_to_the_tenth_picture() -> None:
    ledger, picture = Ledger(), work_of(20, 64)
    assert ledger.allows(3 * picture, picture, 0.5, full=3)
    assert not ledger.allows(5 * picture, picture, 0.5, full=3)
    assert not ledger.allows(3 * picture, picture, 1.0, full=3), "nothing will be saved"
    for _ in range(FROM):
        ledger.made(picture, 1.0)
    assert ledger.allows(picture, picture, 0.5)
    assert not ledger.allows(1.1 * picture, picture, 0.5)
    ledger.spend(-picture)
    assert ledger.allows(2 * picture, picture, 0.5)


def test_small_pictures_do_not_pay_for_large_ones() -> None:
    ledger, small, large = Ledger(), work_of(20, 64), work_of(20, 6400)
    for _ in range(20):
        ledger.made(small, 0.5)
    assert ledger.allows(3 * small, small, 0.5)
    assert not ledger.allows(3 * large, large, 0.5)
    for _ in range(20):
        ledger.made(large, 0.5)
    assert ledger.allows(3 * large, large, 0.5)
