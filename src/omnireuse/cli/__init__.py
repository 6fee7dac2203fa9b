"""The command line: ``omnireuse tune``, ``calibrate``, ``compare``, ``report`` and ``cache``."""

from __future__ import annotations

from collections.abc import Sequence

from omnireuse.cli import cache, calibrate, compare, report, tune
from omnireuse.cli.program import program

__all__ = ["COMMANDS", "main"]

COMMANDS = {"tune": tune, "calibrate": calibrate, "compare": compare, "report": report, "cache": cache}

_main = program(
    "omnireuse", "Reuse for diffusion pipelines: tune, calibrate, compare, and see what it gives.", COMMANDS
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0 done, 2 a mistake in the arguments, 130 interrupted.
    """
    return _main(argv)
