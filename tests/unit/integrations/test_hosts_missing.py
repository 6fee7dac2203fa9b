"""Outside its host, or in one that it does not know, an integration says so when it is imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from omnireuse.engines import vllm
from omnireuse.errors import ConfigError


@pytest.mark.parametrize(("present", "named"), [("0.32.9", r"0\.32\.9"), ("0.330.0", r"0\.330\.0")])
def test_the_connector_refuses_another_vllm(monkeypatch: pytest.MonkeyPatch, present: str, named: str) -> None:
    monkeypatch.setattr("omnireuse.engines.host.version", lambda _: present)
    monkeypatch.delitem(sys.modules, "omnireuse.engines.vllm.connector", raising=False)
    with pytest.raises(ConfigError, match=rf"EncoderOutputConnector: vllm {named} is not supported.*tested with 0\.33"):
        vllm.EncoderOutputConnector  # noqa: B018 - vLLM gets the class by this access


def test_the_package_offers_the_connector_alone() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Connector'"):
        vllm.Connector  # noqa: B018 - as above


def test_the_router_needs_ray_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    monkeypatch.delitem(sys.modules, "omnireuse.engines.ray_serve", raising=False)
    with pytest.raises(ConfigError, match=r"ray\.serve\.request_router.*pip install 'omnireuse\[serve\]'"):
        importlib.import_module("omnireuse.engines.ray_serve")
