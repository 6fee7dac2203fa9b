"""What caches on a block stack share: they know the step and the branch of a call, and leave out its blocks."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse.hooks.regions.stack import Arguments, Block
from omnireuse.models import block_stack_for
from omnireuse_lab.compare.memory import bytes_of
from omnireuse_lab.compare.methods.base import Kept

__all__ = ["Run", "StackCache", "stack_caches"]

Run: TypeAlias = "partial[Any]"
"""What is wrapped, with the arguments of this call."""
Branch = TypeVar("Branch")


@dataclass(kw_only=True, eq=False)
class StackCache(ABC, Generic[Branch]):
    """A cache on one denoiser, by the `forward` of the denoiser and of its blocks; nothing is undone.

    Args:
        denoiser: with a declared block stack.
        steps: of a run.
        count: calls of the denoiser in a step, one for each branch of guidance.

    Attributes:
        branches: what each branch remembers in this run.
        entry: this call's streams before the stack.
        skips: whether this call leaves out blocks.

    Raises:
        UnsupportedModelError: no declared stack, or one of fewer than two blocks.
    """

    denoiser: torch.nn.Module
    steps: int
    count: int

    def __post_init__(self) -> None:
        name = type(self.denoiser).__name__
        stack = block_stack_for(name)
        blocks = stack.blocks_of(self.denoiser)
        if len(blocks) < 2:
            raise UnsupportedModelError(f"{name} has one block; a cache that leaves out blocks needs two or more")
        self.main, self.skips, self.entry = stack.main_stream, False, list[torch.Tensor]()
        self.branches = [self.begin() for _ in range(self.count)]
        self._calls = 0
        _wrap(self.denoiser, self._counted)
        for block in blocks:
            role = self._enter if block is blocks[0] else self.last if block is blocks[-1] else self.middle
            _wrap(block.module, partial(_with_arguments, block, role))

    @property
    def step(self) -> int:
        return self._calls // self.count

    @property
    def branch(self) -> Branch:
        """What this call's branch remembers."""
        return self.branches[self._calls % self.count]

    @abstractmethod
    def begin(self) -> Branch:
        """What a branch remembers before the first step."""

    def call(self, run: Run) -> Any:
        """The denoiser's result."""
        return run()

    def first(self, block: Block, run: Run, arguments: Arguments) -> Any:
        """The first block's result."""
        return self.middle(block, run, arguments)

    def middle(self, block: Block, run: Run, arguments: Arguments) -> Any:
        """The result of a block between the first and the last."""
        return block.passed_on(arguments) if self.skips else run()

    @abstractmethod
    def last(self, block: Block, run: Run, arguments: Arguments) -> Any:
        """The last block's result."""

    def left(self, block: Block, result: Any) -> list[torch.Tensor]:
        """The streams in the last block's result; the entry for one that it no longer returns."""
        leaving = block.leaving(result, self.entry)
        return [before if after is None else after for before, after in zip(self.entry, leaving, strict=True)]

    def _counted(self, run: Run, *_: Any, **__: Any) -> Any:
        if self._calls == self.steps * self.count:
            self._calls, self.branches = 0, [self.begin() for _ in self.branches]
        result = self.call(run)
        self._calls += 1
        return result

    def _enter(self, block: Block, run: Run, arguments: Arguments) -> Any:
        # Copied, because blocks may write in place.
        self.entry = [stream.clone() for stream in block.entering(arguments)]
        return self.first(block, run, arguments)


def _wrap(module: torch.nn.Module, handler: Callable[..., Any]) -> None:
    inner = module.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return handler(partial(inner, *args, **kwargs), *args, **kwargs)

    module.forward = forward


def _with_arguments(block: Block, role: Callable[..., Any], run: Run, *args: Any, **kwargs: Any) -> Any:
    return role(block, run, block.arguments(args, kwargs))


@contextmanager
def stack_caches(pipeline: Any, kind: Callable[..., StackCache[Any]], **options: Any) -> Iterator[Kept]:
    """One cache for each denoiser of a pipeline.

    Args:
        kind: makes one from `denoiser` and the options.
    """
    caches = [kind(denoiser=denoiser, **options) for denoiser in denoisers_of(pipeline)]
    yield lambda: bytes_of(branch for cache in caches for branch in cache.branches)
