"""What was measured, written while it grows, and put together again from parts that ran side by side."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import omnireuse
from omnireuse.diffusion.reuse.runtime.placement import device_of, dtype_of
from omnireuse.errors import ConfigError
from omnireuse.evaluation.compare.front import targets
from omnireuse.evaluation.report.pareto import Case, Pareto, Point, read_pareto, write_pareto

__all__ = ["Record", "merged"]

FILE = "compare.json"


class Record:
    """A comparison that is written to ``folder/compare.json`` whenever a case has grown."""

    def __init__(self, folder: Path, command: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self._command, self._created = command, datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._cases: dict[tuple[str, int, float], Case] = {}
        self._place: dict[str, str] = {}

    def place(self, pipeline: Any) -> None:
        """Note where the pipeline computes, and in which precision; before the first case is kept."""
        self._place = {"device": device_of(pipeline), "dtype": dtype_of(pipeline)}

    def keep(self, case: Case) -> None:
        """Take the newest state of a case, and write all."""
        self._cases[case.pipeline, case.steps, case.guidance] = case
        write_pareto(self.pareto(complete=False), self.path)

    def finish(self, *, complete: bool) -> Pareto | None:
        """Write all a last time; None where nothing was measured."""
        if not self._cases:
            return None
        write_pareto(self.pareto(complete=complete), self.path)
        return self.pareto(complete=complete)

    def pareto(self, *, complete: bool) -> Pareto:
        """All so far."""
        return Pareto(
            command=self._command,
            created=self._created,
            environment={**_environment(), **self._place},
            complete=complete,
            cases=tuple(self._cases.values()),
        )


def merged(paths: Iterable[Path]) -> Pareto:
    """Parts of one comparison, put together: points of the same case side by side, the later of two alike.

    Raises:
        ConfigError: a file that is no comparison, two environments, or a case with two sets of prompts.
    """
    parts = [(path, read_pareto(path)) for path in paths]
    cases: dict[tuple[str, int, float], Case] = {}
    for path, part in parts:
        if part.environment != parts[0][1].environment:
            raise ConfigError(f"merge({path}): environment must be that of {parts[0][0]}; they ran on unlike machines")
        for case in part.cases:
            key = case.pipeline, case.steps, case.guidance
            known = cases.get(key, case)
            if known.prompts != case.prompts:
                raise ConfigError(f"merge({path}): {case.name} must have the prompts of the other parts")
            points = {_setting(point): point for point in (*known.points, *case.points)}
            full = case.full if case.full.seconds is not None else known.full
            cases[key] = replace(case, full=full, points=tuple(points.values()))
    return Pareto(
        command="; ".join(dict.fromkeys(part.command for _, part in parts)),
        created=max(part.created for _, part in parts),
        environment=parts[0][1].environment,
        complete=all(part.complete for _, part in parts),
        cases=tuple(replace(case, targets=targets(case)) for _, case in sorted(cases.items())),
    )


def _setting(point: Point) -> tuple[str, str]:
    return point.method, repr(sorted(point.settings.items()))


def _environment() -> dict[str, str]:
    import torch

    found = {"omnireuse": omnireuse.__version__, "python": platform.python_version()}
    for name in ("torch", "diffusers", "transformers", "cache-dit"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    found["processor"] = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return found
