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
ELSEWHERE = {
    "compare": ("lab", "Compare this library, other caches and plain fewer steps with the full run of a pipeline."),
    "demo": ("lab", "Draw one prompt in full, with reuse, and with as few plain steps."),
    "replay": ("engines", "Replay a trace of accesses through the shared encoder cache."),
    "engine-demo": ("engines", "Serve conversations over images in a small engine, with the engine caches off and on."),
}
"""The commands of other distributions: the extra that installs each, and what the help says without it."""


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
        name: (words, MissingExtraError(f"omnireuse {name}", extra)) for name, (extra, words) in ELSEWHERE.items()
    }
    for name in COMMANDS:
        try:
            commands[name] = COMMANDS[name]
        except OmniReuseError as error:
            missing[name] = ("A command of another package that cannot be loaded.", error)
        else:
            missing.pop(name, None)
    return program("omnireuse", summary, commands, missing)(argv)
