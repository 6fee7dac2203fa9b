"""ControlNets, which compute residuals for the denoiser: counted, and left out if nobody reads their output.

In region "step" the denoiser's calls of a reused step are not made, so that nobody reads what a ControlNet has computed
for them. It is called before them, so a call is left out only if a schedule says beforehand that the step is reused,
and if the last computed step has handed all its tensors to the denoiser as they were, at the same scale. What is
returned instead has their shapes. If a call of the denoiser is made nevertheless, as when guidance begins, the
ControlNet computes then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse import messages
from omnireuse.errors import StateError
from omnireuse.hooks.interception import MethodCall
from omnireuse.hooks.run import Run

__all__ = ["COMPANIONS", "Companions"]

COMPANIONS = ("controlnet",)
"""Attributes of a pipeline that hold them."""


@dataclass
class _Output:
    """A call's result without the values.

    Attributes:
        form: stand-ins of no memory for the tensors, and all else as it was.
        tensors: identities of the tensors, to be found in the denoiser's calls of the same step.
        scale: of the call.
        is_handed_on: whether each of these calls was given all of them.
    """

    form: Any
    scale: Any
    tensors: frozenset[int]
    is_handed_on: bool | None = None


@dataclass
class _Skip:
    """A call that was left out.

    Attributes:
        name: of the companion.
        stand_ins: the leaves that were returned.
        call: that makes it after all.
        values: the leaves of its result, once it was made after all.
    """

    name: str
    stand_ins: list[Any]
    call: MethodCall
    values: list[Any] | None = None


class Companions:
    """The companions' calls in one thread."""

    def __init__(self) -> None:
        self.are_called = False
        """True if there was a call of any."""
        self._step: tuple[int, int] | None = None
        """The run and the step that the calls belong to; None before a run's first step."""
        self._order = Counter[str]()
        """Calls of each companion in this step."""
        self._outputs: dict[tuple[str, int], _Output] = {}
        """Those of the last computed step, by companion and order."""
        self._held: list[Any] = []
        """The tensors of this step's outputs, so that no other tensor gets their identity."""
        self._skipped: list[_Skip] = []
        """Calls that were left out at this step."""
        self._scales: dict[str, Any] = {}
        """Of the latest call of each companion."""
        self.scales: tuple[tuple[str, Any], ...] = ()
        """The same, as pairs. If one changes, as at the end of ControlNet guidance, what the denoiser returns is of
        another kind."""
        self._first: dict[Hashable, Mapping[str, Any]] = {}
        """What they were given before the run began with a call of the denoiser."""
        self._calls = Counter[tuple[str, bool]]()
        """Calls of the run so far, by companion and whether it was made."""

    def begin(self) -> None:
        """Prepare for a new run."""
        self._calls.clear()
        self._outputs.clear()
        self._scales.clear()
        self._first.clear()
        self.scales = ()
        self._enter(None)

    def take_calls(self) -> dict[str, tuple[int, int]]:
        """For each companion, the calls that were made and all calls, of the run that ends."""
        calls = self._calls
        found = {name: (calls[name, True], calls[name, True] + calls[name, False]) for name, _ in calls}
        self.begin()
        return found

    @property
    def made(self) -> set[int]:
        """Identities of the tensors that they have made for this step, or that stand in for these."""
        stand_ins = (leaf for skip in self._skipped for leaf in skip.stand_ins)
        return {id(each) for each in (*self._held, *stand_ins)}

    def _enter(self, step: tuple[int, int] | None) -> None:
        if step is None or step != self._step:
            self._step = step
            self._order.clear()
            self._held.clear()
            self._skipped.clear()

    def call(self, name: str, run: Run | None, is_reused: bool, given: Mapping[str, Any], call: MethodCall) -> Any:
        """One call of a companion.

        Args:
            run: that it belongs to; None if its run has not begun.
            is_reused: whether a schedule reuses the present step in region "step".
            given: its arguments by name; `conditioning_scale` is a number or a list of them, one for each of several
                ControlNets.
        """
        self.are_called = True
        self._enter(None if run is None else (id(run), run.step))
        scale = given.get("conditioning_scale")
        scale = tuple(scale) if isinstance(scale, (list, tuple)) else scale
        self._scales[name] = scale if isinstance(scale, (int, float, tuple)) else None
        self.scales = tuple(self._scales.items())
        key = name, self._order[name]
        self._order[name] += 1
        # The layout of the run has the scales. The call's own arguments may end a ControlNet on the way.
        conditions = {each: value for each, value in given.items() if each != "conditioning_scale"}
        if run is None:
            self._first[key] = conditions
        else:
            run.conditions.look(key, run.step, conditions)
            is_reused = is_reused and run.conditions.latest != run.step
        known = self._outputs.get(key)
        if is_reused and known is not None and known.is_handed_on and known.scale == self._scales[name]:
            self._calls[name, False] += 1
            form = _without_values(known.form)
            self._skipped.append(_Skip(name, pytree.tree_leaves(form), call))
            return form
        self._calls[name, True] += 1
        result = call.make()
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._held.extend(tensors)
        self._outputs[key] = _Output(_without_values(result), self._scales[name], frozenset(map(id, tensors)))
        return result

    def denoise(self, run: Run, call: MethodCall) -> MethodCall:
        """The denoiser's call, with the companions' values in it when it is made.

        Raises:
            StateError: when it is called and was not given the stand-ins as they were.
        """
        for key, first in self._first.items():
            run.conditions.look(key, run.step, first)
        self._first.clear()
        if self._skipped:

            def computed(*given: object, **named: object) -> Any:
                given, named = self._filled(given, named)
                return call.proceed(*given, **named)

            return replace(call, proceed=computed)
        if self._held:
            given = {id(leaf) for leaf in pytree.tree_leaves((call.args, dict(call.kwargs)))}
            for output in self._outputs.values():
                output.is_handed_on = output.is_handed_on is not False and output.tensors <= given
        return call

    def _filled(self, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, Any]:
        """The arguments with the values of the calls that were left out at this step, which are made now."""
        values: dict[int, Any] = {}
        for skip in self._skipped:
            if skip.values is None:
                skip.values = pytree.tree_leaves(skip.call.make())
                self._calls[skip.name, False] -= 1
                self._calls[skip.name, True] += 1
            pairs = zip(skip.stand_ins, skip.values, strict=True)
            values |= {id(old): new for old, new in pairs if isinstance(old, torch.Tensor)}
        leaves, structure = pytree.tree_flatten((tuple(given), dict(named)))
        if not values.keys() <= {id(leaf) for leaf in leaves}:
            raise StateError(messages.CONTROLNET_CHANGED)
        filled = [values.get(id(leaf), leaf) for leaf in leaves]
        found: tuple[Any, Any] = pytree.tree_unflatten(filled, structure)
        return found


def _without_values(result: object) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.new_zeros(()).expand(tensor.shape), result)
