"""Region `blocks`: the block stack is skipped; embedders and output layers still run.

The first block decides. On reuse the blocks in between return their input, and the last block returns *entry +
forecast*, so what the model adds between blocks (ControlNet, VACE) is part of the residual: neither dropped nor counted
twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from omnireuse.errors import StateError
from omnireuse.hooks.interception import Interception, MethodCall, intercept
from omnireuse.hooks.regions.stack import Block, BlockStack, StackPass
from omnireuse.hooks.run import DenoiserCall, Region
from omnireuse.loop.strategy import Strategy

__all__ = ["BlockHandler", "BlocksRegion"]

BlockHandler = Callable[[StackPass, MethodCall], Any]
"""Called instead of a block within a pass; returns what the block would."""

_SKIPPED = "reuse of the stack would be wrong; use region 'call' or 'step' if blocks are left out"


class BlocksRegion(Region):
    """One decision a denoiser call, taken when the first block is called.

    Args:
        strategy: of the run.
        stacks: for each denoiser, the module and the declaration of its stack.
        owner: of the interceptions.
        uncompiled: modules that run without `torch.compile` within a pass: what is compiled as a whole does not ask
            its blocks.
    """

    def __init__(
        self,
        strategy: Strategy,
        stacks: Sequence[tuple[torch.nn.Module, BlockStack]],
        owner: object,
        uncompiled: Sequence[torch.nn.Module] = (),
    ) -> None:
        self._strategy, self._owner = strategy, owner
        self._here = threading.local()
        self._interceptions: list[Interception] = []
        try:
            for denoiser, stack in stacks:
                self._attach(denoiser, stack)
            for module in uncompiled:
                handlers = {"__call__": MethodCall.make}
                within_a_pass = lambda: self._pass is not None  # noqa: E731  # one line, used once
                self._interceptions.append(intercept(module, owner, handlers, eager=within_a_pass))
        except BaseException:
            self.undo()
            raise

    @property
    def _pass(self) -> StackPass | None:
        """This thread's pass."""
        return getattr(self._here, "stack_pass", None)

    def _attach(self, denoiser: torch.nn.Module, stack: BlockStack) -> None:
        blocks = stack.blocks_of(denoiser)
        self._skip(blocks)
        self._watch(blocks, stack)

    def _skip(self, blocks: Sequence[Block]) -> None:
        """Let these blocks be skipped together."""
        for position, block in enumerate(blocks):
            self._intercept(block, self._handler(block, first=position == 0, last=position == len(blocks) - 1))

    def _watch(self, blocks: Sequence[Block], stack: BlockStack) -> None:
        """See to it that the signal is known before the skipped blocks are reached; called after `_skip`, so that a
        block is watched before it is skipped."""
        if self._strategy.chosen_signal == "modulated_input":
            block = blocks[0]

            def read(current: StackPass, call: MethodCall) -> Any:
                current.signal = block.watched(stack.signal, block.arguments(call.args, call.kwargs))
                return call.make()

            self._intercept(block, read)

    def _intercept(self, block: Block, handler: BlockHandler) -> None:
        def within_a_pass(call: MethodCall) -> Any:
            current = self._pass
            return call.make() if current is None else handler(current, call)

        self._interceptions.append(intercept(block.module, self._owner, {"__call__": within_a_pass}))

    def call(self, call: DenoiserCall) -> Any:
        """Run the denoiser; its blocks consult this region."""
        outer = self._pass
        current = self._here.stack_pass = StackPass(call, self._strategy)
        try:
            result = call.make()
        finally:
            self._here.stack_pass = outer
        if not current.finished:
            raise StateError(f"{call.model} did not run its last block; {_SKIPPED}")
        return result

    def _handler(self, block: Block, *, first: bool, last: bool) -> BlockHandler:
        def handler(current: StackPass, call: MethodCall) -> Any:
            arguments = block.arguments(call.args, call.kwargs)
            if first:
                current.enter(block.entering(arguments))
            if not current.choices:
                raise StateError(f"{current.call.model} did not run its first block; {_SKIPPED}")
            if current.reuse:
                return block.returned(current.leave()) if last else block.passed_on(arguments)
            result = call.make()
            if last:
                streams = current.leave(block.leaving(result, current.entry))
                if any(choice.reuse for choice in current.choices):
                    return block.returned(streams)
            return result

        return handler

    def undo(self) -> None:
        """Take the handlers off the blocks."""
        for interception in self._interceptions:
            interception.undo()
        self._interceptions.clear()
