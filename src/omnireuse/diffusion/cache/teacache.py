"""TeaCache as engines know it.

Source: "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", arXiv 2411.19108.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import torch
import torch.distributed as dist

from omnireuse.diffusion.adapters import BLOCK_STACKS
from omnireuse.diffusion.cache.base import StrategyBackend
from omnireuse.diffusion.cache.extractors import (
    CacheContext,
    ExtractedRegion,
    get_extractor,
    has_extractor,
    register_extractor,
)
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.policies import TeaCache
from omnireuse.diffusion.reuse.runtime.session import denoisers_of
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import UnknownNameError

__all__ = [
    "CacheContext",
    "TeaCacheBackend",
    "TeaCacheConfig",
    "apply_teacache_hook",
    "borrowed_coefficients",
    "get_extractor",
    "register_extractor",
]

LONGEST_REUSE = 10
CALIBRATE = (
    "to calibrate: generate with enable(pipe, policy='never', region='blocks', signal='modulated_input') and pass "
    "fit_tea_cache(handle.events) as coefficients"
)


@dataclass(frozen=True, kw_only=True)
class TeaCacheConfig:
    """TeaCache on one model.

    Args:
        rel_l1_thresh: accumulated relative L1 change at which a step computes, finite and > 0. Raising it reuses
            more; the paper's models gave about 1.5x at 0.2 with minimal loss, 1.8x at 0.4, 2.0x at 0.6 with a loss
            one sees.
        coefficients: exactly five finite numbers, highest power first; None takes the table's for `transformer_type`.
        transformer_type: class name of the denoiser.

    Raises:
        ConfigError: a threshold or coefficients out of range.
        UnknownNameError: no coefficients, and none in the table for this type.
    """

    rel_l1_thresh: float = 0.2
    coefficients: Sequence[float] | None = None
    transformer_type: str = "QwenImageTransformer2DModel"

    def __post_init__(self) -> None:
        if self.coefficients is None:
            object.__setattr__(self, "coefficients", borrowed_coefficients(self.transformer_type))
        # The policy owns the ranges; its error names the same fields.
        object.__setattr__(self, "coefficients", self.policy.coefficients)

    @property
    def policy(self) -> TeaCache:
        """The policy with these settings."""
        assert self.coefficients is not None
        return TeaCache(rel_l1_thresh=self.rel_l1_thresh, coefficients=tuple(self.coefficients))

    @property
    def strategy(self) -> Strategy:
        """The whole step cache: the block stack's residual is held while the modulated input changes little.

        A polynomial that is flat somewhere would let reuse go on for ever there; ten steps in a row are the bound.
        """
        return Strategy(policy=self.policy, region="blocks", max_consecutive=LONGEST_REUSE)


class TeaCacheBackend(StrategyBackend):
    """Reads `rel_l1_thresh` and `coefficients` of its config."""

    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable TeaCache on the pipeline's denoisers, with the table's coefficients where none were given."""
        denoisers = denoisers_of(pipeline)
        config = TeaCacheConfig(
            rel_l1_thresh=self.config.rel_l1_thresh,
            coefficients=self.config.coefficients,
            transformer_type=type(denoisers[0]).__name__,
        )
        return _open(pipeline, denoisers, config, agreement)


def apply_teacache_hook(
    module: torch.nn.Module, config: TeaCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """TeaCache on a denoiser without a pipeline. Steps are told apart by the call's `timestep` argument.

    Returns the handle; `handle.expect(num_inference_steps)` before a generation lets the last step be known and
    computed.
    """
    return _open(_Bare(module), [module], config, Agreement(group))


class _Bare:
    """A pipeline that is nothing but its denoiser."""

    def __init__(self, transformer: torch.nn.Module) -> None:
        self.transformer = transformer


def _open(pipeline: Any, denoisers: Sequence[torch.nn.Module], config: TeaCacheConfig, agreement: Agreement) -> Handle:
    extracted = all(has_extractor(type(denoiser).__name__) for denoiser in denoisers)
    return Handle(
        pipeline,
        config.strategy,
        name="tea_cache",
        region=(lambda strategy, emit, modules, _owner: ExtractedRegion(strategy, emit, modules))
        if extracted
        else None,
        agreement=agreement,
    )


@cache
def _table() -> list[dict[str, Any]]:
    text = resources.files("omnireuse.diffusion.cache").joinpath("data/teacache_coefficients.json").read_text("utf-8")
    rows: list[dict[str, Any]] = json.loads(text)["rows"]
    return rows


def borrowed_coefficients(transformer_type: str) -> tuple[float, ...]:
    """Coefficients that others fitted for a checkpoint of this class: the first row that was fitted on the signal we
    watch.

    Raises:
        UnknownNameError: none published; the error lists the types and says how to calibrate.
    """
    rows = [row for row in _table() if row["transformer_class"] == transformer_type]
    stack = BLOCK_STACKS.get(transformer_type)
    if stack is not None:
        rows = [row for row in rows if row["signal"] == stack.signal_name]
    if not rows:
        known = {row["transformer_class"] for row in _table()}
        raise UnknownNameError("transformer type for TeaCache coefficients", transformer_type, known, hint=CALIBRATE)
    return tuple(rows[0]["coefficients"])
