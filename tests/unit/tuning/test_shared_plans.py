"""Replicas on several machines: each has a folder of its own, and Redis has the plans of all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import omnireuse
from omnireuse.errors import ConfigError
from omnireuse.tuning.store import Store
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import small_flux as tiny_flux

STEPS = 24

redis = pytest.importorskip("redis", reason="the redis package (omnireuse[redis]) is not installed")


@pytest.fixture
def shared(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    redis.Redis.from_url(redis_url).flushdb()
    monkeypatch.setenv("OMNIREUSE_CACHE_REDIS", redis_url)
    return redis_url


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Tiny:
    """A pipeline on another machine."""
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(folder))
    return tiny_flux()


def test_a_replica_follows_the_plan_of_another(
    flux: Tiny, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with omnireuse.enable(flux.pipe):
        made = [flux.run(steps=STEPS, seed=seed) for seed in range(4)][-1]
    other = elsewhere(monkeypatch, tmp_path / "other")
    with omnireuse.enable(other.pipe) as handle:
        assert torch.equal(other.run(steps=STEPS, seed=3), made)
        assert handle.tuning.state == "ready"
    assert len(Store().files()) == 1
    Store().clear()
    assert not redis.Redis.from_url(shared).keys()


def test_the_replica_that_is_done_first_decides(
    flux: Tiny, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with omnireuse.enable(flux.pipe):
        other = elsewhere(monkeypatch, tmp_path / "other")
        with omnireuse.enable(other.pipe) as handle:
            for seed in range(10, 12):
                other.run(steps=STEPS, seed=seed)
            made = [flux.run(steps=STEPS, seed=seed) for seed in range(4)][-1]
            other.run(steps=STEPS, seed=12)
            assert handle.tuning.state == "ready"
            assert torch.equal(other.run(steps=STEPS, seed=3), made)


def test_a_dead_server_costs_no_picture(
    flux: Tiny, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMNIREUSE_CACHE_REDIS", "redis://127.0.0.1:1/0")
    with omnireuse.enable(flux.pipe) as handle:
        for seed in range(3):
            flux.run(steps=STEPS, seed=seed)
        assert handle.tuning.state == "ready"
    assert len(list((cache / "tuned").glob("*.json"))) == 1
    assert caplog.text.count("tuned plans are not shared") == 1


def test_another_text_is_refused_at_once(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIREUSE_CACHE_REDIS", "localhost")
    with pytest.raises(ConfigError, match="OMNIREUSE_CACHE_REDIS"):
        omnireuse.enable(flux.pipe)
    monkeypatch.delenv("OMNIREUSE_CACHE_REDIS")
    with omnireuse.enable(flux.pipe):
        pass
