"""What a tuned plan belongs to, by content: equal in every process that makes the same runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from omnireuse.diffusion.calibration.origin import Origin, fingerprint
from omnireuse.diffusion.reuse.runtime.denoisers import dtype_of
from omnireuse.diffusion.reuse.runtime.run import RunStart
from omnireuse.records import Record

__all__ = ["Configuration"]


class Configuration(Record, frozen=True, kw_only=True):
    """Runs that are alike.

    Attributes:
        pipeline: class of the pipeline.
        conditions: the denoisers, their weights and how they compute, as text by name.
        scheduler: class of the scheduler.
        noises: share of noise at each step, rounded.
        guidance: the guidance scales of the call, by argument.
        shape: of the denoiser's latents without the batch.
    """

    pipeline: str
    conditions: Mapping[str, str]
    scheduler: str
    noises: tuple[float, ...]
    guidance: Mapping[str, float]
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, pipeline: Any, start: RunStart, scales: Mapping[str, float], conditions: Mapping[str, str]
    ) -> Configuration:
        """Of a run that begins.

        Args:
            pipeline: the pipeline.
            start: the run.
            scales: guidance scales of the call.
            conditions: as in the class.
        """
        return cls(
            pipeline=type(pipeline).__name__,
            conditions=dict(conditions),
            scheduler=type(start.scheduler).__name__,
            noises=tuple(round(level.coordinate, 4) for level in start.levels[: start.total]),
            guidance=dict(scales),
            shape=start.shape[1:],
        )

    @property
    def digest(self) -> str:
        """32 hex digits."""
        import msgspec

        text = json.dumps(msgspec.to_builtins(self, str_keys=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def conditions_of(pipeline: Any) -> dict[str, str]:
    """The denoisers of a pipeline, their weights, and how they compute."""
    model, digest, _ = fingerprint(pipeline)
    origin = Origin.of(pipeline)
    return {
        "model": model,
        "config": digest,
        "weights": str(origin.weights),
        "adapters": ", ".join(origin.adapters),
        "dtype": dtype_of(pipeline),
    }
