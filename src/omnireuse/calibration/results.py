"""The results of a search, kept as they come, so that an interrupted search can go on."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from omnireuse.base.journal import IN_MEMORY, Journal
from omnireuse.base.records import Record
from omnireuse.planning.candidate import Candidate, Scores

__all__ = ["Result", "Results"]

SPENT = "the search", "runs", 0
"""Where the journal holds the runs that were spent."""


class Result(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What runs of a candidate have shown: PSNR of each prompt, and the weights that were fitted on these runs."""

    psnr: Scores
    weights: tuple[tuple[tuple[float, ...], ...], ...] = ()


class Results:
    """The scored candidates, and what they cost, in a journal.

    Args:
        path: of the journal; None keeps everything in memory.
        setup: what scores depend on, as short texts by name.

    Raises:
        ConfigError: the journal of another setup, no journal at all, or a path that cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, setup: Mapping[str, str]) -> None:
        self._journal = Journal(IN_MEMORY if path is None else path)
        try:
            self._journal.check_setup(SPENT[0], setup)
        except BaseException:
            self.close()
            raise
        self.runs: float = self._journal.find(*SPENT, float) or 0.0
        """Full runs of one prompt that were spent, also by earlier searches with this journal."""

    def find(self, part: str, candidate: Candidate) -> Result | None:
        """What is known of a candidate on that part of the prompts."""
        return self._journal.find(part, _key(candidate), 0, Result)

    def spend(self, runs: float) -> None:
        """Count runs that were spent."""
        self.runs += runs
        part, run, number = SPENT
        self._journal.add(part, run, {number: self.runs})

    def add(self, part: str, candidate: Candidate, result: Result) -> None:
        """Keep what is known of a candidate."""
        self._journal.add(part, _key(candidate), {0: result})

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()


def _key(candidate: Candidate) -> str:
    return msgspec.json.encode(candidate).decode()
