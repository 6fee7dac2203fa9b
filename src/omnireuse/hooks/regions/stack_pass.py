"""One denoiser call on its way through the block stack: its inputs, its decision, its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omnireuse.errors import StateError
from omnireuse.hooks.regions.cuts import decide_as_one, has_rows
from omnireuse.hooks.regions.rows import row_of
from omnireuse.hooks.run import DenoiserCall
from omnireuse.loop.events import Choice
from omnireuse.loop.generation import layout_of
from omnireuse.loop.strategy import Strategy

__all__ = ["StackPass"]


class StackPass:
    """One way through the stack: `enter` where the skipped blocks begin, then `leave` behind the last of them.

    A denoiser with guidance in its forward goes that way more than once within a call; each visit has its own history.

    Attributes:
        start: the streams before the first block, where what the first blocks add is watched.
        signal: the signal of this pass, until the decision has used it.
        entry: the streams before the skipped blocks.
        choices: one for each sample or one for all; empty before `enter`.
        finished: whether `leave` was called after `enter`.
    """

    def __init__(self, call: DenoiserCall, strategy: Strategy, signal: torch.Tensor | None = None) -> None:
        self.call, self.signal = call, signal
        self.start: Sequence[torch.Tensor] = ()
        self.entry: Sequence[torch.Tensor] = ()
        self.choices: Sequence[Choice] = ()
        self.finished = False
        self._visits = 0
        self._strategy = strategy
        self._adds = strategy.chosen_target == "residual"

    @property
    def reuse(self) -> bool:
        """True if the blocks are skipped: no sample needs them."""
        return all(choice.reuse for choice in self.choices)

    def enter(self, streams: Sequence[torch.Tensor]) -> None:
        """Decide, from the streams before the skipped blocks."""
        call, signal = self.call, self.signal
        if self.choices and not self.finished:
            raise StateError(
                f"{call.model} runs its first block again before its last; reuse of the stack would be wrong; "
                "use region 'call' or 'step'"
            )
        self._visits, self.finished = self._visits + 1, False
        layout = call.layout._replace(streams=layout_of(*streams))
        rowed = [*streams, *([] if signal is None else [signal])]
        by_row = has_rows(call, self._strategy)
        if by_row and any(tensor.shape[0] not in (1, call.batch) for tensor in rowed):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in rowed)
            decide_as_one(call, f"what enters its blocks has not {call.batch} rows, got {shapes}")
            by_row = False
        self.choices = [
            call.decide(row, layout=layout, signal=signal, visit=self._visits)
            for row in (range(call.batch) if by_row else [None])
        ]
        self.signal = None
        # Copied where it is needed after the blocks: they, and what the model adds between them, may write in place.
        self.entry = [stream.clone() for stream in streams] if self._adds else streams

    def leave(self, computed: Sequence[torch.Tensor | None] | None = None) -> list[torch.Tensor]:
        """The streams behind the blocks: computed or forecast, each sample as it was decided.

        The whole batch runs through the blocks where any sample needs them, since only the model knows which of the
        tensors between its blocks have rows; the others get what they would get alone all the same.

        Args:
            computed: the blocks' outputs, None for a stream that they no longer return; left out where they were
                skipped.
        """
        parts = [self._streams_of(choice, computed or ()) for choice in self.choices]
        self.entry = ()
        self.finished = True
        return [rows[0] if len(rows) == 1 else torch.cat(rows) for rows in zip(*parts, strict=True)]

    def _streams_of(self, choice: Choice, computed: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        generation = self.call.run.generation
        entry = [row_of(stream, choice.sample) for stream in self.entry]
        if choice.reuse:
            values = generation.predict_outputs(choice)
            return [before + value for before, value in zip(entry, values, strict=True)] if self._adds else values
        leaving = [None if stream is None else row_of(stream, choice.sample) for stream in computed]
        generation.observe_outputs(choice, [self._value(a, b) for a, b in zip(leaving, entry, strict=True)])
        return [before if after is None else after for after, before in zip(leaving, entry, strict=True)]

    def _value(self, after: torch.Tensor | None, before: torch.Tensor) -> torch.Tensor:
        if after is None:
            return before.new_zeros(1)  # nobody reads this stream any more
        return after - before if self._adds else after.clone()
