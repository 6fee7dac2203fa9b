"""What a search has scored, written down as it goes, so that one that was cut off goes on where it was."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from omnireuse.diffusion.calibration.candidate import Candidate, from_record, to_record
from omnireuse.diffusion.calibration.evaluator import Evaluator, Scores
from omnireuse.diffusion.reuse.forecasters import Fitted
from omnireuse.errors import ConfigError

__all__ = ["Journal", "Remembered", "remove_journal"]

logger = logging.getLogger("omnireuse")

FORMAT = 2


def remove_journal(path: Path) -> None:
    """Delete a journal, where there is one.

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
    """JSON lines: first what was searched on, then one for every scored candidate and every set of full runs.

    A kill costs the line that was being written, no more.

    Args:
        path: the file, made where there is none; None keeps everything in memory.
        setup: what scores depend on, in short texts by name. A journal of another setup is of no use.

    Raises:
        ConfigError: a journal of another setup, no journal at all, or a path that cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, setup: Mapping[str, str]) -> None:
        self._scores: dict[tuple[str, Candidate], Scores] = {}
        self._file: IO[bytes] | None = None
        self.runs = 0.0
        """Full runs of one prompt that were spent, those of earlier searches in this journal among them."""
        self.known_runs = 0.0
        """What those of them cost that need not be made again."""
        if path is None:
            return
        self._path = Path(path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+b")
            self._read(dict(setup))
        except OSError as error:
            raise ConfigError(f"journal({str(path)!r}): cannot be written ({error.strerror}); name another") from error
        except BaseException:
            self.close()
            raise

    def _read(self, setup: dict[str, str]) -> None:
        assert self._file is not None
        self._file.seek(0)
        *lines, rest = self._file.read().split(b"\n")
        if rest:
            logger.warning("%s: the last line was cut off and is dropped", self._path)
            self._file.truncate(sum(len(line) + 1 for line in lines))
        if not lines:
            self._write({"format": FORMAT, "setup": setup})
            return
        try:
            head = json.loads(lines[0])
            if head["format"] != FORMAT:
                raise ConfigError(f"{self._path}: format {head['format']!r} is not {FORMAT}; delete it to search anew")
            made_for = dict(head["setup"])
            entries = [json.loads(line) for line in lines[1:]]
            for entry in entries:
                self.runs += entry["runs"]
                if "candidate" in entry:
                    self.known_runs += entry["runs"]
                    self._scores[entry["part"], from_record(entry["candidate"])] = tuple(map(float, entry["psnr"]))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self._path}: not a journal ({error!r}); delete it, or name another") from error
        other = [
            f"{name} {made_for.get(name, 'none')} instead of {setup.get(name, 'none')}"
            for name in sorted({*made_for, *setup})
            if made_for.get(name) != setup.get(name)
        ]
        if other:
            raise ConfigError(
                f"{self._path}: the journal of another search ({', '.join(other)}); delete it (--fresh of the command "
                "does), or name another"
            )
        logger.info("%s: going on after %d scored schedules", self._path, len(self._scores))

    def find(self, part: str, candidate: Candidate) -> Scores | None:
        """What a candidate was worth on that part of the prompts, if it is known."""
        return self._scores.get((part, candidate))

    def add(self, part: str, candidate: Candidate, scores: Scores, runs: float) -> None:
        """Write down what a candidate is worth, and the full runs spent since the last entry."""
        self._scores[part, candidate] = scores
        self.spend(runs, part=part, candidate=to_record(candidate), psnr=list(scores))

    def spend(self, runs: float, **entry: Any) -> None:
        """Write down that runs were spent."""
        self.runs += runs
        self._write({**entry, "runs": runs})

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class Remembered:
    """A scorer that asks an evaluator only for what the journal does not hold, and writes down what it says.

    Args:
        evaluator: knows the rest; the full runs that it has made already are accounted for.
        journal: keeps what is known.
        part: name of the evaluator's prompts in the journal.
    """

    def __init__(self, evaluator: Evaluator, journal: Journal, part: str) -> None:
        self._evaluator, self._journal, self._part = evaluator, journal, part
        self._noted = evaluator.runs

    def fitted(self, candidates: Sequence[Candidate]) -> dict[Candidate, Fitted]:
        """As `Evaluator.fitted`; weights are not kept in the journal, but fitted again."""
        try:
            return self._evaluator.fitted(candidates)
        finally:
            self._account()

    def scores(
        self, candidates: Sequence[Candidate], fitted: Mapping[Candidate, Fitted] | None = None
    ) -> Iterator[tuple[Candidate, Scores]]:
        """As `Evaluator.scores`, known ones first."""
        unknown = []
        for candidate in candidates:
            known = self._journal.find(self._part, candidate)
            if known is None:
                unknown.append(candidate)
            else:
                yield candidate, known
        try:
            for candidate, scores in self._evaluator.scores(unknown, fitted) if unknown else ():
                self._journal.add(self._part, candidate, scores, self._spent())
                yield candidate, scores
        finally:
            # What candidates have cost that were not finished.
            self._account()

    def _account(self) -> None:
        if runs := self._spent():
            self._journal.spend(runs)

    def _spent(self) -> float:
        since, self._noted = self._evaluator.runs - self._noted, self._evaluator.runs
        return since
