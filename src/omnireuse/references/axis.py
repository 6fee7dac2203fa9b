"""The references of one pipeline: a region hands over full and lean calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from omnireuse.base.validation import kind_error
from omnireuse.errors import ConfigError
from omnireuse.hooks.denoisers import denoisers_of, forward_group, is_compiled_whole, parameters_of, unwrapped
from omnireuse.hooks.extension import Extension
from omnireuse.hooks.interception import MethodCall, intercept
from omnireuse.hooks.opening import Openable, Opened, Tunes, Untuned
from omnireuse.hooks.regions.cuts import opaque
from omnireuse.hooks.run import DenoiserCall, Region, RegionFactory, Run
from omnireuse.references.attention import FullPass, LeanPass, attending
from omnireuse.references.declared import OWN_CACHES, PIPELINES, Declaration, References, Split, declaration_of
from omnireuse.references.kept import Kept
from omnireuse.summary.summary import ReferenceCalls

__all__ = ["ReferenceAxis", "WithReferences", "axis_for"]

FULL = "full calls"
"""The name of the fallback in a summary."""


class ReferenceAxis(Extension):
    """Full and lean calls of the denoisers of one pipeline.

    Args:
        plan: of runs that get none of their own; None leaves them full, and keeps nothing.
    """

    def __init__(self, plan: References | None) -> None:
        self.plan = plan
        self._counts, self._most, self._lock = Counter[str](), 0, threading.Lock()

    @property
    def calls(self) -> ReferenceCalls:
        """The calls so far."""
        with self._lock:
            return ReferenceCalls(full=self._counts["full"], lean=self._counts["lean"], kept_bytes=self._most)

    @property
    def lean_trials(self) -> int:
        """Lean calls of runs beside pictures so far."""
        return self._counts["lean uncounted"]

    def count(self, kind: str, run: Run, kept_bytes: int = 0) -> None:
        """Count a full or lean call, and the bytes that its run holds; those of an uncounted run apart."""
        is_uncounted = run.kind == "uncounted"
        with self._lock:
            self._counts[f"{kind} uncounted" if is_uncounted else kind] += 1
            self._most = max(self._most, 0 if is_uncounted else kept_bytes)

    def region(self, make: RegionFactory) -> RegionFactory:
        return lambda *given: self.wrapped(make(*given))

    def summarize(self, fields: dict[str, Any]) -> None:
        fields["references"] = self.calls
        promise = fields.get("promise")
        if promise is not None and promise.but is None and self.plan is not None:
            but = "lean calls keep keys of references, and the profile was measured without"
            fields["promise"] = replace(promise, but=but)

    def wrapped(self, inner: Region) -> Region:
        """Another region, whose computed calls are full or lean."""
        return _LeanRegion(inner, self)

    def tuned(self, full_every: int | None) -> References | None:
        """The plan of a run that tuning has one for, with a full last step: as `References.full_every`, but for 0,
        which stands for the first call; None if nothing was tried."""
        if full_every is None:
            return None
        on_host = self.plan is not None and self.plan.on_host
        return References(full_every=full_every or None, full_last=True, on_host=on_host)


class _LeanRegion(Region):
    """Another region, whose computed calls are full or lean.

    Runs that are measured, and trial runs without lean calls, are full throughout and keep nothing.

    Args:
        inner: decides which calls are computed.
    """

    def __init__(self, inner: Region, axis: ReferenceAxis) -> None:
        self._inner, self._axis, self.stepper = inner, axis, inner.stepper
        self._kept: dict[Hashable, Kept] = {}
        """By denoiser and branch."""
        self._is_off = False
        """After a fault all further calls of the run are full."""
        self._splits: dict[Hashable, Split | str | None] = {}
        """Of the calls so far, by their layouts: reading one waits for the device, and reused calls do not."""

    @property
    def held(self) -> Mapping[str, Any]:
        return self._inner.held

    def for_run(self) -> Region:
        return self._axis.wrapped(self._inner.for_run())

    def scheduler_step(self, run: Run, given: Mapping[str, Any]) -> torch.Tensor:
        return self._inner.scheduler_step(run, given)

    def undo(self) -> None:
        self._inner.undo()

    def call(self, call: DenoiserCall) -> Any:
        declared = declaration_of(call.module)
        plan: References | None = call.run.references or (self._axis.plan if call.run.kind == "reuse" else None)
        if declared is None or plan is None:
            return self._inner.call(call)
        form = call.layout, repr(call.arguments.get("img_shapes"))
        if form not in self._splits:
            self._splits[form] = declared.split(call.arguments)
        split = self._splits[form]
        if not isinstance(split, Split):
            if split is not None:
                _fall_back(call, split)
            return self._inner.call(call)
        seen = replace(call, proceed=partial(self._compute, declared, plan, call))
        # Regions see the latents of the target, as the scheduler does.
        vars(seen)["latents"] = [call.arguments["hidden_states"][:, : split.target]]
        return self._inner.call(seen)

    def _compute(self, declared: Declaration, plan: References, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """A computed call: of all samples, or of some."""
        arguments = {**dict(zip(parameters_of(type(call.module).forward), args, strict=False)), **kwargs}
        key, generation, model = (call.denoiser, call.branch), call.run.generation, declared.definer(call.module)
        kept = self._kept.get(key)
        if kept is not None and kept.changed_at != call.layout.conditions:
            kept = None
        is_due = kept is None or plan.is_full(generation.index, generation.total, kept.lean_calls)
        if kept is not None and not is_due and kept.serves(call.module, arguments):
            lean = LeanPass(kept.split, kept.keys, kept.values)
            try:
                with attending(lean, model), _positions(declared, call, lean, kept.split):
                    result = call.proceed(**declared.lean_arguments(kept.split, arguments))
                lean.end()
            except Exception as error:  # whatever a lean call fails with, the run goes on
                self._turn_off(call, f"a lean call failed with {type(error).__name__}: {error!s:.200}")
            else:
                kept.lean_calls += 1
                self._axis.count("lean", call.run)
                return result
        # Nothing that was kept is of use any more, and its memory is that of what is kept next.
        self._kept.pop(key, None)
        kept = None
        split, keeps = declared.split(arguments), not self._is_off and plan.full_every != 1
        if not isinstance(split, Split):
            return call.proceed(*args, **kwargs)
        if keeps and len(arguments["hidden_states"]) != call.batch:
            keeps = False  # for other rows may be given all that these are given, but for the target
            _fall_back(call, "some samples of a batch are computed apart; such calls are full")
        full = FullPass(split, declared.attentions(call.module), on_host=plan.on_host)
        if (unknown := opaque(call)) is not None:
            full.why_not = f"what {unknown} holds cannot be compared between calls"
        with ExitStack() as stack:
            if keeps:
                stack.enter_context(attending(full, model))
            result = call.proceed(*args, **kwargs)
        if keeps:
            full.end()
            if full.why_not:
                self._turn_off(call, full.why_not)
            else:
                self._kept[key] = Kept(split, call.module, arguments, full.keys, full.values, call.layout.conditions)
        self._axis.count("full", call.run, sum(each.nbytes for each in self._kept.values()))
        # The target's rows are all that pipelines use.
        return pytree.tree_map_only(
            torch.Tensor, lambda leaf: leaf[:, : split.target] if leaf.ndim == 3 else leaf, result
        )

    def _turn_off(self, call: DenoiserCall, why: str) -> None:
        self._is_off = True
        self._kept.clear()
        where = f"step {call.run.generation.index}, branch {call.branch}"
        _fall_back(call, f"{where}: {why}; the other calls of the run are full")


def _fall_back(call: DenoiserCall, why: str) -> None:
    kept = f"{call.model}: keys and values of references are not kept: {why}"
    call.run.generation.fall_back(FULL, f"{kept}; references=False asks for no lean calls")


@contextmanager
def _positions(declared: Declaration, call: DenoiserCall, lean: LeanPass, split: Split) -> Iterator[None]:
    """Positions within a lean call. Those of its text follow the largest picture, be it a reference."""

    def whole(positions: MethodCall) -> Any:
        if not lean.is_under_way:  # a call of another thread
            return positions.make()
        _, *args = positions.args
        image, text = positions.proceed(call.arguments["img_shapes"], *args, **positions.kwargs)
        return image[: split.target], text

    if declared.positions is None:
        yield
        return
    interception = intercept(getattr(call.module, declared.positions), call.module, {"__call__": whole})
    try:
        yield
    finally:
        interception.undo()


@dataclass(frozen=True)
class WithReferences:
    """Another value, whose computed calls are full or lean as `enable(references=…)` asks.

    Args:
        aim: as of `axis_for`.
    """

    value: Openable
    references: object
    aim: str = ""

    def open(self, pipeline: object, group: dist.ProcessGroup | None) -> Opened:
        """As the value opens itself, with the references' extension if there is one."""
        strategy, name, extensions = self.value.open(pipeline, group)
        tuner = next((each for each in extensions if isinstance(each, Tunes) and not isinstance(each, Untuned)), None)
        axis = axis_for(self.references, pipeline, strategy.region, self.aim, is_tuned=tuner is not None)
        if axis is None:
            return strategy, name, extensions
        if tuner is not None and not isinstance(self.references, References):
            tuner.references = axis
        return strategy, name, (*extensions, axis)


