"""The repository's own command: ``python -m reference demo``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omnireuse.cli.program import program
from reference.commands import demo

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Callable[..., int]] = {"demo": demo.run}

_main = program("python -m reference", "Try omnireuse on the small models of its repository.", COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0 done, 2 a mistake in the arguments, 130 interrupted.
    """
    return _main(argv)
