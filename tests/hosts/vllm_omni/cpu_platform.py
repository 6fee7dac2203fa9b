"""Announces a CPU platform to vllm-omni, whose own are accelerators."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

__all__ = ["install", "name_of_platform"]

_operators = torch.library.Library("torchvision", "FRAGMENT")  # the definitions end with the object


def install(folder: Path) -> None:
    """Announce the platform as an installed package would, and make torchvision importable beside a CPU torch.

    Args:
        folder: is put on the path; call this before vllm_omni is imported.
    """
    record = folder / "omnireuse_test_platform-0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: omnireuse-test-platform\nVersion: 0\n")
    (record / "entry_points.txt").write_text(f"[vllm_omni.platform_plugins]\ncpu = {__name__}:name_of_platform\n")
    sys.path.insert(0, str(folder))
    # The registry's torchvision is built for CUDA: its operators do not load, and its import registers two of them.
    if not hasattr(torch.ops.torchvision, "nms"):
        for operator in ("nms", "qnms"):
            _operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def name_of_platform() -> str:
    """Where vllm-omni finds the class, which it imports only now."""
    return "tests.hosts.vllm_omni.cpu_classes.CpuPlatform"
