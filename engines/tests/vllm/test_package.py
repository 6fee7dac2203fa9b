from __future__ import annotations

from tests.unit.test_imports import offers_what_it_lists


def test_the_package_offers_what_it_lists() -> None:
    offers_what_it_lists("omnireuse_engines.vllm", but=("EncoderOutputConnector",))  # needs vLLM
