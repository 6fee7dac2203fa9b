"""Region `blocks`: the block stack is skipped; embedders and output layers still run.

The first block decides. On reuse the blocks in between return their input, and the last block returns *entry +
forecast*, so what the model adds between blocks (ControlNet, VACE) is part of the residual: neither dropped nor counted
twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.diffusion.reuse.events import Choice
from omnireuse.diffusion.reuse.generation import layout_of
from omnireuse.diffusion.reuse.runtime.interception import Interception, intercept
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall, WholeRegion, row_of
from omnireuse.diffusion.reuse.runtime.regions.stack import Block, Stack
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import StateError

__all__ = ["BlocksRegion", "Pass"]

_SKIPPED = "reuse of the stack would be wrong; use region 'call' or 'step' where blocks are left out"


@dataclass
class Pass:
    """One way through the stack.

    Attributes:
        start: the streams before the first block, where what the first blocks add is watched.
        signal: what was watched in this pass, until the decision has used it.
        entry: the streams before the skipped blocks.
    """

    call: DenoiserCall
    choices: Sequence[Choice] = ()
    start: Sequence[torch.Tensor] = ()
    signal: torch.Tensor | None = None
    entry: Sequence[torch.Tensor] = ()
    finished: bool = False

    @property
    def reuse(self) -> bool:
        """Whether the blocks are skipped: no sample needs them."""
        assert self.choices, "the first block runs before the others"
        return all(choice.reuse for choice in self.choices)


class BlocksRegion(WholeRegion):
    """One decision a denoiser call, taken where the first block is called.

    Args:
        strategy: what to do.
        stacks: for each denoiser, the module and the declaration of its stack.
        owner: whom the interceptions belong to.
    """

    def __init__(self, strategy: Strategy, stacks: Sequence[tuple[torch.nn.Module, Stack]], owner: object) -> None:
        self._strategy = strategy
        self._residual = strategy.chosen_quantity == "residual"
        self._owner = owner
        self._here = threading.local()
        self._interceptions: list[Interception] = []
        try:
            for denoiser, stack in stacks:
                self._attach(denoiser, stack)
        except BaseException:
            self.undo()
            raise

    def _attach(self, denoiser: torch.nn.Module, stack: Stack) -> None:
        blocks = stack.blocks_of(denoiser)
        self._skip(blocks)
        self._watch(blocks, stack)

    def _skip(self, blocks: Sequence[Block]) -> None:
        """Let these blocks be skipped together."""
        for position, block in enumerate(blocks):
            self._intercept(block, self._handler(block, first=position == 0, last=position == len(blocks) - 1))

    def _watch(self, blocks: Sequence[Block], stack: Stack) -> None:
        """See to it that the signal is known before the skipped blocks are reached; called after `_skip`, so that what
        watches a block stands before what skips it."""
        if self._strategy.chosen_signal == "modulated_input":
            block = blocks[0]

            def read(current: Pass, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                current.signal = stack.signal(block.module, block.arguments(args, kwargs))
                return proceed(*args, **kwargs)

            self._intercept(block, read)

    def _intercept(self, block: Block, handler: Callable[..., Any]) -> None:
        def within_a_pass(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            current: Pass | None = getattr(self._here, "pass_", None)
            return proceed(*args, **kwargs) if current is None else handler(current, proceed, *args, **kwargs)

        self._interceptions.append(intercept(block.module, self._owner, {"__call__": within_a_pass}))

    def run_uncompiled(self, modules: Sequence[torch.nn.Module]) -> None:
        """Run these without `torch.compile` within a pass: what is compiled as a whole does not ask its blocks."""

        def passing(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return proceed(*args, **kwargs)

        def within_a_pass() -> bool:
            return getattr(self._here, "pass_", None) is not None

        for module in modules:
            self._interceptions.append(intercept(module, self._owner, {"__call__": passing}, eager=within_a_pass))

    def call(self, call: DenoiserCall) -> Any:
        """Runs the denoiser, whose blocks ask this region."""
        outer, self._here.pass_ = getattr(self._here, "pass_", None), Pass(call)
        try:
            result = call.compute()
            current: Pass = self._here.pass_
        finally:
            self._here.pass_ = outer
        if not current.finished:
            raise StateError(f"{type(call.module).__name__} did not run its last block; {_SKIPPED}")
        return result

    def _handler(self, block: Block, *, first: bool, last: bool) -> Callable[..., Any]:
        def handler(current: Pass, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            arguments = block.arguments(args, kwargs)
            if first:
                self._enter(current, block.entering(arguments))
            if not current.choices:
                raise StateError(f"{type(current.call.module).__name__} did not run its first block; {_SKIPPED}")
            if current.reuse:
                return block.returned(self._leave(current, None)) if last else block.passed_on(arguments)
            result = proceed(*args, **kwargs)
            if last:
                streams = self._leave(current, block.leaving(result, current.entry))
                if any(choice.reuse for choice in current.choices):
                    return block.returned(streams)
            return result

        return handler

    def _enter(self, current: Pass, streams: Sequence[torch.Tensor]) -> None:
        call, signal = current.call, current.signal
        layout = layout_of(*call.tensors, *streams)
        rowed = [*streams, *([] if signal is None else [signal])]
        by_row = self._strategy.decides_by_sample and all(tensor.shape[0] == call.batch > 1 for tensor in rowed)
        current.choices = [
            call.run.generation.decide(
                call.branch,
                denoiser=call.denoiser,
                order=call.order,
                sample=row,
                layout=layout,
                signal=None if signal is None else row_of(signal, row),
            )
            for row in (range(call.batch) if by_row else [None])
        ]
        current.signal = None
        # Copied where it is needed after the blocks: they, and what the model adds between them, may write in place.
        current.entry = [stream.clone() for stream in streams] if self._residual else streams

    def _leave(self, current: Pass, computed: Sequence[torch.Tensor | None] | None) -> list[torch.Tensor]:
        """The streams behind the blocks: computed or forecast, each sample as it was decided.

        The whole batch runs through the blocks where any sample needs them, since only the model knows which of the
        tensors between its blocks have rows; the others get what they would get alone all the same.
        """
        parts = [self._streams_of(current, choice, computed) for choice in current.choices]
        current.entry = ()
        current.finished = True
        return [rows[0] if len(rows) == 1 else torch.cat(rows) for rows in zip(*parts, strict=True)]

    def _streams_of(
        self, current: Pass, choice: Choice, computed: Sequence[torch.Tensor | None] | None
    ) -> list[torch.Tensor]:
        generation = current.call.run.generation
        entry = [row_of(stream, choice.sample) for stream in current.entry]
        if choice.reuse:
            values = generation.predict_values(choice)
            if self._residual:
                return [before + value for before, value in zip(entry, values, strict=True)]
            return [value.clone() for value in values]
        assert computed is not None, "the blocks ran, as the choice says"
        leaving = [None if stream is None else row_of(stream, choice.sample) for stream in computed]
        generation.observe_values(choice, [self._value(a, b) for a, b in zip(leaving, entry, strict=True)])
        return [before if after is None else after for after, before in zip(leaving, entry, strict=True)]

    def _value(self, after: torch.Tensor | None, before: torch.Tensor) -> torch.Tensor:
        if after is None:
            return before.new_zeros(1)  # nobody reads this stream any more
        return after - before if self._residual else after.clone()

    def undo(self) -> None:
        """Take the handlers off the blocks."""
        for interception in self._interceptions:
            interception.undo()
