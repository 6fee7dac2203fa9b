"""Without its engine, an integration says so when it is imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from omnireuse.errors import ConfigError


def test_the_router_needs_ray_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    monkeypatch.delitem(sys.modules, "omnireuse_engines.ray_serve", raising=False)
    with pytest.raises(ConfigError, match=r"ray\.serve\.request_router.*pip install 'omnireuse\[serve\]'"):
        importlib.import_module("omnireuse_engines.ray_serve")
