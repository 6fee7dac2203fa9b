"""Import every module of the installed packages, so that a wheel that lacks a file or a dependency is found out."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec

#: The modules that subclass what their engine defines, and the package that brings it.
ENGINES = {"omnireuse.engines.vllm.connector": "vllm", "omnireuse.engines.ray_serve": "ray"}

installed = ["omnireuse", *(["omnireuse_lab"] if find_spec("omnireuse_lab") else [])]
packages = [importlib.import_module(name) for name in installed]
names = [found.name for each in packages for found in pkgutil.walk_packages(each.__path__, f"{each.__name__}.")]
for name in names:
    if name.endswith("__main__") or (name in ENGINES and find_spec(ENGINES[name]) is None):
        continue
    importlib.import_module(name)
print(f"{', '.join(installed)} {packages[0].__version__}: {len(names)} modules import")
