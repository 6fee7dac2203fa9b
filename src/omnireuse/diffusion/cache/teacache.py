"""TeaCache as engines know it.

Source: "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", arXiv 2411.19108.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from omnireuse.diffusion.adapters import BLOCK_STACKS
from omnireuse.diffusion.cache.base import StrategyBackend
from omnireuse.diffusion.cache.borrowed import borrowed_rows, checkpoint_of, choose_row
from omnireuse.diffusion.cache.extractors import (
    CacheContext,
    get_extractor,
    register_extractor,
)
from omnireuse.diffusion.cache.opening import Bare, open_blocks
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.policies import TeaCache
from omnireuse.diffusion.reuse.runtime.session import denoisers_of
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
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

    options = ("coefficients", "rel_l1_thresh")

    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable TeaCache on the pipeline's denoisers, with the table's coefficients where none were given."""
        denoisers = denoisers_of(pipeline)
        model = type(unwrapped(denoisers[0])).__name__
        config = TeaCacheConfig(
            rel_l1_thresh=self.config.rel_l1_thresh,
            coefficients=self.config.coefficients or borrowed_coefficients(model, checkpoint_of(pipeline)),
            transformer_type=model,
        )
        return open_blocks(pipeline, config.strategy, name="tea_cache", agreement=agreement)


def apply_teacache_hook(
    module: torch.nn.Module, config: TeaCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """TeaCache on a denoiser without a pipeline. Steps are told apart by the call's `timestep` argument.

    Returns the handle; `handle.expect(num_inference_steps)` before a generation lets the last step be known and
    computed.
    """
    return open_blocks(Bare(module), config.strategy, name="tea_cache", agreement=Agreement(group))


def borrowed_coefficients(transformer_type: str, checkpoint: str = "") -> tuple[float, ...]:
    """Coefficients that others fitted for a checkpoint of this class, on the signal that we watch.

    Args:
        transformer_type: class name of the denoiser.
        checkpoint: name or path of the pipeline; where it names none of the table's, the class's first row is borrowed.

    Raises:
        UnknownNameError: none published; the error lists the types and says how to calibrate.
    """
    table = borrowed_rows("teacache_coefficients")
    rows = [row for row in table if row["transformer_class"] == transformer_type]
    stack = BLOCK_STACKS.get(transformer_type)
    if stack is not None:
        rows = [row for row in rows if row["signal"] == stack.signal_name]
    if not rows:
        known = {row["transformer_class"] for row in table}
        raise UnknownNameError("transformer type for TeaCache coefficients", transformer_type, known, hint=CALIBRATE)
    return tuple(choose_row(rows, checkpoint)["coefficients"])
