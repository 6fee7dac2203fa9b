"""What the encoding of a call depends on, and what it is now: two digests that are equal if the result is."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import torch
from torch import nn

from omnireuse.fingerprints.plain import digest_of
from omnireuse.fingerprints.survey import Survey
from omnireuse.prompts.code import Code, facts_of_class
from omnireuse.prompts.look import ABSENT, IDLE, Look

__all__ = ["Scope", "State", "View", "Write", "held_by"]


class State(NamedTuple):
    """What a call depends on, in two digests: equal states give equal embeddings.

    Args:
        weights: of the content of all tensors.
        settings: of all else.
        elsewhere: digest that another process has for both; None if there cannot be one.
    """

    weights: bytes
    settings: bytes
    elsewhere: str | None


class Scope(NamedTuple):
    """What counts for a call.

    Args:
        ran: paths of the modules that ran, wholly or in part: they count with all that they are.
        own: paths of values that the call wrote itself: they count by how often somebody else wrote them.
    """

    ran: frozenset[str] = frozenset()
    own: tuple[str, ...] = ()


class Write(enum.Enum):
    """How a call wrote a value: not at all, with a new one, from the old one, or as a counter that nothing reads."""

    FOREIGN, ANEW, UPDATE, COUNT = range(4)


class View(NamedTuple):
    """A pipeline at one moment.

    Args:
        look: what it holds under mentioned names.
        surveys: of the modules that ran, and of what counts whole, by path.
    """

    look: Look
    surveys: dict[str, Survey]

    @property
    def ran(self) -> list[str]:
        """Paths of the modules that ran."""
        return sorted(self.surveys.keys() - self.look.whole.keys())

    def state(self, own: frozenset[str], written: Any) -> State:
        """The digests.

        Args:
            own: see `Scope`.
            written: how often others wrote those.
        """
        without = own | {f"{path}{IDLE}" for path in self.ran}
        surveys = [self.look, *[survey for _, survey in sorted(self.surveys.items())]]
        weights, here, there = zip(*[each.digests(without) for each in surveys], strict=True)
        elsewhere = None if None in there else digest_of(*weights, *there).hex()
        return State(digest_of(*weights), digest_of(*here, repr((self.ran, written)).encode()), elsewhere)

    def moved(self, now: View) -> set[str]:
        """Paths whose content differs."""
        both = self.surveys.keys() & now.surveys.keys()
        found = self.look.moved(now.look).union(*[self.surveys[path].moved(now.surveys[path]) for path in both])
        return (found | (self.surveys.keys() ^ now.surveys.keys())) - {f"{path}{IDLE}" for path in self.ran}

    def written(self, path: str, now: View, code: Code) -> Write:
        """How the call wrote what moved, by what the code says."""
        was, survey = self._of(path), now._of(path)
        facts = code.facts.and_of([facts_of_class(kind) for kind in was.kinds])
        name = _name(path)
        is_count = not {name, name.lstrip(":")} & (facts.anew | facts.used)
        if path in was.parameters and path in survey.parameters:
            return Write.FOREIGN
        if path in was.containers and was.containers[path] == survey.containers.get(path):
            return Write.COUNT if is_count else Write.UPDATE
        if name not in facts.stored:
            return Write.FOREIGN
        return Write.ANEW if name in facts.anew else Write.COUNT if is_count else Write.UPDATE

    def _of(self, path: str) -> Survey:
        """What a path is in."""
        roots = [root for root in self.surveys if path.startswith(root) and f"{path} "[len(root)] in " .:["]
        return self.surveys[max(roots, key=len)] if roots and path not in self.look.items else self.look

    def owner(self, path: str) -> tuple[Any, str]:
        """The object that has an attribute, and its name; None for the object if it is gone."""
        survey = self._of(path)
        if survey is self.look:
            return self.look.owner(path)
        place, _, name = path.removeprefix(f"{survey.path}.").rpartition(".")
        value = survey.value
        return (value.get_submodule(place) if isinstance(value, nn.Module) else value), name

    def content(self, path: str) -> Any:
        """What a path holds, to be compared."""
        return self._of(path).content(path)

    def wants_gradients(self) -> bool:
        """Whether a weight of a module that ran requires a gradient."""
        return any(tensor.requires_grad for path in self.ran for tensor in self.surveys[path].tensors)

    def is_training(self) -> bool:
        """Whether a layer that ran is in training mode."""
        modules = [module for path in self.ran if (module := self.surveys[path].value) is not None]
        return any(layer.training for module in modules for layer in module.modules())

    def device(self) -> torch.device | None:
        """Where the first weight is now; None without weights."""
        surveys = [*[self.surveys[path] for path in self.ran], self.look]
        return next((survey.tensors[0].device for survey in surveys if survey.tensors), None)


def held_by(owner: Any, name: str) -> Any:
    """The value of an attribute, or of a global in its namespace; `ABSENT` if there is none."""
    return owner.get(name, ABSENT) if type(owner) is dict else getattr(owner, name, ABSENT)


def _name(path: str) -> str:
    """The name of an attribute, or that of a global with a colon."""
    name = path.rsplit(".", 1)[-1]
    return f":{name.rsplit(':', 1)[-1]}" if ":" in name else name
