"""What else can be left out of the calls of an editing model: unedited regions, tokens of references, the text.

`RegionWise` is written after RegionE (Chen et al., arXiv 2510.25590; code: github.com/Peyton-Chen/RegionE): some first
steps are computed whole; then the tokens of the target whose estimated clean value is unlike the reference's are
computed alone, beside kept keys and values of all others, which go on in a straight line; one step between and the last
ones are computed whole again. Differences: the share of edited tokens is given, so that runs take equal time, and no
threshold; the edited region is neither eroded nor dilated; velocities of edited tokens are never reused.

All of them are for FluxTransformer2DModel without guidance. `RegionWise` takes one picture at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch

__all__ = ["CallTokens", "Dropped", "RegionWise", "TextKept", "Whole"]

Change = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of an attention, (batch, tokens, heads, channels), and those that it takes instead."""


class CallTokens(NamedTuple):
    """Tokens of a call. In attentions text comes first, then the target, then the references."""

    text: int
    target: int
    references: int

    @property
    def full(self) -> int:
        """All tokens."""
        return sum(self)


class Whole:
    """Computes every call whole. Others leave something out.

    Attributes:
        tokens: computed so far in each row of the batch, those of the text among them.
    """

    def __init__(self) -> None:
        self.tokens = 0

    @contextmanager
    def on(self, denoiser: Any) -> Iterator[None]:
        """Within it, the denoiser's calls, which are those of one run, are computed so."""
        self._step, self._compute = 0, denoiser.forward
        self._module: Any = sys.modules[type(denoiser).__module__]
        denoiser.forward = self._counted
        try:
            yield
        finally:
            del denoiser.forward

    def _counted(self, *, return_dict: bool = False, **call: Any) -> tuple[torch.Tensor]:
        picture = call["img_ids"][:, 0]
        target = int((picture == picture[0]).sum())
        if target == len(picture):
            raise ValueError(f"{type(self).__name__}: the call has no references")
        split = CallTokens(call["encoder_hidden_states"].shape[1], target, len(picture) - target)
        output = self.call(split, call)
        self._step += 1
        return (output,)

    def call(self, split: CallTokens, call: dict[str, Any]) -> torch.Tensor:
        """The velocities of the target, (batch, tokens, channels)."""
        return self.compute(call)[:, : split.target]

    def compute(self, call: dict[str, Any]) -> torch.Tensor:
        """A call of the denoiser."""
        self.tokens += call["hidden_states"].shape[1] + call["encoder_hidden_states"].shape[1]
        output: torch.Tensor = self._compute(**call, return_dict=False)[0]
        return output

    def keep(self, split: CallTokens, call: dict[str, Any]) -> torch.Tensor:
        """The velocities of a whole call, whose keys and values are kept: of text, target and references."""
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

        def keep(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self._kept.append((key, value))
            return key, value

        with self._attending(keep):
            return self.compute(call)[:, : split.target]

    def beside(self, others: torch.Tensor, call: dict[str, Any]) -> torch.Tensor:
        """The velocities of a call whose attentions see the kept keys and values of these tokens, too."""
        left = iter(self._kept)

        def add(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            kept_key, kept_value = next(left)
            return torch.cat([key, kept_key[:, others]], dim=1), torch.cat([value, kept_value[:, others]], dim=1)

        with self._attending(add):
            return self.compute(call)

    @contextmanager
    def _attending(self, change: Change) -> Iterator[None]:
        """Within it, keys and values pass through `change` before each attention of the model."""
        attend = self._module.dispatch_attention_fn

        def changed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return attend(query, *change(key, value), *args, **kwargs)

        self._module.dispatch_attention_fn = changed
        try:
            yield
        finally:
            self._module.dispatch_attention_fn = attend


class RegionWise(Whole):
    """After RegionE.

    Args:
        steps: of the run.
        first: steps that are computed whole.
        last: steps that are computed whole at the end.
        between: numbers of further steps that are computed whole; the edited tokens are chosen anew there.
        edited: share of the target's tokens that are edited, those most unlike the reference.
    """

    def __init__(self, *, steps: int, first: int, last: int, between: Collection[int], edited: float) -> None:
        super().__init__()
        self._first, self._last, self._between, self._edited = first, steps - last, between, edited

    def call(self, split: CallTokens, call: dict[str, Any]) -> torch.Tensor:
        """The velocities; only the edited tokens' are computed between whole calls."""
        if self._step < self._first - 1 or self._step >= self._last:
            return super().call(split, call)
        if self._step == self._first - 1 or self._step in self._between:
            self._velocity = self.keep(split, call)
            self._chosen, self._others = self._choose(split, call)
            return self._velocity
        tokens = call | {name: call[name][..., self._chosen, :] for name in ("hidden_states", "img_ids")}
        velocity = self._velocity.clone()
        velocity[:, self._chosen] = self.beside(self._others, tokens)
        return velocity

    def _choose(self, split: CallTokens, call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """The edited tokens, counted from the target's first; and all others in the joint sequence."""
        tokens, ids = call["hidden_states"], call["img_ids"]
        if len(tokens) != 1:
            raise ValueError(f"RegionWise: takes one picture at a time, got {len(tokens)}")
        # At noise level t a straight line from here ends in x - t v.
        clean = tokens[0, : split.target] - call["timestep"][0] * self._velocity[0]
        places = ids[: split.target, None, 1:] == ids[None, split.target :, 1:]
        reference = tokens[0, split.target :][places.all(-1).int().argmax(1)]
        likeness = torch.cosine_similarity(clean.float(), reference.float(), dim=-1)
        chosen = likeness.argsort()[: round(self._edited * split.target)].sort().values
        is_other = torch.ones(split.full, dtype=torch.bool)
        is_other[: split.text] = False
        is_other[split.text + chosen.cpu()] = False
        return chosen, is_other.nonzero()[:, 0]


class Dropped(Whole):
    """Leaves out tokens of the references.

    Args:
        how: "random" takes as many as `share` says, the same at each step; "area" takes the mean of each two by two;
            "after the first" takes none but at the first step.
        share: of the references' tokens that are taken, for "random".
    """

    def __init__(self, how: Literal["random", "area", "after the first"], share: float = 0.5) -> None:
        super().__init__()
        self._how, self._share = how, share

    def call(self, split: CallTokens, call: dict[str, Any]) -> torch.Tensor:
        """The velocities of a call without these tokens."""
        taken = {name: self._taken(split, call[name], name) for name in ("hidden_states", "img_ids")}
        return self.compute(call | taken)[:, : split.target]

    def _taken(self, split: CallTokens, rows: torch.Tensor, name: str) -> torch.Tensor:
        own, references = rows[..., : split.target, :], rows[..., split.target :, :]
        if self._how == "after the first":
            return rows if self._step == 0 else own
        if self._how == "area":
            height = round(split.target**0.5)
            grid = references.unflatten(-2, (height // 2, 2, split.references // height // 2, 2))
            return torch.cat([own, grid.mean((-4, -2)).flatten(-3, -2)], dim=-2)
        draw = torch.Generator().manual_seed(0)
        some = torch.randperm(split.references, generator=draw)[: round(self._share * split.references)].sort().values
        return torch.cat([own, references[..., some, :]], dim=-2)


class TextKept(Whole):
    """The first call is whole. The others compute the target's tokens alone, beside kept keys and values of references
    and text."""

    def call(self, split: CallTokens, call: dict[str, Any]) -> torch.Tensor:
        """The velocities of a call beside kept keys and values."""
        if self._step == 0:
            return self.keep(split, call)
        none = {name: call[name][..., :0, :] for name in ("encoder_hidden_states", "txt_ids")}
        own = {name: call[name][..., : split.target, :] for name in ("hidden_states", "img_ids")}
        others = [*range(split.text), *range(split.text + split.target, split.full)]
        return self.beside(torch.tensor(others), call | none | own)
