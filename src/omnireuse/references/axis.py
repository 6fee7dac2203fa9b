"""The references of one pipeline: its denoisers are watched, and a region hands over full and lean calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.hooks.denoisers import parameters_of, unwrapped
from omnireuse.hooks.interception import intercept
from omnireuse.hooks.run import DenoiserCall, Region, RegionFactory, Run
from omnireuse.loop.strategy import Strategy
from omnireuse.references.attention import FullPass, LeanPass, attending, lean_pass, watch
from omnireuse.references.declared import Declaration, Split, declaration_of
from omnireuse.references.kept import Kept
from omnireuse.references.plan import References
from omnireuse.summary.summary import ReferenceCalls

__all__ = ["ReferenceAxis"]

FULL = "full calls"
"""The name of the fallback in a summary."""


class ReferenceAxis:
    """Full and lean calls of the denoisers of one pipeline.

    Args:
        plan: says which calls are full.
    """

    def __init__(self, plan: References) -> None:
        self.plan = plan
        self._watched: list[torch.nn.Module] = []
        self._ends: list[Callable[[], None]] = []
        self._counts, self._most, self._lock = Counter[str](), 0, threading.Lock()

    @property
    def calls(self) -> ReferenceCalls:
        """The calls so far."""
        with self._lock:
            return ReferenceCalls(full=self._counts["full"], lean=self._counts["lean"], kept_bytes=self._most)

    def count(self, kind: str, kept_bytes: int = 0) -> None:
        """Count a full or lean call, and the bytes that its run holds."""
        with self._lock:
            self._counts[kind] += 1
            self._most = max(self._most, kept_bytes)

    def around(self, make: RegionFactory) -> RegionFactory:
        """A function that makes regions as `make` does, whose computed calls are full or lean."""

        def made(strategy: Strategy, denoisers: Sequence[torch.nn.Module], owner: object) -> Region:
            region = make(strategy, denoisers, owner)
            self._watch(denoisers)
            return LeanRegion(region, self, self.plan)

        return made

    def _watch(self, denoisers: Sequence[torch.nn.Module]) -> None:
        models = [unwrapped(each) for each in denoisers]
        if len(models) == len(self._watched) and all(a is b for a, b in zip(models, self._watched, strict=True)):
            return
        self.close()
        self._watched = models
        for model in models:
            declared = declaration_of(model)
            if declared is None:
                continue
            kind = next(cls for cls in type(model).__mro__ if cls.__name__ == declared.model)
            self._ends.append(watch(kind))
            if declared.positions is not None:
                part = getattr(model, declared.positions)
                self._ends.append(intercept(part, self, {"__call__": self._positioned}).undo)

    def _positioned(self, proceed: Callable[..., Any], shapes: Any, *args: Any, **kwargs: Any) -> Any:
        """Positions of a lean call. Those of its text follow the largest picture, be it a reference."""
        lean = lean_pass()
        if lean is None:
            return proceed(shapes, *args, **kwargs)
        image, text = proceed(lean.shapes, *args, **kwargs)
        return image[: lean.split.target], text

    def close(self) -> None:
        """Watch nothing any more. Idempotent."""
        while self._ends:
            self._ends.pop()()
        self._watched = []


@dataclass(frozen=True)
class _TargetCall(DenoiserCall):
    """A call as regions see it: its latents are those of the target."""

    target: int = 0

    @cached_property
    def latents(self) -> list[torch.Tensor]:
        """The target's rows of the first argument."""
        return [self.arguments["hidden_states"][:, : self.target]]


