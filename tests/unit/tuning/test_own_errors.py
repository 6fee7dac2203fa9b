"""An error that nobody expects in tuning's own work: no picture is lost, and the log and the summary tell of it."""

from __future__ import annotations

import gc
import logging
import pickle
import weakref
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.errors import OmniReuseError, StateError
from omnireuse.tuning.own_work import OwnWork, state_after
from tests.helpers.tiny import Tiny

STEPS = 20

BEFORE = [
    "omnireuse.pipelines.call_arguments.Calls.arguments",
    "omnireuse.tuning.tuner.Configuration.of",
    "omnireuse.tuning.registry.budget_for",
    "omnireuse.tuning.tuner.Replay",
    "omnireuse.tuning.tuner.noting_bars",
    "omnireuse.tuning.store.Store.load",
    "omnireuse.tuning.store.Store.near",
    "omnireuse.tuning.budget.Ledger.allows",
    "omnireuse.tuning.tuner.Recording",
    "omnireuse.tuning.entry.TuningEntry.start",
]
"""Work before a picture, which is the untuned default's then."""
AFTER = [
    "omnireuse.tuning.recording.copied",
    "omnireuse.tuning.budget.Ledger.made",
    "omnireuse.tuning.recording.OutputProducts.of",
    "omnireuse.tuning.store.Store.keep_measured",
    "omnireuse.tuning.fewest.Planner.best",
    "omnireuse.tuning.replay.without_bar",
    "omnireuse.tuning.trials.FitStepper.use",
    "omnireuse.tuning.store.Store.save",
    "omnireuse.tuning.entry.TuningEntry.take",
]
"""Work within a picture that is measured, or after it."""


@pytest.mark.parametrize("place", [*BEFORE, *AFTER])
def test_no_picture_is_lost(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    full = flux.run(steps=STEPS)
    with omnireuse.enable(flux.pipe, tune=False):
        untuned = flux.run(steps=STEPS)

    def fail(*_: object, **__: object) -> None:
        raise LookupError("nobody expects it")

    monkeypatch.setattr(place, fail)
    with caplog.at_level(logging.WARNING, logger="omnireuse"), omnireuse.enable(flux.pipe) as handle:
        assert torch.equal(flux.run(steps=STEPS), untuned if place in BEFORE else full)
        for _ in range(2):
            made = flux.run(steps=STEPS)
            assert torch.equal(made, full) or torch.equal(made, untuned)
        assert torch.equal(flux.run(steps=STEPS), untuned)
        assert handle.tuning.state == "failed"
        assert "LookupError: nobody expects it" in str(handle.tuning)
        assert handle.summary().fallbacks["the untuned default"] >= 1
    (told,) = [record for record in caplog.records if record.exc_info]
    assert isinstance(told.exc_info[1], LookupError)


def test_a_prompt_whose_encoding_cannot_be_kept_is_encoded_again(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = flux.run(steps=STEPS)
    encode = flux.pipe.encode_prompt

    def fail() -> None:
        raise LookupError("nobody expects it")

    def encoded(_: object, *args: Any, **kwargs: Any) -> Any:
        found = encode(*args, **kwargs)
        found[0].clone = fail
        return found

    monkeypatch.setattr(type(flux.pipe), "encode_prompt", encoded)
    with omnireuse.enable(flux.pipe) as handle:
        for _ in range(3):
            assert torch.equal(flux.run(steps=STEPS), full)
        assert handle.tuning.state == "ready"
    assert "cannot be kept" in caplog.text


def run_out(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("full")


def test_memory_that_is_missing_before_a_picture_ends_tuning_at_the_third_time(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    with omnireuse.enable(flux.pipe, tune=False):
        untuned = flux.run(steps=STEPS)
    monkeypatch.setattr("omnireuse.tuning.tuner.Replay", run_out)
    with omnireuse.enable(flux.pipe) as handle:
        for state in ("measuring", "measuring", "failed"):
            assert torch.equal(flux.run(steps=STEPS), untuned)
            assert handle.tuning.state == state
        assert "a call cannot be made again: OutOfMemoryError: full" in str(handle.tuning)


@pytest.mark.parametrize("place", ["recording.OutputProducts.of", "trials.FitStepper.use", "tuner.Replay"])
def test_an_error_is_freed_with_all_that_its_frames_hold(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    errors = list[weakref.ref[BaseException]]()

    def fail(*_: object, **__: object) -> None:
        error = torch.OutOfMemoryError("full")
        errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error  # this frame would keep it

    with omnireuse.enable(flux.pipe):
        flux.run(steps=STEPS)
        monkeypatch.setattr(f"omnireuse.tuning.{place}", fail)
        gc.collect()
        gc.disable()
        try:
            flux.run(steps=STEPS)
            assert [each() for each in errors] == [None]
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("error", "state"),
    [(LookupError("nobody expects it"), "failed"), (MemoryError("full"), "off"), (StateError("told"), "off")],
)
def test_other_ranks_know_an_error_that_nobody_expects_from_others(error: Exception, state: str) -> None:
    with pytest.raises(OmniReuseError) as met, OwnWork()():
        raise error
    assert state_after(met.value) == state_after(pickle.loads(pickle.dumps(met.value))) == state
