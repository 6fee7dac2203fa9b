"""A model's block stack: its description, the way of streams through a block, and one call on its way through all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import torch

from omnireuse import messages
from omnireuse.errors import StateError, UnknownNameError, UnsupportedModelError
from omnireuse.hooks.regions.cuts import decide_as_one, has_rows
from omnireuse.hooks.run import DenoiserCall
from omnireuse.loop.events import Choice
from omnireuse.loop.generation import layout_of
from omnireuse.loop.strategy import Strategy

__all__ = ["Arguments", "Block", "BlockStack", "Signal", "StackPass"]


Arguments = Mapping[str, Any]
"""Arguments of a block's call, by the names of its parameters."""
Signal = Callable[[Any, Arguments], torch.Tensor]
"""Reads the watched tensor from the first block and its arguments."""


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

    def watched(self, signal: Signal, arguments: Arguments) -> torch.Tensor:
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


@dataclass(frozen=True)
class BlockStack:
    """The block stack of one model.

    Attributes:
        model: class name of the denoiser.
        lists: names of its block lists, in the order in which the forward runs them.
        streams: the parameters of a block that it returns updated, in the order of its return value.
        signal: reads the modulated input of the first block from that block and its arguments by name.
        signal_name: the name of this signal in published coefficient tables.
        joined: those of `lists` whose blocks take all streams as one `hidden_states`, concatenated along the tokens in
            the order of `streams`.
        bypass: for lists whose blocks do not return their streams: the result of a block that does not run.
        has_long_skips: whether the k-th block from the end reads what the k-th from the beginning returned.
        refuses: returns the reason why this very denoiser cannot be served, or None.
    """

    model: str
    _: KW_ONLY
    lists: tuple[str, ...] = ("transformer_blocks",)
    streams: tuple[str, ...] = ("hidden_states",)
    signal: Signal
    signal_name: str = "modulated_input"
    joined: tuple[str, ...] = ()
    bypass: Mapping[str, Callable[[Arguments], Any]] = field(default_factory=dict)
    has_long_skips: bool = False
    refuses: Callable[[Any], str | None] = lambda _denoiser: None

    @property
    def main_stream(self) -> int:
        """Index of the stream that becomes the output."""
        return next(index for index, name in enumerate(self.streams) if not name.startswith("encoder"))

    def blocks_of(self, denoiser: torch.nn.Module) -> list[Block]:
        """All blocks in the order of the forward.

        Raises:
            UnsupportedModelError: a list is missing, there are no blocks, a block lacks a stream, or the denoiser is
                refused.
        """
        name = type(denoiser).__name__
        reason = self.refuses(denoiser)
        if reason is not None:
            raise UnsupportedModelError(f"{name}: {reason}; use region 'call' or 'step'")
        blocks = [block for each in self.lists for block in self._blocks_in(denoiser, each)]
        if not blocks:
            raise UnsupportedModelError(f"{name} has no blocks; region 'blocks' has nothing to skip")
        for block in blocks:
            missing = [stream for stream in block.streams if stream not in block.parameters]
            if missing:
                kind = type(block.module).__name__
                raise UnsupportedModelError(messages.NO_PARAMETER, block=kind, name=missing[0], model=self.model)
        return blocks

    def _blocks_in(self, denoiser: torch.nn.Module, name: str) -> list[Block]:
        modules = getattr(denoiser, name, None)
        if modules is None:
            raise UnsupportedModelError(messages.NO_BLOCK_LIST, name=name, model=self.model)
        is_joined = name in self.joined
        streams = ("hidden_states",) if is_joined else self.streams
        bypass = self.bypass.get(name)
        return [Block(module=module, streams=streams, is_joined=is_joined, bypass=bypass) for module in modules]


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
            raise StateError(messages.STACK_RUNS_AGAIN, model=call.model)
        self._visits, self.finished = self._visits + 1, False
        layout = call.layout._replace(streams=layout_of(*streams))
        rowed = [*streams, *([] if signal is None else [signal])]
        by_row = has_rows(call, self._strategy)
        if by_row and any(tensor.shape[0] not in (1, call.batch) for tensor in rowed):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in rowed)
            decide_as_one(call, f"what enters its blocks has not {call.batch} rows, got {shapes}")
            by_row = False
        self.choices = call.ask(call.batch if by_row else 1, layout=layout, signal=signal, visit=self._visits)
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
        run, choices = self.call.run, self.choices
        if len(choices) == 1:
            streams = run.generation.answer(choices[0], outputs, samples)
        else:
            streams = run.wave.answer(choices, outputs, samples)
        self.entry = ()
        self.finished = True
        return streams
