"""The results of a search in a file, written as they come, so that an interrupted search can go on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import torch

from omnireuse.diffusion.calibration.candidate import Candidate, Scores
from omnireuse.diffusion.fingerprint import tensor_checksum
from omnireuse.errors import ConfigError
from omnireuse.records import Record

__all__ = ["Journal", "Result", "call_texts", "remove_journal"]

logger = logging.getLogger("omnireuse")

FORMAT = 3


class _Head(Record, frozen=True, kw_only=True):
    format: int
    setup: dict[str, str]


class Result(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What runs of a candidate have shown: PSNR of each prompt, and the weights that were fitted on these runs."""

    psnr: Scores
    weights: tuple[tuple[tuple[float, ...], ...], ...] = ()


class _Line(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Runs that were spent, with the candidate that they have scored, if any."""

    part: str | None = None
    candidate: Candidate | None = None
    result: Result | None = None
    runs: float


def remove_journal(path: Path) -> None:
    """Delete a journal, if there is one.

    Raises:
        ConfigError: the file is no journal, or cannot be deleted.
    """
    try:
        with path.open("rb") as file:
            head = file.readline()
        if head and not head.startswith(b'{"format"'):
            raise ConfigError(f"{path}: not a journal, so it is not removed; move it, or name another profile")
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: cannot be removed ({error.strerror})") from error


class Journal:
    """JSON lines: first what scores depend on, then one for each scored candidate and each set of full runs.

    A kill costs the line that is being written.

    Args:
        path: the file, made if there is none; None keeps everything in memory.
        setup: what scores depend on, as short texts by name.

    Raises:
        ConfigError: the journal of another setup, no journal at all, or a path that cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, setup: Mapping[str, str]) -> None:
        self._results: dict[tuple[str, Candidate], Result] = {}
        self._file: IO[bytes] | None = None
        self._pending = 0.0
        self.runs = 0.0
        """Full runs of one prompt that were spent, also by earlier searches with this journal."""
        if path is None:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = Path(path).open("a+b")  # noqa: SIM115  # `close` closes it
            self._read(Path(path), self._file, dict(setup))
        except OSError as error:
            raise ConfigError(f"journal({str(path)!r}): cannot be written ({error.strerror}); name another") from error
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path, file: IO[bytes], setup: dict[str, str]) -> None:
        file.seek(0)
        *lines, rest = file.read().split(b"\n")
        if rest:
            logger.warning("%s: the last line was cut off and is dropped", path)
            file.truncate(sum(len(line) + 1 for line in lines))
        if not lines:
            self._write(_Head(format=FORMAT, setup=setup))
            return
        try:
            head = msgspec.json.decode(lines[0], type=_Head)
            if head.format != FORMAT:
                raise ConfigError(f"{path}: format {head.format} is not {FORMAT}; delete it to search anew")
            entries = [msgspec.json.decode(line, type=_Line) for line in lines[1:]]
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: not a journal ({error}); delete it, or name another") from error
        for entry in entries:
            self.runs += entry.runs
            if entry.part is not None and entry.candidate is not None and entry.result is not None:
                self._results[entry.part, entry.candidate] = entry.result
        other = [
            f"{name} {head.setup.get(name, 'none')} instead of {setup.get(name, 'none')}"
            for name in sorted({*head.setup, *setup})
            if head.setup.get(name) != setup.get(name)
        ]
        if other:
            raise ConfigError(
                f"{path}: the journal of another search ({', '.join(other)}); delete it (--fresh of the command does), "
                "or name another"
            )
        logger.info("%s: going on after %d scored schedules", path, len(self._results))

    def find(self, part: str, candidate: Candidate) -> Result | None:
        """What is known of a candidate on that part of the prompts."""
        return self._results.get((part, candidate))

    def spend(self, runs: float) -> None:
        """Count runs that were spent; the next line holds them."""
        self.runs += runs
        self._pending += runs

    def add(self, part: str, candidate: Candidate, result: Result) -> None:
        """Write what is known of a candidate, and the runs spent since the last line."""
        self._results[part, candidate] = result
        self._write(_Line(part=part, candidate=candidate, result=result, runs=self._pending))
        self._pending = 0.0

    def flush(self) -> None:
        """Write the runs spent since the last line."""
        if self._pending:
            self._write(_Line(runs=self._pending))
            self._pending = 0.0

    def _write(self, entry: Record) -> None:
        if self._file is not None:
            self._file.write(msgspec.json.encode(entry) + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self._file is not None and not self._file.closed:
            self.flush()
            self._file.close()


def call_texts(call: Mapping[str, Any]) -> dict[str, str]:
    """The arguments of a pipeline's call as short texts, equal in every process.

    Raises:
        ConfigError: an argument that cannot be pickled, so that no other process can have it.
    """
    return {name: json.dumps(value, sort_keys=True, default=_digest) for name, value in call.items()}


def _digest(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {tensor_checksum(value)}"
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"calibrate(journal=…): arguments of the call must be picklable, got {type(value).__name__} ({error})"
        ) from error
