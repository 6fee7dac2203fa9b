"""A model's block stack: its description, the way of streams through a block, and one call on its way through all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch

from omnireuse.errors import StateError, UnknownNameError
from omnireuse.hooks.regions.cuts import decide_as_one, has_rows
from omnireuse.hooks.run import DenoiserCall
from omnireuse.loop.events import Choice
from omnireuse.loop.generation import layout_of
from omnireuse.loop.strategy import Strategy

__all__ = ["Arguments", "Block", "Stack", "StackPass"]


Arguments = Mapping[str, Any]
"""Arguments of a block's call, by the names of its parameters."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of a stack.

    Attributes:
        module: the block.
        streams: names of the parameters that it returns updated, in the order of its return value.
        is_joined: whether its one stream is the stack's streams, concatenated along the tokens.
        bypass: the result in place of running it, if that is not its streams as they came in.
    """

    module: torch.nn.Module
    streams: tuple[str, ...]
    is_joined: bool = False
    bypass: Callable[[Arguments], Any] | None = None

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters of its forward."""
        return tuple(inspect.signature(type(self.module).forward).parameters)[1:]

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The call's arguments, by name."""
        return {**dict(zip(self.parameters, args, strict=False)), **kwargs}

    def watched(self, signal: Callable[[Any, Arguments], torch.Tensor], arguments: Arguments) -> torch.Tensor:
        """The tensor that a declared signal reads here.

        Raises:
            UnknownNameError: the signal asks for an argument that the block is not called with.
        """
        try:
            return signal(self.module, arguments)
        except KeyError as error:
            if not error.args or error.args[0] in arguments:
                raise
            kind, hint = f"argument of {type(self.module).__name__}", "the declaration's signal asks for it"
            raise UnknownNameError(kind, error.args[0], arguments, hint=hint) from error

    def entering(self, arguments: Arguments) -> list[torch.Tensor]:
        """Its streams as they come in: this rank's tokens, if diffusers' context parallelism splits them here."""
        registry = getattr(self.module, "_diffusers_hook", None)
        for hook in () if registry is None else registry.hooks.values():
            if type(hook).__name__ == "ContextParallelSplitHook":
                _, arguments = hook.pre_forward(self.module, **arguments)
        return [arguments[name] for name in self.streams]

    def passed_on(self, arguments: Arguments) -> Any:
        """The return value of a block that the streams pass by."""
        if self.bypass is not None:
            return self.bypass(arguments)
        return self._as_returned(self.entering(arguments))

    def leaving(self, result: Any, entry: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The stack's streams in its return value, in the order of `entry`, which says how many tokens each has.

        None for a stream that it no longer returns, such as the text after the last block of SD3.
        """
        if self.is_joined:
            return list(result.split([stream.shape[1] for stream in entry], dim=1))
        return [result] if isinstance(result, torch.Tensor) else list(result)

    def returned(self, streams: Sequence[torch.Tensor]) -> Any:
        """The stack's streams as this block would return them."""
        return torch.cat(list(streams), dim=1) if self.is_joined else self._as_returned(streams)

    @staticmethod
    def _as_returned(streams: Sequence[torch.Tensor]) -> Any:
        return streams[0] if len(streams) == 1 else tuple(streams)


class Stack(Protocol):
    """A model's block stack."""

    @property
    def signal(self) -> Callable[[torch.nn.Module, Arguments], torch.Tensor]:
        """Reads the watched tensor from block 0 and its arguments."""

    @property
    def main_stream(self) -> int:
        """Index of the stream that becomes the output."""

    @property
    def has_long_skips(self) -> bool:
        """True if the k-th block from the end reads the output of the k-th from the beginning."""

    def blocks_of(self, denoiser: torch.nn.Module) -> list[Block]:
        """All blocks in the order of the forward. The streams of the first are the streams of the stack."""


class StackPass:
    """One way through the stack: `enter` where the skipped blocks begin, then `leave` behind the last of them.

    A denoiser with guidance in its forward goes that way more than once within a call; each visit has its own history.

    Attributes:
        start: the streams before the first block, if what the first blocks add is watched.
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
        self.choices = call.ask(call.batch if by_row else None, layout=layout, signal=signal, visit=self._visits)
        self.signal = None
        # Copied if it is needed after the blocks: they, and what the model adds between them, may write in place.
        self.entry = [stream.clone() for stream in streams] if self._adds else streams

    def leave(self, computed: Sequence[torch.Tensor | None] | None = None) -> Sequence[torch.Tensor]:
        """The streams behind the blocks: computed or forecast, each sample as it was decided.

        The whole batch runs through the blocks if any sample needs them, since only the model knows which of the
        tensors between its blocks have rows; the others get what they would get alone all the same.

        Args:
            computed: the blocks' outputs, None for a stream that they no longer return; left out if they were
                skipped.
        """
        outputs = None
        if computed is not None:
            outputs = [before if after is None else after for after, before in zip(computed, self.entry, strict=True)]
        samples = self.entry if self._adds else [None] * len(self.entry)
        streams = self.call.run.generation.answer(self.choices, outputs, samples)
        self.entry = ()
        self.finished = True
        return streams
