"""Tiny random denoisers with inputs of their own: no pipeline, no text encoder, no download."""

import diffusers
import pytest
from packaging.version import Version

NEWEST = "0.42"
"""The diffusers whose models these are; an older one lacks some of them."""

if Version(diffusers.__version__) < Version(NEWEST):
    pytest.skip(f"these models need diffusers {NEWEST}, this is {diffusers.__version__}", allow_module_level=True)
