"""Import every module of the installed package, so that a wheel that lacks a file or a dependency is found out."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec

import omnireuse

#: The modules that subclass what their engine defines, and the package that brings it.
ENGINES = {"omnireuse.engines.vllm.connector": "vllm", "omnireuse.engines.ray_serve": "ray"}

names = [module.name for module in pkgutil.walk_packages(omnireuse.__path__, "omnireuse.")]
for name in names:
    if name.endswith("__main__") or (name in ENGINES and find_spec(ENGINES[name]) is None):
        continue
    importlib.import_module(name)
print(f"omnireuse {omnireuse.__version__} from {omnireuse.__path__[0]}: {len(names)} modules import")
