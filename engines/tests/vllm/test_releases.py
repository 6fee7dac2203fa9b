"""In another vLLM than the tested ones, the connector says so when vLLM asks for it."""

from __future__ import annotations

import sys

import pytest

import omnireuse_engines.vllm
from omnireuse.errors import ConfigError


@pytest.mark.parametrize(("present", "named"), [("0.32.9", r"0\.32\.9"), ("0.330.0", r"0\.330\.0")])
def test_the_connector_refuses_another_vllm(monkeypatch: pytest.MonkeyPatch, present: str, named: str) -> None:
    monkeypatch.setattr("omnireuse_engines.host.version", lambda _: present)
    monkeypatch.delitem(sys.modules, "omnireuse_engines.vllm.connector", raising=False)
    with pytest.raises(ConfigError, match=rf"EncoderOutputConnector: vllm {named} is not supported.*tested with 0\.33"):
        omnireuse_engines.vllm.EncoderOutputConnector  # noqa: B018 - vLLM gets the class by this access


def test_what_the_package_lacks_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'omnireuse_engines\.vllm' has no attribute 'Connector'"):
        omnireuse_engines.vllm.Connector  # noqa: B018 - as above
