"""What a region is to the session, and how it reads a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.samples import rows_of
from omnireuse.diffusion.reuse.spectrum import filtered, grid_of
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["DenoiserCall", "Region", "bytes_of", "watched"]


@dataclass(frozen=True, kw_only=True)
class DenoiserCall:
    """One call of a denoiser within a run: `proceed(*args, **kwargs)` computes it.

    Attributes:
        branch: its name among the calls of the step.
        order: its number among the step's calls of this denoiser, from 0.
    """

    run: Run
    module: Any
    denoiser: int
    branch: str
    order: int
    proceed: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def compute(self) -> Any:
        """What the untouched denoiser returns."""
        return self.proceed(*self.args, **self.kwargs)

    def compute_rows(self, rows: Sequence[int]) -> Any:
        """What the untouched denoiser returns for some rows of the batch alone."""
        index = torch.tensor(rows)
        args = [rows_of(value, index, self.batch) for value in self.args]
        return self.proceed(*args, **rows_of(self.kwargs, index, self.batch))

    @cached_property
    def latents(self) -> list[torch.Tensor]:
        """The latents that the denoiser was called with: its first argument, or the one named as such. Most get one
        tensor, Z-Image a list of one an image."""
        first = [*self.args[:1], *(self.kwargs.get(name) for name in ("hidden_states", "sample", "x"))]
        lists = [each if isinstance(each, list) else [each] for each in first]
        candidates = [*lists, *([value] for value in self.kwargs.values())]
        return next((each for each in candidates if each and all(map(_is_latent, each))), [])

    @cached_property
    def input(self) -> torch.Tensor | None:
        """The latents as one tensor, to be watched."""
        if len(self.latents) > 1:
            return torch.cat([each.flatten() for each in self.latents])
        return self.latents[0] if self.latents else None

    @cached_property
    def batch(self) -> int:
        """Rows of the input; 1 where it has none, or is a list."""
        given = self.input
        is_one_tensor = given is not None and any(given is tensor for tensor in self.tensors)
        return given.shape[0] if given is not None and is_one_tensor and given.ndim else 1

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors handed over directly."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, torch.Tensor)]


def _is_latent(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class Region(Protocol):
    """What is skipped. The session hands it every denoiser call and every scheduler step of a run."""

    def call(self, call: DenoiserCall) -> Any:
        """The result of a denoiser call, computed or not."""

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """What the scheduler shall be handed instead of `output`."""

    def undo(self) -> None:
        """Take back whatever this region put between objects."""


def watched(strategy: Strategy, call: DenoiserCall) -> torch.Tensor | None:
    """The signal of a call that is seen from outside; None where nothing is watched."""
    latents = None if strategy.chosen_signal == "none" else call.input
    if latents is not None and strategy.chosen_signal == "filtered_latents":
        return filtered(latents, call.run.level, grid_of(latents, call.kwargs))
    return latents


def bytes_of(tree: Any) -> int:
    """Bytes of the tensors in nested containers."""
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))
