"""What the engine demo does; imports nothing heavy, because the command line reads its defaults here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omnireuse.errors import ConfigError

__all__ = ["EngineDemoConfig"]


@dataclass(frozen=True, kw_only=True)
class EngineDemoConfig:
    """What `run_engine_demo` does.

    Attributes:
        out: folder for the results, created where missing.
        users: conversations side by side, ≥ 1.
        turns: questions of each user, ≥ 1.
        blocks: blocks of 16 tokens of the KV cache; fewer than the conversations need make preemptions.
        seed: decides what is said and shown.

    Raises:
        ConfigError: a value out of range.
    """

    out: Path = Path("out/engine-demo")
    users: int = 5
    turns: int = 4
    blocks: int = 36
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("users", 1), ("turns", 1), ("blocks", 1), ("seed", 0)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"engine-demo({name}={value}): {name} must be at least {least}, got {value}")
