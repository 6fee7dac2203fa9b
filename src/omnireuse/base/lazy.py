"""Packages whose names are imported when they are first used, so that importing the package stays light."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package with lazy names.

    Args:
        homes: for each module, relative to the package, the names that come from it, with spaces between.
    """
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names.split()}

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute, lambda: sorted(modules)
