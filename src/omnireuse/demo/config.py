"""What the demo does, as numbers; imports nothing heavy, because the command line reads its defaults here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from omnireuse.errors import ConfigError
from omnireuse.reference.load import SAMPLING

__all__ = ["DemoConfig"]


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What `run_demo` does.

    Attributes:
        model: folder of the reference pipeline; None for the one of the repository.
        out: folder for the results, created where missing.
        steps: denoising steps of the full run, ≥ 4.
        guidance: classifier-free guidance, ≥ 1; 1 is none.
        prompts: how many prompts, ≥ 1.
        seed: decides prompts and noise, ≥ 0.

    Raises:
        ConfigError: a value out of range.
    """

    model: Path | None = None
    out: Path = Path("out/demo")
    steps: int = SAMPLING["num_inference_steps"]
    guidance: float = SAMPLING["true_cfg_scale"]
    prompts: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 4), ("prompts", 1), ("seed", 0)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(
                    f"demo({name}={value}): {name} must be a whole number of at least {least}, got {value}"
                )
        if not (math.isfinite(self.guidance) and self.guidance >= 1.0):
            raise ConfigError(
                f"demo(guidance={self.guidance}): guidance must be a finite number of at least 1, got {self.guidance}; "
                "1 is no guidance"
            )
