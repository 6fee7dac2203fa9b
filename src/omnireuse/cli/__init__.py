"""The command line: ``omnireuse demo``, ``tune``, ``calibrate``, ``compare`` and ``cache``."""

from __future__ import annotations

from collections.abc import Sequence

from omnireuse.cli import cache, calibrate, compare, demo, tune
from omnireuse.cli.program import program

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": demo,
    "tune": tune,
    "calibrate": calibrate,
    "compare": compare,
    "cache": cache,
}

_main = program("omnireuse", "Reuse for diffusion pipelines: see what it gives, tune, calibrate and compare.", COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0 done, 1 below what --at-least asks for, 2 a mistake in the arguments, 3 a setting failed, 130
        interrupted.
    """
    return _main(argv)
