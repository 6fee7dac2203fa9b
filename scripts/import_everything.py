"""Import every module of the installed package, so that a wheel that lacks a file or a dependency is found out."""

from __future__ import annotations

import importlib
import pkgutil

import omnireuse

names = [module.name for module in pkgutil.walk_packages(omnireuse.__path__, "omnireuse.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(f"omnireuse {omnireuse.__version__} from {omnireuse.__path__[0]}: {len(names)} modules import")
