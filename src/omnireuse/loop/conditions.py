"""What a step is computed from beside its latents and its time: is it what it was at the step before?"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["CallConditions", "Seen", "version"]

_LEAVES = (torch.Tensor, bool, int, float, str, type(None))


class CallConditions:
    """The conditions of one run: prompts, masks, images, adapters, whatever the model is given.

    An input of a call is a condition if it was equal at the first two steps of its branch. Latents and times were not,
    by whatever name, and are not looked at again. Inputs of inference mode count no changes in place, so that only
    another object shows a change of them.

    Args:
        are_padded: whether a tensor is as it was with zeros at its end, too: hosts pad prompts to the longest of those
            that they batch.

    Attributes:
        latest: the step that saw the latest change; 0 before the first. A part of the layout of a run, or of the kind
            of its outputs, so that the step is computed and the memory dropped.
        changes: the steps that saw changes, by what had changed.
        held: the conditions of each branch of two steps or more, by name, as they were at its latest call. If each of
            them is the same object, of the same version and address, `look` finds no change.
        marks: conditions that are no inputs of a call, by name.
    """

    def __init__(self, *, are_padded: bool = False) -> None:
        self._are_padded = are_padded
        self.latest = 0
        self.changes: dict[str, list[int]] = {}
        self.held: dict[Hashable, dict[str, Seen]] = {}
        self.marks: dict[Hashable, Hashable] = {}
        self._first: dict[Hashable, dict[str, Seen]] = {}

    def look(self, branch: Hashable, step: int, given: Mapping[str, Any], others: Collection[int] = ()) -> int:
        """Compare what a call is given with the call of its branch at the step before; returns `latest`.

        Args:
            given: the inputs by name, in lists and dictionaries or not.
            others: identities of tensors that are no conditions.

        Cost: the content of another tensor is compared on its device, and that is waited for, once for the call.
        """
        found: dict[str, Any] = {}
        for name, value in given.items():
            _collect(value, name, found)
        known = self.held[branch] if branch in self.held else self._first.pop(branch, None)
        if known is None:
            self._first[branch] = {name: seen(value) for name, value in found.items() if id(value) not in others}
            return self.latest
        moved, doubtful = [], []
        for name, before in known.items():
            if name not in found:
                continue  # whether an input is given or not, the layout tells
            is_same = before.is_same(found[name], is_padded=self._are_padded)
            if is_same is None:
                doubtful.append((name, before.value, found[name]))
            elif not is_same:
                moved.append(name)
        moved += _different(doubtful)
        known |= {name: seen(found[name]) for name in (*moved, *(name for name, _, _ in doubtful))}
        if branch in self.held:
            self.change(step, moved)
        else:
            self.held[branch] = {name: each for name, each in known.items() if name not in moved}
        return self.latest

    def tell(self, step: int, name: str, value: Hashable) -> None:
        """Take the present value of a condition that is no input of a call."""
        if self.marks.setdefault(name, value) != value:
            self.marks[name] = value
            self.change(step, [name])

    def change(self, step: int, names: Iterable[str]) -> None:
        """Note which conditions have changed since the step before."""
        for name in names:
            self.latest = step
            if step not in (steps := self.changes.setdefault(name, [])):
                steps.append(step)


class Seen(NamedTuple):
    """An input as it was at the latest call.

    Attributes:
        value: the input itself, so that its memory is not used for another one.
        version: number of its changes in place; None if they are not counted, or for what is no tensor.
        address: of its first element; 0 for a tensor without data.
    """

    value: Any
    version: int | None
    address: int

    def is_same(self, now: object, *, is_padded: bool = False) -> bool | None:
        """Whether an input is as this one; None if the content decides, also that of other shapes if it may be
        padded."""
        before = self.value
        if not isinstance(before, torch.Tensor) or not isinstance(now, torch.Tensor):
            return type(now) is type(before) and bool(now == before)
        is_untouched = version(before) == self.version and (not self.address or before.data_ptr() == self.address)
        if now is before or not is_untouched:
            return is_untouched  # what it was before is gone
        if (now.ndim, now.dtype, now.device) != (before.ndim, before.dtype, before.device):
            return False
        if now.shape != before.shape:
            return None if is_padded else False
        if self.address and now.data_ptr() == self.address and now.stride() == before.stride():
            return True
        return None


def seen(value: Any) -> Seen:
    """An input as it is now."""
    has_address = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return Seen(value, version(value), value.data_ptr() if has_address else 0)


def _collect(value: object, name: str, found: dict[str, Any]) -> None:
    """Gather tensors and plain values by their places."""
    if isinstance(value, _LEAVES):
        found[name] = value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _collect(each, f"{name}.{key}", found)
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            _collect(each, f"{name}[{place}]", found)


def _different(pairs: Collection[tuple[str, torch.Tensor, torch.Tensor]]) -> list[str]:
    """The names of tensors whose contents differ. Cost: waits for the device once if there are some on one."""
    pairs = [each for each in pairs if not (each[2].is_meta or isinstance(each[2], FakeTensor))]
    flags = [_is_other(before, now) for _, before, now in pairs]
    if not flags:
        return []
    is_other = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()
    return [name for (name, _, _), differs in zip(pairs, is_other, strict=True) if differs]


def _is_other(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Whether contents differ, beside zeros at the end of one of them."""
    if before.shape == now.shape:
        return (now != before).any()
    common = tuple(slice(min(sizes)) for sizes in zip(before.shape, now.shape, strict=True))
    of_both = [(each.count_nonzero() != each[common].count_nonzero()) for each in (before, now)]
    return (now[common] != before[common]).any() | of_both[0] | of_both[1]


def version(value: object) -> int | None:
    """The number of changes in place of a tensor; None if they are not counted, or for what is no tensor."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None
