"""The command line: ``omnireuse demo``, ``calibrate``, ``compare``, ``report``, ``replay`` and ``engine-demo``."""

from __future__ import annotations

from omnireuse.cli.app import main

__all__ = ["main"]
