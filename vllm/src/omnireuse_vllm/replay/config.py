"""What ``omnireuse replay`` does; imports nothing heavy, because the command line reads its defaults here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omnireuse.errors import ConfigError

__all__ = ["ReplayConfig"]


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """What `run_replay` does; ranges are checked there.

    Attributes:
        trace: file of accesses, see `omnireuse_vllm.replay.traces`; with `make`, the file to write.
        capacity: embeddings, one replay each; None for shares of the trace's own items.
        out: folder for the results, created where missing; None for ``out/replay``.
        make: kind of trace to make instead of a replay.
        accesses, seed, size: of the trace to make; None for 20,000, 0 and a mix of sizes.

    Raises:
        ConfigError: something that is only for the other of the two.
    """

    trace: Path
    capacity: tuple[int, ...] | None = None
    out: Path | None = None
    make: str | None = None
    accesses: int | None = None
    seed: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        unread = ("accesses", "seed", "size") if self.make is None else ("capacity", "out")
        for name in unread:
            value = getattr(self, name)
            if value is not None:
                must = "come with make" if self.make is None else "not come with make, which replays nothing"
                raise ConfigError(f"replay({name}={value}): {name} must {must}, got make={self.make!r}")
