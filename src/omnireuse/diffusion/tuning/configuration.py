"""What a tuned plan belongs to, by content: equal in every process that makes the same runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from omnireuse.diffusion.calibration.conditions import Conditions, watch_of
from omnireuse.diffusion.reuse.runtime.run import RunStart
from omnireuse.records import Record

__all__ = ["Configuration"]


class Configuration(Record, frozen=True, kw_only=True):
    """Runs that are alike.

    Attributes:
        pipeline: class of the pipeline.
        conditions: the denoisers, their weights and how they compute.
        scheduler: class of the scheduler.
        noises: share of noise at each step, rounded.
        call: arguments of the pipeline's call but contents and noise, as text by name.
        shape: of the denoiser's latents without the batch.
    """

    pipeline: str
    conditions: Conditions
    scheduler: str
    noises: tuple[float, ...]
    call: Mapping[str, str]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, pipeline: Any, start: RunStart, arguments: Mapping[str, Any]) -> Configuration:
        """Of a run that begins.

        Args:
            pipeline: the pipeline.
            start: the run.
            arguments: as `arguments_of` gives them.
        """
        return cls(
            pipeline=type(pipeline).__name__,
            conditions=watch_of(pipeline).now(),
            scheduler=type(start.scheduler).__name__,
            noises=tuple(round(level.coordinate, 4) for level in start.levels[: start.total]),
            call={name: repr(value) for name, value in sorted(arguments.items())},
            shape=start.shape[1:],
        )

    @property
    def digest(self) -> str:
        """32 hex digits."""
        text = json.dumps(msgspec.to_builtins(self, str_keys=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
