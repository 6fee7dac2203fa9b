"""What the dashboards and alert rules of the documentation ask Prometheus for."""

from __future__ import annotations

import re

from tests import TOP

__all__ = ["asked_in"]


def asked_in(name: str) -> set[str]:
    """The metrics of omnireuse that the queries of a file of docs name."""
    text = (TOP / "docs" / name).read_text("utf-8")
    return {found for found in re.findall(r"\bomnireuse_\w+", text) if not found.endswith("_dashboard")}
