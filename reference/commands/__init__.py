"""The repository's own commands: ``python -m reference demo``, ``engine-demo`` and ``replay``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omnireuse.cli.program import program
from reference.commands import demo, engine_demo, replay

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Callable[..., int]] = {"demo": demo.run, "engine-demo": engine_demo.run, "replay": replay.run}

_main = program("python -m reference", "Try omnireuse on the small models of its repository.", COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0 done, 1 the outputs of the engine demo differ, 2 a mistake in the arguments, 130 interrupted.
    """
    return _main(argv)
