"""The command line: ``omnireuse demo``, ``calibrate``, ``compare``, ``report``, ``replay`` and ``engine-demo``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields

from rich.console import Console
from rich.markup import escape

import omnireuse
from omnireuse.cli_arguments import add_calibrate, add_compare, add_demo, add_engine_demo, add_replay, add_report
from omnireuse.demo.config import DemoConfig
from omnireuse.demo.engine.config import EngineDemoConfig
from omnireuse.errors import ConfigError, OmniReuseError, UnknownNameError
from omnireuse.replay.config import ReplayConfig

__all__ = ["main"]

INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0 done, 1 the engine demo's outputs differ, 2 a mistake in what was asked for, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    errors = Console(stderr=True)
    try:
        parsed = _parse(arguments or ["--help"])
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except OmniReuseError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("interrupted; nothing was kept")
        return INTERRUPTED


def _parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments; a misspelt command or option gets the nearest one suggested, which argparse cannot do here."""
    parser = argparse.ArgumentParser(
        prog="omnireuse", description=omnireuse.__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"omnireuse {omnireuse.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="")
    for add, run in (
        (add_demo, _demo),
        (add_calibrate, _calibrate),
        (add_compare, _compare),
        (add_report, _report),
        (add_replay, _replay),
        (add_engine_demo, _engine_demo),
    ):
        add(commands).set_defaults(run=run)
    known = commands.choices
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    if command is not None and command not in known:
        raise UnknownNameError("command", command, known)
    parsed, left = parser.parse_known_args(arguments)
    if left:
        options = set(re.findall(r"--[a-z-]+", (known[command] if command else parser).format_help()))
        if left[0].startswith("-"):
            raise UnknownNameError("option", left[0].partition("=")[0], options)
        raise ConfigError(f"{command}: arguments must be options here, got {left[0]!r}; see omnireuse {command} --help")
    return parsed


def _demo(arguments: argparse.Namespace) -> int:
    from omnireuse.demo.command import run_demo

    config = DemoConfig(**{field.name: getattr(arguments, field.name) for field in fields(DemoConfig)})
    return 0 if run_demo(config, Console()) else INTERRUPTED


def _calibrate(arguments: argparse.Namespace) -> int:
    from omnireuse.search.command import run_calibrate

    profile = run_calibrate(
        arguments.model,
        arguments.prompts,
        arguments.out,
        Console(),
        steps=arguments.steps,
        computed_steps=arguments.computed,
        evaluations=arguments.evaluations,
        margin=arguments.margin,
        seconds=arguments.seconds,
        batch_size=arguments.batch,
        fit_prompts=arguments.fit_prompts,
        workers=arguments.workers,
        seed=arguments.seed,
        **arguments.call,
    )
    return 0 if profile.complete else INTERRUPTED


def _compare(arguments: argparse.Namespace) -> int:
    from omnireuse.compare.command import run_compare, run_merge

    if arguments.merge:
        run_merge(arguments.merge, arguments.out, Console())
        return 0
    for name, given in (("MODEL_DIR", arguments.model), ("--prompts", arguments.prompts)):
        if given is None:
            raise ConfigError(f"compare: {name} must be given, unless --merge is; see omnireuse compare --help")
    complete = run_compare(
        arguments.model,
        arguments.prompts,
        arguments.out,
        Console(),
        steps=arguments.steps,
        guidance=arguments.guidance,
        profiles=arguments.profile,
        only=arguments.only,
        seed=arguments.seed,
        timed=arguments.time,
        batch_size=arguments.batch,
        call=arguments.call,
    )
    return 0 if complete else INTERRUPTED


def _replay(arguments: argparse.Namespace) -> int:
    from omnireuse.replay.command import run_replay

    given = {field.name: getattr(arguments, field.name) for field in fields(ReplayConfig)}
    run_replay(ReplayConfig(**{name: value for name, value in given.items() if value is not None}), Console())
    return 0


def _engine_demo(arguments: argparse.Namespace) -> int:
    from omnireuse.demo.engine.command import run_engine_demo

    config = EngineDemoConfig(**{field.name: getattr(arguments, field.name) for field in fields(EngineDemoConfig)})
    return 0 if run_engine_demo(config, Console()).identical else 1


def _report(arguments: argparse.Namespace) -> int:
    from omnireuse.report.files import rebuild

    for path in rebuild(arguments.files, arguments.out):
        print(f"wrote {path}")
    return 0
