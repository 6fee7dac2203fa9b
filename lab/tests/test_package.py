"""What the laboratory offers, and methods that another package adds."""

from __future__ import annotations

import pytest

from omnireuse.errors import ConfigError
from omnireuse_lab.compare.methods import METHODS, own_methods
from omnireuse_lab.compare.methods.base import Method
from tests.unit.test_imports import offers_what_it_lists


def test_the_package_offers_what_it_lists() -> None:
    offers_what_it_lists("omnireuse_lab")


def test_a_registered_method_is_found_by_name_and_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value, dist = "mine", "somewhere:method", None

        def load(self) -> Method:
            return method

    method = Method(key="mine", name="mine", family="peer", grid=lambda _: [])
    monkeypatch.setattr("omnireuse.base.registry.entry_points", lambda group: [Point()])
    assert METHODS["mine"] is method
    with pytest.raises(ConfigError, match=r"has registered it as 'mine' .*'omnireuse.methods'.*leave it out"):
        own_methods([METHODS["mine"]])
