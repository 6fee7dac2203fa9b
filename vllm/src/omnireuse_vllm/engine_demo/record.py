"""The record of a comparison: what each run of the engine did in which step, and whether they answered the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["EngineComparison", "EngineRun", "write_comparison"]


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """One run of the engine over the trace.

    Attributes:
        name: which caches were on.
        num_steps, seconds: of the whole run.
        counts: what happened, by kind: prefill and decode in tokens, prefix hit in tokens not computed, encode, load
            and encoder hit in images, preempt, finish.
        marks: [step, request, kind, count], in order.
    """

    name: str
    num_steps: int
    seconds: float
    counts: dict[str, int]
    marks: list[tuple[int, str, str, int]] = field(repr=False)

    @property
    def requests(self) -> list[str]:
        """The requests, in the order of their first marks."""
        return list(dict.fromkeys(request for _, request, _, _ in self.marks))


@dataclass(frozen=True, kw_only=True)
class EngineComparison:
    """The same requests with the caches off and on.

    Attributes:
        off, on: the two runs.
        identical: whether all tokens and all codec tokens are the same.
        largest_difference: of hidden states and input embeddings; 0.0 is bit-equal.
    """

    off: EngineRun
    on: EngineRun
    identical: bool
    largest_difference: float

    @property
    def speedup(self) -> float:
        """How many times as long the run without caches took."""
        return self.off.seconds / self.on.seconds

    @property
    def verdict(self) -> str:
        """Whether the outputs are identical, in words."""
        if not self.identical:
            return "no"
        if self.largest_difference == 0.0:
            return "yes, bit for bit"
        return f"yes, states within {self.largest_difference:.0e}"


def write_comparison(comparison: EngineComparison, path: Path) -> None:
    """Write the record as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(comparison), indent=1), encoding="utf-8")
