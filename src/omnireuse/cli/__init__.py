"""The command line: ``omnireuse tune``, ``calibrate`` and ``cache``, and the commands of other packages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omnireuse.base.registry import Registry
from omnireuse.cli import cache, calibrate, tune
from omnireuse.cli.program import program
from omnireuse.errors import MissingExtraError, OmniReuseError

__all__ = ["COMMANDS", "main"]

COMMANDS: Registry[Callable[..., int]] = Registry(
    "omnireuse.commands", {"tune": tune.run, "calibrate": calibrate.run, "cache": cache.run}
)
"""By name the function of each command, as typer takes it."""
LABORATORY = {
    "compare": "Compare this library, other caches and plain fewer steps with the full run of a pipeline.",
    "demo": "Draw one prompt in full, with reuse, and with as few plain steps.",
}
"""The commands of omnireuse-lab, which are in the help where it is not installed, too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0 done, 1 below what --at-least asks for, 2 a mistake in the arguments or a command that is not
        installed, 3 a setting failed, 130 interrupted.
    """
    summary = "Reuse for diffusion pipelines: see what it gives, tune, calibrate and compare."
    commands: dict[str, Callable[..., int]] = {}
    missing: dict[str, tuple[str, OmniReuseError]] = {
        name: (words, MissingExtraError(f"omnireuse {name}", "lab")) for name, words in LABORATORY.items()
    }
    for name in COMMANDS:
        try:
            commands[name] = COMMANDS[name]
        except OmniReuseError as error:
            missing[name] = ("A command of another package that cannot be loaded.", error)
        else:
            missing.pop(name, None)
    return program("omnireuse", summary, commands, missing)(argv)
