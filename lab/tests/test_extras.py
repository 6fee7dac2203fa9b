"""A peer that is not installed is left out, and asked for it is an error."""

from __future__ import annotations

import sys

import pytest

from omnireuse.base.extras import check_extra
from omnireuse.errors import MissingExtraError
from omnireuse_lab.compare.methods import chosen_methods


def test_cache_dit_is_left_out_where_it_is_not_installed_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cache_dit", None)
    methods = chosen_methods(only=["peer"])
    assert methods
    assert not [method.name for method in methods if "cache-dit" in method.name]
    assert "cache-dit is left out, it is not installed" in caplog.text
    with pytest.raises(MissingExtraError, match=r"omnireuse\[cache-dit\]"):
        chosen_methods(only=["peer", "scm"])
    with pytest.raises(MissingExtraError, match="this needs an optional dependency"):
        check_extra("this", "cache-dit")