def axis_for(
    references: object, pipeline: object, region: str | None, aim: str = "", *, is_tuned: bool = False
) -> ReferenceAxis | None:
    """What `enable(references=…)` asks for; None if all calls are to be full.

    Args:
        references: None, True, False, "host", or a plan.
        region: what reuse skips; None if a named cache chooses it.
        aim: a target for results that is given, too.
        is_tuned: whether tuning decides.

    Raises:
        WrongTypeError: `references` is something else.
        ConfigError: lean calls are asked for, and the pipeline's denoiser gets no reference tokens, is not declared, or
            keeps them itself; or what is given beside it does not go with lean calls.
    """
    if references is False or (references is None and not is_tuned):
        return None
    where = f"enable(references={references!r:.60})"
    is_known = references is None or references is True or references == "host"
    if not is_known and not isinstance(references, References):
        raise kind_error("enable", "references", "be None, True, False or 'host'", references)
    hindrance = _hindrance(pipeline, region, aim)
    if references is None:
        return None if hindrance else ReferenceAxis(None)
    if hindrance:
        raise ConfigError(f"{where}: {hindrance}")
    return ReferenceAxis(references if isinstance(references, References) else References(on_host=references == "host"))


def _hindrance(pipeline: object, region: str | None, aim: str) -> str:
    """Why lean calls cannot be had, and what to do; empty if they can."""
    name, names = type(pipeline).__name__, {cls.__name__ for cls in type(pipeline).__mro__}
    if names & {*OWN_CACHES}:
        return f"{name} keeps keys and values of its references itself; leave references out"
    denoisers = denoisers_of(pipeline)
    if not names & {*PIPELINES} or not any(declaration_of(unwrapped(each)) for each in denoisers):
        known = ", ".join(PIPELINES)
        return f"the denoiser of {name} gets no reference tokens that are declared; leave references out (for {known})"
    if any(map(is_compiled_whole, denoisers)):
        return f"the denoiser of {name} is compiled, and keys are kept by calls that are not; leave references out"
    if forward_group(denoisers) is not None:
        return "several ranks share the denoiser's forward; leave references out"
    if region not in ("step", "call"):
        reuse = "a named cache" if region is None else f"region {region!r}"
        return f"lean calls go with regions 'step' and 'call', got {reuse}; leave one of the two out"
    return f"nobody has measured {aim} with lean calls; leave one of the two out" if aim else ""
