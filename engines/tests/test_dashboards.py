"""Dashboards and alert rules ask for metrics that their source has; the hosts' tests look at what servers expose."""

from __future__ import annotations

import re

import pytest

from engines.tests.dashboards import asked_in
from omnireuse.prompts import prometheus as prompts
from omnireuse.summary import prometheus as steps
from omnireuse_engines import request
from tests import TOP

LIBRARY = {*steps.METRICS, *prompts.METRICS}
FILES = {
    "step-reuse-dashboard.json": set(steps.METRICS),
    "prompt-embeddings-dashboard.json": set(prompts.METRICS),
    "vllm-omni-dashboard.json": set(request.METRICS),
    "sglang-dashboard.json": set(request.METRICS) - {"omnireuse_prompts_total", "omnireuse_modulation_total"},
    "alerts.yml": LIBRARY | set(request.METRICS),
}


@pytest.mark.parametrize("name", FILES)
def test_a_dashboard_asks_for_metrics_of_its_source(name: str) -> None:
    asked = asked_in(name)
    assert len(asked) > 4
    assert asked <= FILES[name]


def test_every_metric_of_an_engine_is_on_its_dashboard() -> None:
    assert asked_in("vllm-omni-dashboard.json") == FILES["vllm-omni-dashboard.json"]
    assert asked_in("sglang-dashboard.json") == FILES["sglang-dashboard.json"]


def test_alert_rules_have_a_name_a_query_and_a_sentence() -> None:
    rules = re.split(r"^      - alert: ", (TOP / "docs" / "alerts.yml").read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(rules) == 7
    assert all("expr:" in rule and "summary:" in rule for rule in rules)
