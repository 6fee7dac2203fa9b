"""A target whose first pictures are measured, as a value that opens itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch.distributed as dist

from omnireuse.arguments.targets import strategy_for
from omnireuse.arguments.tune import TuneOptions, check_tune, why_untuned
from omnireuse.hooks.extension import ByCalls
from omnireuse.hooks.opening import Opened, Tunes, Untuned
from omnireuse.loop.agreement import Agreement
from omnireuse.profiles.target import Target
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.store import Store
from omnireuse.tuning.tuner import Tuner

__all__ = ["Tuned"]


@dataclass(frozen=True)
class Tuned:
    """A target, or none for the default, with tuning unless that is turned off.

    Attributes:
        region: "step" or "call"; None for the one that serves the pipeline.
        tune: as of `enable`.
    """

    target: Target
    region: str | None = None
    tune: bool | int | TuneOptions | None = None

    def open(self, pipeline: object, group: dist.ProcessGroup | None) -> Opened:
        """The untuned default, and its tuner or why there is none.

        Raises:
            ConfigError: no strategy reaches the target, or a quality is not tuned.
        """
        why = partial(why_untuned, self.tune)
        strategy, name, *_ = strategy_for(pipeline, self.target, region=self.region, untuned=why)
        adapts = (ByCalls(),) if self.region is None else ()
        return strategy, name, (self._tunes(why(strategy.region), group), *adapts)

    def _tunes(self, untuned: str, group: dist.ProcessGroup | None) -> Tunes:
        if untuned:
            return Untuned(untuned)
        options = check_tune(self.tune)
        assert options is not None, "it is tuned"
        registry = PlanRegistry(
            pictures=options.pictures,
            store=Store(),
            command="omnireuse.enable(pipe)",
            agreement=Agreement(group),
        )
        return Tuner(self.target, registry, heartbeat=options.heartbeat)
