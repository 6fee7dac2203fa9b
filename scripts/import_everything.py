"""Import every module of the installed packages, so that a wheel that lacks a file or a dependency is found out."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec

#: Modules of an engine, and those that draw, with the package that each needs.
NEEDS = {
    "omnireuse_engines.vllm.connector": "vllm",
    "omnireuse_engines.vllm.replay.figure": "matplotlib",
    "omnireuse_engines.vllm.engine_demo.timeline": "matplotlib",
    "omnireuse_engines.ray_serve": "ray",
}

installed = ["omnireuse", *filter(find_spec, ("omnireuse_lab", "omnireuse_engines"))]
packages = [importlib.import_module(name) for name in installed]
names = [found.name for each in packages for found in pkgutil.walk_packages(each.__path__, f"{each.__name__}.")]
for name in names:
    if name.endswith("__main__") or (name in NEEDS and find_spec(NEEDS[name]) is None):
        continue
    importlib.import_module(name)
print(f"{', '.join(installed)} {packages[0].__version__}: {len(names)} modules import")
