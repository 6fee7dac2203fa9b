"""Audits: a share of the calls is made again in full, and nothing else changes."""

from __future__ import annotations

import logging

import pytest
import torch

import omnireuse
from omnireuse.errors import ConfigError
from tests.helpers.tiny import Tiny

STEPS = 20


def test_the_error_of_every_second_picture_is_measured(flux: Tiny) -> None:
    full = [flux.run(steps=STEPS, seed=seed) for seed in range(6)]
    with omnireuse.enable(flux.pipe, tune=False) as handle:
        plain = [flux.run(steps=STEPS, seed=seed) for seed in range(6)]
    with omnireuse.enable(flux.pipe, tune=False, audit=0.5) as handle:
        made = [flux.run(steps=STEPS, seed=seed) for seed in range(6)]
        summary = handle.summary()
    assert all(torch.equal(a, b) for a, b in zip(made, plain, strict=True))
    assert [audit.call for audit in summary.audits] == [2, 4, 6]
    for audit in summary.audits:
        number = audit.call - 1
        expected = (made[number] - full[number]).abs().sum() / full[number].abs().sum()
        assert audit.errors == pytest.approx([float(expected)], rel=1e-5)
    assert summary.runs == 6, "audits are counted nowhere else"
    assert "3 pictures audited" in str(summary)


def test_each_picture_of_a_batch_has_an_error(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, tune=False, audit=1) as handle:
        flux.run(steps=STEPS, batch=3)
        (audit,) = handle.summary().audits
    assert len(audit.errors) == 3
    assert len(set(audit.errors)) == 3


def test_a_broken_tolerance_is_a_warning(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="omnireuse"),
        omnireuse.enable(flux.pipe, tune=False, tolerance=1e-6, audit=1.0) as handle,
    ):
        flux.run(steps=STEPS)
        (audit,) = handle.summary().audits
    lines = [record for record in caplog.records if "audit of call 1" in record.getMessage()]
    assert [line.levelno for line in lines] == [logging.WARNING if audit.broken else logging.INFO]


def test_an_audit_that_fails_leaves_the_picture(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with omnireuse.enable(flux.pipe, tune=False, audit=1.0) as handle:

        def run_out(*_: object, **__: object) -> None:
            raise torch.OutOfMemoryError("full")

        monkeypatch.setattr("omnireuse.tuning.recording.Recording.computes", run_out)
        assert flux.run(steps=STEPS).isfinite().all()
        assert handle.summary().audits == ()
        assert handle.summary().fallbacks == {"no audit": 1}
    assert "was not audited" in caplog.text


@pytest.mark.parametrize("audit", [-0.1, 1.5, "all"])
def test_a_share_is_from_0_to_1(flux: Tiny, audit: object) -> None:
    with pytest.raises(ConfigError, match="audit must be"):
        omnireuse.enable(flux.pipe, audit=audit)


def test_named_caches_are_not_audited(flux: Tiny) -> None:
    with pytest.raises(ConfigError, match="leave one of the two out"):
        omnireuse.enable(flux.pipe, "taylorseer", audit=0.1)
