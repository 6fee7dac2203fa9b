"""Region `tail`: the first blocks run and show the change, the middle of the stack is skipped, the last blocks run.

Additions between blocks (ControlNet, VACE) before the middle enter it, those within it are part of its residual, and
those behind it are made by the model as ever: on a reused step each counts once.

Source: DBCache of cache-dit (https://github.com/vipshop/cache-dit): its Fn and Bn are `first_blocks` and `last_blocks`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from omnireuse.errors import ConfigError
from omnireuse.hooks.interception import MethodCall
from omnireuse.hooks.regions.blocks import BlocksRegion
from omnireuse.hooks.regions.stack import Block, BlockStack, StackPass
from omnireuse.hooks.run import DenoiserCall

__all__ = ["TailRegion"]

logger = logging.getLogger("omnireuse")


class TailRegion(BlocksRegion):
    """One decision a denoiser call, taken behind the first blocks.

    The signal "first_residual" is the output of the first blocks minus their input, of the stream that becomes the
    model's output.

    Raises:
        ConfigError: more first and last blocks than a stack has, or last blocks that read skipped ones.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._whole: list[torch.nn.Module] = []
        super().__init__(*args, **kwargs)

    def _attach(self, denoiser: torch.nn.Module, stack: BlockStack) -> None:
        # Blocks that only feed others (the control blocks of VACE) run at every step, as the last blocks read them.
        blocks = [block for block in stack.blocks_of(denoiser) if block.bypass is None]
        first, last = self._strategy.kept_blocks
        name, given = type(denoiser).__name__, {"first_blocks": f"{first}", "last_blocks": f"{last}"}
        if first + last > len(blocks):
            most = f"be at most the {len(blocks)} blocks of {name}"
            raise ConfigError.of_fields("Strategy", given, most, f"{first + last}")
        if stack.has_long_skips and last > first:
            why = f"the last blocks of {name} read skip connections from its first blocks"
            raise ConfigError.of_fields("Strategy", given, "be no more last blocks than first ones", f"{last}", do=why)
        middle = blocks[first : len(blocks) - last]
        if not middle:
            logger.warning("%s: all %d blocks always run, so nothing is reused", name, len(blocks))
            self._whole.append(denoiser)
            return
        self._skip(middle)
        self._watch(blocks, stack)

    def _watch(self, blocks: Sequence[Block], stack: BlockStack) -> None:
        if self._strategy.chosen_signal != "first_residual":
            super()._watch(blocks, stack)
            return
        kept, _ = self._strategy.kept_blocks
        first, last = blocks[0], blocks[kept - 1]

        def before(current: StackPass, call: MethodCall) -> Any:
            # Copied, because blocks may write in place.
            current.start = [stream.clone() for stream in first.entering(first.arguments(call.args, call.kwargs))]
            return call.make()

        def behind(current: StackPass, call: MethodCall) -> Any:
            result = call.make()
            # A stack that is joined from its first block on has one stream.
            main = stack.main_stream if len(current.start) > 1 else 0
            after = last.leaving(result, current.start)[main]
            assert after is not None, "the main stream goes through every block"
            current.signal = after - current.start[main]
            current.start = ()
            return result

        self._intercept(last, behind)
        self._intercept(first, before)

    def call(self, call: DenoiserCall) -> Any:
        """Run the denoiser; its blocks consult this region."""
        if not any(call.module is each for each in self._whole):
            return super().call(call)
        (choice,) = call.ask(1, layout=call.layout, signal=None)
        result = call.make()
        call.run.generation.record_computed(choice)
        return result
