"""Which releases of an engine reuse works in, and what lets it into another."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from omnireuse.errors import ConfigError
from omnireuse_engines import host

VERSIONS = {
    "0.30": True,
    "0.30.0": True,
    "0.30.7": True,
    "0.30.0.post2": True,
    "0.30.1+cu130": True,
    "0.30.0rc1": False,
    "0.30.1.dev4+g1f2e3d": False,
    "0.29.9": False,
    "0.3.0": False,
    "0.300.0": False,
    "1.30.0": False,
    "0.0.0": False,
    "unknown": False,
}


@pytest.mark.parametrize(("present", "tested"), VERSIONS.items())
def test_final_releases_of_a_tested_series_are_let_in(
    present: str, tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "version", lambda _: present)
    assert host.is_tested(present, ("0.12", "0.30")) == tested
    if tested:
        host.check_host("engine", ("0.30",), asked="--cache")
    else:
        with pytest.raises(
            ConfigError, match=r"--cache: engine .* is not supported.*set OMNIREUSE_UNTESTED_HOST=1, at"
        ):
            host.check_host("engine", ("0.30",), asked="--cache")


def test_an_override_lets_another_release_in_but_no_missing_hook(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host, "version", lambda _: "9.9")
    monkeypatch.setenv("OMNIREUSE_UNTESTED_HOST", "1")
    with caplog.at_level(logging.WARNING, "omnireuse"):
        for _ in range(2):
            host.check_host("engine", ("0.30",), asked="--cache")
    assert caplog.text.count("engine 9.9 is not supported") == 1
    with pytest.raises(ConfigError, match="not hooked: here"):
        host.check_host("engine", ("0.30",), ["here"], asked="--cache")
    monkeypatch.setenv("OMNIREUSE_UNTESTED_HOST", "yes")
    with pytest.raises(ConfigError, match="is not supported"):
        host.check_host("engine", ("0.30",), asked="--cache")


def test_the_log_goes_through_the_engine_s_logger_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, engine = logging.getLogger("omnireuse"), logging.getLogger("an_engine")
    monkeypatch.setattr(ours, "parent", ours.parent)
    monkeypatch.setattr(ours, "handlers", [])
    monkeypatch.setattr(engine, "propagate", False)
    handler = logging.FileHandler(tmp_path / "log")
    monkeypatch.setattr(engine, "handlers", [handler])
    monkeypatch.setattr(engine, "level", logging.INFO)
    assert not ours.isEnabledFor(logging.INFO)  # remembered by the logger
    for _ in range(2):
        host.log_through("an_engine")
    ours.info("omnireuse serves")
    handler.close()
    assert (tmp_path / "log").read_text("utf-8") == "omnireuse serves\n"

    monkeypatch.setattr(ours, "handlers", [logging.NullHandler()])
    host.log_through("another_engine")
    assert ours.parent is engine