class LeanRegion(Region):
    """Another region, whose computed calls are full or lean.

    Runs that are measured, and shadows of other plans, are full throughout and keep nothing.

    Args:
        inner: decides which calls are computed.
        kinds: of runs that have lean calls.
    """

    def __init__(
        self, inner: Region, axis: ReferenceAxis, plan: References, kinds: Collection[str] = ("reuse",)
    ) -> None:
        self._inner, self._axis, self._plan, self._kinds = inner, axis, plan, kinds
        self._kept: dict[Hashable, Kept] = {}
        """By denoiser and branch."""
        self._is_off = False
        """After a fault all further calls of the run are full."""
        self._splits: dict[Hashable, Split | str | None] = {}
        """Of the calls so far, by their layouts: reading one waits for the device, and reused calls do not."""

    @property
    def held(self) -> Mapping[str, Any]:
        return self._inner.held

    def for_run(self) -> LeanRegion:
        return LeanRegion(self._inner.for_run(), self._axis, self._plan, self._kinds)

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        return self._inner.scheduler_step(run, output, sample)

    def stepped(self, run: Run, latents: torch.Tensor | None) -> None:
        self._inner.stepped(run, latents)

    def undo(self) -> None:
        self._axis.close()
        self._inner.undo()

    def call(self, call: DenoiserCall) -> Any:
        declared = declaration_of(call.module)
        if declared is None or call.run.kind not in self._kinds:
            return self._inner.call(call)
        form = call.layout, repr(call.arguments.get("img_shapes"))
        if form not in self._splits:
            self._splits[form] = declared.split(call.arguments)
        split = self._splits[form]
        if not isinstance(split, Split):
            if split is not None:
                _fall_back(call, split)
            return self._inner.call(call)
        given = {field.name: getattr(call, field.name) for field in fields(call)}
        computed = partial(self._compute, declared, call)
        return self._inner.call(_TargetCall(**given | {"proceed": computed}, target=split.target))

    def _compute(self, declared: Declaration, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """A computed call: of all samples, or of some."""
        arguments = {**dict(zip(parameters_of(type(call.module).forward), args, strict=False)), **kwargs}
        key, step = (call.denoiser, call.branch), call.run.generation.index
        kept = self._kept.get(key)
        if kept is not None and not self._plan.is_full(step, kept.lean_calls) and kept.serves(call.module, arguments):
            try:
                return self._lean(declared, call, kept, arguments)
            except Exception as error:  # whatever a lean call fails with, the run goes on
                self._turn_off(call, f"a lean call failed with {type(error).__name__}: {error!s:.200}")
        # Of another number of samples, or changed: nothing that was kept is of use.
        self._kept.pop(key, None)
        return self._full(declared, call, arguments, partial(call.proceed, *args, **kwargs), key)

    def _lean(self, declared: Declaration, call: DenoiserCall, kept: Kept, arguments: Mapping[str, Any]) -> Any:
        lean = LeanPass(kept.split, kept.keys, kept.values, arguments.get("img_shapes"))
        with attending(lean):
            result = call.proceed(**declared.lean_arguments(kept.split, arguments))
        lean.check_complete()
        kept.lean_calls += 1
        self._axis.count("lean")
        return result

    def _full(
        self,
        declared: Declaration,
        call: DenoiserCall,
        arguments: Mapping[str, Any],
        compute: Callable[[], Any],
        key: Hashable,
    ) -> Any:
        split = declared.split(arguments)
        if not isinstance(split, Split):
            return compute()
        if self._is_off or self._plan.full_every == 1:
            result = compute()
            self._axis.count("full")
            return _target_of(result, split)
        full = FullPass(split, declared.attentions(call.module), on_host=self._plan.on_host)
        with attending(full):
            result = compute()
        if why := full.why_not():
            self._turn_off(call, why)
        else:
            self._kept[key] = Kept(split, call.module, arguments, full.keys, full.values)
        self._axis.count("full", sum(each.nbytes for each in self._kept.values()))
        return _target_of(result, split)

    def _turn_off(self, call: DenoiserCall, why: str) -> None:
        self._is_off = True
        self._kept.clear()
        where = f"step {call.run.generation.index}, branch {call.branch}"
        _fall_back(call, f"{where}: {why}; the other calls of the run are full")


def _fall_back(call: DenoiserCall, why: str) -> None:
    call.run.generation.fall_back(FULL, f"{call.model}: keys and values of references are not kept: {why}")


def _target_of(result: Any, split: Split) -> Any:
    """The target's rows of a full call's result, which are all that pipelines use."""

    def cut(leaf: torch.Tensor) -> torch.Tensor:
        return leaf[:, : split.target] if leaf.ndim == 3 else leaf

    return pytree.tree_map_only(torch.Tensor, cut, result)
