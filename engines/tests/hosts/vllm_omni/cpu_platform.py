"""Announces a CPU platform to vllm-omni, whose own are accelerators."""

from __future__ import annotations

import sys
from pathlib import Path

from engines.tests.hosts.operators import define_operators

__all__ = ["announce", "install", "name_of_platform"]

_PLUGINS = f"""[vllm_omni.platform_plugins]
cpu = {__name__}:name_of_platform
[vllm_omni.general_plugins]
gauges = engines.tests.hosts.vllm_omni.gauges:register
"""


def announce(folder: Path) -> Path:
    """Write what a Python with this folder on its path takes for installed packages: the platform, the gauges of the
    tests, and a stand-in for torchaudio, of which the registry has no CPU build.

    A Python that starts with the folder in ``PYTHONPATH`` also runs `define_operators`.
    """
    record = folder / "omnireuse_test_platform-0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: omnireuse-test-platform\nVersion: 0\n", "utf-8")
    (record / "entry_points.txt").write_text(_PLUGINS, "utf-8")
    audio = folder / "torchaudio"
    audio.mkdir()
    (audio / "__init__.py").write_text('"""A stand-in."""\n', "utf-8")
    (audio / "functional.py").write_text("melscale_fbanks = None\n", "utf-8")
    (folder / "sitecustomize.py").write_text(
        "from engines.tests.hosts import operators\n\noperators.define_operators()\n", "utf-8"
    )
    return folder


def install(folder: Path) -> None:
    """Announce all of that to this process; call it before vllm_omni is imported."""
    sys.path.insert(0, str(announce(folder)))
    define_operators()


def name_of_platform() -> str:
    """Where vllm-omni finds the class, which it imports only now."""
    return "engines.tests.hosts.vllm_omni.cpu_classes.CpuPlatform"
