"""The pipeline that is compared on, what is asked of it, and how its pictures are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse.errors import ConfigError

__all__ = ["GUIDANCE", "Picture", "Subject", "guided_call"]

GUIDANCE = ("true_cfg_scale", "guidance_scale")
"""Names of the argument that sets guidance. Where a pipeline has both, the second is what a distilled model is told and
costs no second branch."""

Picture = NDArray[Any]
"""An image (height, width, 3) or a clip (frames, height, width, 3), floats in 0..1."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One pipeline at one number of steps and one guidance.

    Args:
        name: for the record.
        pipeline: a diffusers pipeline that makes images or clips.
        steps: denoising steps of the full run.
        guidance: for the record; what sets it stands in `call`.
        prompts: not empty.
        seed: of the first prompt's noise; the others count on from it.
        call: arguments of every call beside prompt, steps and noise.
        checks: for each prompt, what tells which of its attributes a picture shows; empty where nothing can.
        batch_size: prompts a call, where a method decides nothing by what it sees.

    Raises:
        ConfigError: no prompts, or another number of checks.
    """

    name: str
    pipeline: Any
    steps: int
    guidance: float
    prompts: tuple[str, ...]
    seed: int
    call: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Callable[[Picture], Mapping[str, bool]], ...] = ()
    batch_size: int = 1

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("Subject(prompts): prompts must hold at least one")
        if self.checks and len(self.checks) != len(self.prompts):
            raise ConfigError(
                f"Subject(checks): checks must be as many as the {len(self.prompts)} prompts, got {len(self.checks)}"
            )

    def pictures(self, numbers: Sequence[int], steps: int, **extra: Any) -> list[Picture]:
        """One picture for each of these prompts, all in one call."""
        prompts: Any = [self.prompts[number] for number in numbers]
        generators: Any = [torch.Generator().manual_seed(self.seed + number) for number in numbers]
        call = {**self.call, **extra}
        if len(numbers) == 1:
            prompts, generators = prompts[0], generators[0]
        else:
            # Pipelines want a list beside a list.
            listed = [name for name in call if name.startswith("negative_prompt") and isinstance(call[name], str)]
            call |= {name: [call[name]] * len(numbers) for name in listed}
        result = self.pipeline(
            prompt=prompts, generator=generators, num_inference_steps=steps, output_type="np", **call
        )
        return [np.asarray(picture) for picture in next(iter(result.values()))]

    def accepts(self, argument: str) -> bool:
        """Whether the pipeline's call has an argument of this name."""
        return argument in inspect.signature(type(self.pipeline).__call__).parameters


def guided_call(pipeline: Any, guidance: float) -> dict[str, Any]:
    """The arguments that sample with classifier-free guidance of this strength; 1 is none.

    Raises:
        ConfigError: a pipeline that takes no guidance.
    """
    known = inspect.signature(type(pipeline).__call__).parameters
    name = next((name for name in GUIDANCE if name in known), None)
    if name is None:
        raise ConfigError(
            f"compare(guidance={guidance:g}): {type(pipeline).__name__} takes neither {' nor '.join(GUIDANCE)}; "
            "leave guidance out"
        )
    call: dict[str, Any] = {name: guidance}
    if "negative_prompt" in known and guidance > 1.0:
        call["negative_prompt"] = ""
    return call
