"""Backends that need nothing known about the model: EasyCache, SeaCache, TaylorSeer and error control by name."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from omnireuse.diffusion.cache.base import StrategyBackend
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.forecasters import BestOrder, Blend, Polynomial
from omnireuse.diffusion.reuse.policies import EasyCache, ErrorControl, FixedSchedule, SeaCache
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.validation import field_error

__all__ = ["EasyCacheBackend", "ErrorControlBackend", "SeaCacheBackend", "TaylorSeerBackend"]


class _OnlineBackend(StrategyBackend):
    name: str

    @property
    @abstractmethod
    def strategy(self) -> Strategy:
        """The whole step cache."""

    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable the strategy on the pipeline's denoisers."""
        return Handle(pipeline, self.strategy, name=self.name, agreement=agreement)


class EasyCacheBackend(_OnlineBackend):
    """Reads `easy_thresh` and `easy_warmup_steps` of its config.

    All calls of a step are decided on together, and x0 after guidance is forecast by `Blend`, which on the reference
    pipeline was better than holding at every threshold (`python -m bench strategies`).
    """

    name = "easy_cache"
    options = ("easy_thresh", "easy_warmup_steps")

    @property
    def strategy(self) -> Strategy:
        """EasyCache on all calls of a step."""
        policy = EasyCache(threshold=self.config.easy_thresh, warmup=self.config.easy_warmup_steps)
        return Strategy(policy=policy, forecaster=Blend())


class SeaCacheBackend(_OnlineBackend):
    """Reads `sea_thresh` and `sea_warmup_steps` of its config. As with EasyCache, `Blend` stands in."""

    name = "sea_cache"
    options = ("sea_thresh", "sea_warmup_steps")

    @property
    def strategy(self) -> Strategy:
        """SeaCache on all calls of a step: the branches start from the same latents and would decide alike."""
        policy = SeaCache(threshold=self.config.sea_thresh, warmup=self.config.sea_warmup_steps)
        return Strategy(policy=policy, forecaster=Blend())


class TaylorSeerBackend(_OnlineBackend):
    """Reads the `taylorseer_…` fields of its config but `enable_taylorseer`.

    Source: "From Reusing to Forecasting", arXiv 2503.06923, on the whole output instead of every layer's: after the
    warm-up one step of each interval computes, and a polynomial of the given order, at true spacing, stands in for the
    others.
    """

    name = "taylorseer"
    options = ("taylorseer_interval", "taylorseer_order", "taylorseer_warmup_steps")

    @property
    def strategy(self) -> Strategy:
        """A fixed schedule with a polynomial on each branch's output."""
        if self.config.taylorseer_order > 3:
            raise field_error(self.config, "taylorseer_order", "be 1, 2 or 3 for backend 'taylorseer'")
        policy = FixedSchedule(every=self.config.taylorseer_interval, warmup=self.config.taylorseer_warmup_steps)
        forecaster = Polynomial(order=self.config.taylorseer_order)
        return Strategy(policy=policy, forecaster=forecaster, region="call", quantity="output")


class ErrorControlBackend(_OnlineBackend):
    """Reads `error_tolerance` and `error_max_gap` of its config."""

    name = "error_control"
    options = ("error_max_gap", "error_tolerance")

    @property
    def strategy(self) -> Strategy:
        """Error control of what the scheduler is handed, with the order that the last computed step recommends."""
        policy = ErrorControl(tolerance=self.config.error_tolerance, max_gap=self.config.error_max_gap)
        return Strategy(policy=policy, forecaster=BestOrder())
