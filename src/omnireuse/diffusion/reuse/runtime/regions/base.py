"""The protocol of a region, and how it reads a denoiser call: its latents, its signal, its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.events import Choice
from omnireuse.diffusion.reuse.generation import GRADIENT_ERROR, layout_of
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.timesteps import NAMES
from omnireuse.diffusion.reuse.signals import filtered, grid_of
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import StateError

__all__ = ["DenoiserCall", "Region", "row_of", "rows_of", "watched", "with_rows"]

SHARED_BY_ROWS = ("img_ids", "txt_ids", "image_rotary_emb", "rotary_emb", "freqs_cis", "pos_embed")
"""Arguments of diffusers' denoisers that hold positions, one row a token: as long as the batch by accident only."""


class Region(ABC):
    """What is skipped. The session passes it every denoiser call and every scheduler step of a run."""

    @abstractmethod
    def call(self, call: DenoiserCall) -> Any:
        """The result of a denoiser call, computed or not."""

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """What the scheduler is given instead of `output`."""
        return output

    def stepped(self, run: Run, latents: torch.Tensor | None) -> None:  # noqa: B027  # most have seen all they need
        """The scheduler's step has returned these latents."""

    def undo(self) -> None:  # noqa: B027  # most put nothing
        """Take back whatever this region put between objects."""


@dataclass(frozen=True)
class DenoiserCall:
    """One call of a denoiser within a run: `proceed(*args, **kwargs)` computes it.

    Attributes:
        run: which it belongs to.
        module: the denoiser.
        denoiser: its place among the pipeline's denoisers.
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

    def decide(self, row: int | None, *, layout: Hashable, signal: torch.Tensor | None) -> Choice:
        """Compute or reuse one row of the batch, or all of it for None? `signal` is that of the whole batch."""
        return self.run.generation.decide(
            self.branch,
            denoiser=self.denoiser,
            order=self.order,
            sample=row,
            layout=layout,
            signal=None if signal is None else row_of(signal, row),
        )

    def compute(self) -> Any:
        """What the denoiser returns."""
        return self.proceed(*self.args, **self.kwargs)

    def compute_rows(self, rows: Sequence[int]) -> Any:
        """What the denoiser returns for some rows of the batch alone."""
        index = torch.tensor(rows)
        args = [rows_of(value, index, self.batch) for value in self.args]
        return self.proceed(*args, **rows_of(self.kwargs, index, self.batch))

    @cached_property
    def latents(self) -> list[torch.Tensor]:
        """The latents that the denoiser was called with: its first argument, or the one named as such. Most get one
        tensor, Z-Image and Cosmos 3 a list of one an image or clip."""
        first = [*self.args[:1], *(self.kwargs.get(name) for name in ("hidden_states", "sample", "x", "vision_tokens"))]
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

    @cached_property
    def layout(self) -> Hashable:
        """What a reuse needs unchanged: all arguments but the timesteps, of which frames and sound may share one."""
        return layout_of(*self.args, *(value for name, value in self.kwargs.items() if name not in NAMES))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, torch.Tensor)]

    def refuse_gradients(self) -> None:
        """Raise where autograd is on and the output would carry gradients, whether it will be computed or not.

        Asked before anything runs, because a reused call has no output to look at, and reentrant checkpointing hides
        the graph from the blocks.

        Raises:
            StateError: a parameter or an input requires a gradient.
        """
        given = (leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor))
        if any(tensor.requires_grad for tensor in chain(given, self.module.parameters())):
            raise StateError(GRADIENT_ERROR)


def _is_latent(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def watched(strategy: Strategy, call: DenoiserCall) -> torch.Tensor | None:
    """The signal of a call that is seen from outside; None where it has none."""
    if call.input is not None and strategy.chosen_signal == "filtered_latents":
        return filtered(call.input, call.run.generation.level, grid_of(call.input, call.kwargs))
    return call.input


# -- rows of a batch --------------------------------------------------------------------------------------------------


def rows_of(value: Any, rows: torch.Tensor, batch: int, name: str = "") -> Any:
    """The part of an argument that belongs to some rows of the batch; what no row owns stays as it is.

    Args:
        value: tensors whose first dimension is the batch, sequences of one entry a row, and nested sequences and
            mappings of those.
        rows: (r,) indices, int64.
        batch: rows of the whole call.
        name: of the argument.
    """
    if name in SHARED_BY_ROWS:
        return value
    if isinstance(value, torch.Tensor):
        is_batched = value.ndim > 0 and value.shape[0] == batch
        return value.index_select(0, rows.to(value.device)) if is_batched else value
    if isinstance(value, Mapping):
        return {key: rows_of(item, rows, batch, str(key)) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    has_rows = any(isinstance(item, torch.Tensor) and item.ndim > 0 and item.shape[0] == batch for item in value)
    if len(value) == batch and not has_rows:
        items = [value[row] for row in rows.tolist()]
    else:
        items = [rows_of(item, rows, batch) for item in value]
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return items


def row_of(batch: torch.Tensor, row: int | None) -> torch.Tensor:
    """One row, as a batch of one; all of them for None."""
    return batch if row is None else batch[row : row + 1]


def with_rows(whole: torch.Tensor, rows: Sequence[int], part: torch.Tensor) -> torch.Tensor:
    """A copy of `whole` in which `rows` are those of `part`."""
    return whole.index_copy(0, torch.tensor(rows, device=whole.device), part)
