"""What all tests share, and how the suite is dealt out to parallel workers."""

from __future__ import annotations

import gc
import logging
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

SHARED = {"tests/repository/demo", "tests/repository/docs", "tests/system/sources", "lab/tests/compare"}
"""Folders whose files share a fixture that takes longer than their tests; elsewhere a file stays whole."""

TOOLS = {
    "chromium": "apt-get install chromium",
    "redis-server": "apt-get install redis-server",
    "[redis]": "pip install -e '.[redis]'",
}
"""What the reasons of skipped tests have in them -> how to get what is missing."""

# How long an example takes says nothing about whether it holds.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("whole", deadline=None, max_examples=50)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write tests/unit/diffusion/golden.json anew")


def pytest_configure(config: pytest.Config) -> None:
    # `make test` leaves out sweeps, and half of the examples of each property.
    settings.load_profile("quick" if "not sweep" in config.option.markexpr else "whole")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        file = item.path.relative_to(config.rootpath)
        folder = file.parent.as_posix()
        item.add_marker(pytest.mark.xdist_group(folder if folder in SHARED else file.as_posix()))


def pytest_collection_finish() -> None:
    # What torch, diffusers and transformers have made stays until the end; collections need not look through it.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say last how many tests were skipped for want of a tool, and how to get it."""
    yield
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    wanted = {tool for reason in reasons for tool in TOOLS if tool in reason}
    if wanted:
        count = sum(any(tool in reason for tool in wanted) for reason in reasons)
        missing = "; ".join(TOOLS[tool] for tool in TOOLS if tool in wanted)
        terminalreporter.write_line(f"{count} tests were skipped, and run after: {missing}", yellow=True)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    # Tiny models are slower on several threads, and bit-equality must not depend on how a sum is split.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    # A page tells its reader to show information; the next test must not see it.
    logger = logging.getLogger("omnireuse")
    level, handlers = logger.level, logging.root.handlers[:]
    yield
    logger.setLevel(level)
    logging.root.handlers[:] = handlers


@pytest.fixture(autouse=True)
def _untuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Tests of what tuning does turn it on; nobody writes into the user's cache folder.
    monkeypatch.setenv("OMNIREUSE_TUNE", "0")
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server on a free loopback port, without persistence."""
    server = shutil.which("redis-server") or shutil.which("valkey-server")
    if server is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    pytest.importorskip("redis", reason="the redis package (omnireuse[redis]) is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        command, cwd=tmp_path_factory.mktemp("redis"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail("redis-server did not start")
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)
