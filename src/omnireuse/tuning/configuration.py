"""What a tuned plan belongs to, by content: equal in every process that makes the same runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from omnireuse.base.records import Record
from omnireuse.hooks.run import RunStart
from omnireuse.pipelines.call_arguments import read_argument, scales_of
from omnireuse.profiles.conditions import Conditions, watch_of
from omnireuse.profiles.origin import Origin
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.profile import Profile

__all__ = ["Configuration"]


class Configuration(Record, frozen=True, kw_only=True):
    """Runs that are alike.

    Attributes:
        pipeline: class of the pipeline.
        conditions: the denoisers, their weights and how they compute.
        scheduler: class of the scheduler.
        noises: noise fraction at each step, rounded.
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
    def of(cls, pipeline: object, start: RunStart, arguments: Mapping[str, Any]) -> Configuration:
        """The configuration of a run that begins.

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

    def has_weights_of(self, pipeline: object) -> bool:
        """Whether a pipeline has the weights and the adapters of these runs now."""
        now = watch_of(pipeline).now()
        return (now.weights, now.adapters) == (self.conditions.weights, self.conditions.adapters)

    @property
    def digest(self) -> str:
        """A digest of the configuration: 32 hex digits."""
        text = json.dumps(self.content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def content(self) -> dict[str, Any]:
        """The configuration as JSON."""
        content: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return content

    @property
    def words(self) -> str:
        """The arguments that a plan is for."""
        call = {**self.call, "num_inference_steps": str(len(self.noises))}
        return ", ".join(f"{name}={text:.40}" for name, text in call.items() if text != "None")

    def profile(self, plans: Mapping[int, Plan], **found: object) -> Profile:
        """The plans, by their number of computed steps, as a profile; `found` has its further attributes."""
        conditions, call = self.conditions, dict(self.call)
        if scales_of({name: read_argument(text) for name, text in call.items()}).get("true_cfg_scale", 1.0) > 1:
            call["negative_prompt"] = repr("")  # true guidance has no effect without one, and its text does not count
        return Profile.of(
            conditions,
            Origin(weights=conditions.weights, adapters=conditions.adapters, holding=conditions.holding),
            num_inference_steps=len(self.noises),
            call=call,
            prompts_digest="",
            seed=0,
            complete=True,
            measured=None,
            plans=dict(sorted(plans.items())),
            **found,
        )
