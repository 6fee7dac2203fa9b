"""What the demo does, as numbers; imports nothing heavy, because the command line reads its defaults here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from omnireuse.errors import ConfigError
from reference.load import FACES_SAMPLING, VIDEO_SAMPLING

__all__ = ["DemoConfig"]


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What `run_demo` does.

    Attributes:
        video: whether the reference video pipeline is compared instead of the image pipeline.
        model: folder of the reference pipeline; None for the one of the repository.
        out: folder for the results, created where missing.
        steps: denoising steps of the full run, ≥ 4; None for what the pipeline is usually asked for.
        guidance: classifier-free guidance, ≥ 1; 1 is none; None for the usual.
        prompts: how many prompts, ≥ 1.
        seed: decides prompts and noise, ≥ 0.

    Raises:
        ConfigError: a value out of range.
    """

    video: bool = False
    model: Path | None = None
    out: Path = Path("out/demo")
    steps: int | None = None
    guidance: float | None = None
    prompts: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 4), ("prompts", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(
                    f"demo({name}={value}): {name} must be a whole number of at least {least}, got {value}"
                )
        if self.guidance is not None and not (math.isfinite(self.guidance) and self.guidance >= 1.0):
            raise ConfigError(
                f"demo(guidance={self.guidance}): guidance must be a finite number of at least 1, got {self.guidance}; "
                "1 is no guidance"
            )

    @property
    def full_steps(self) -> int:
        """`steps`, or what the pipeline is usually asked for."""
        usual: int = (VIDEO_SAMPLING if self.video else FACES_SAMPLING)["num_inference_steps"]
        return usual if self.steps is None else self.steps

    @property
    def full_guidance(self) -> float:
        """`guidance`, or what the pipeline is usually asked for."""
        usual: float = VIDEO_SAMPLING["guidance_scale"] if self.video else FACES_SAMPLING["true_cfg_scale"]
        return usual if self.guidance is None else self.guidance
