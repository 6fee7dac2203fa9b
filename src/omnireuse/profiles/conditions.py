"""Under which conditions a pipeline computes, foreign hooks among them, and whether they are still the same."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch.nn.modules import module as everywhere

from omnireuse.base.records import Record
from omnireuse.errors import StateError
from omnireuse.fingerprints.tensors import reference
from omnireuse.hooks.denoisers import DENOISERS, denoisers_of, dtype_of
from omnireuse.hooks.interception import is_optimized
from omnireuse.pipelines.snapshot import Snapshot, autocast_state, when_suspected
from omnireuse.profiles.holding import held_by
from omnireuse.profiles.origin import fingerprint

__all__ = ["OTHER_WEIGHTS", "Conditions", "ConditionsWatch", "ForwardHooks", "read_weights_anew", "watch_of"]


OTHER_WEIGHTS = "the pipeline has other weights than the profile was measured with"


class Conditions(Record, frozen=True, kw_only=True):
    """What the outputs of a pipeline's denoisers depend on beside their inputs. Equal conditions give equal outputs.

    Attributes:
        model: class of the denoiser.
        config_digest: of its configuration and of the scheduler's, but for the shift of the noise levels.
        scheduler: class of the scheduler.
        weights: digest of the denoisers' weights, without adapters; None if they cannot be read, because they are
            sharded or not in memory.
        adapters: LoRA adapters in use, each with a digest of its weights and its scale.
        dtype: in which the denoiser computes, as "bfloat16".
        holding: how weights are held: "plain tensors", or the classes and dtypes of quantised ones.
        autocast: dtype of autocast, as "cuda bfloat16"; None if it is off.
        hooks: forward hooks, replaced forwards and the hooks of diffusers and accelerate that may change numbers.
        guider: of a modular pipeline, with its settings; None for other pipelines.
    """

    model: str
    config_digest: str
    scheduler: str
    weights: str | None
    adapters: tuple[str, ...] = ()
    dtype: str
    holding: str
    autocast: str | None = None
    hooks: tuple[str, ...] = ()
    guider: str | None = None

    def foreign(self, other: Conditions) -> str | None:
        """What another pipeline has in place of the denoiser, the scheduler or their configuration, in words; None
        if they are the same."""
        return self._unlike(other, ("model", "scheduler", "config_digest"))

    def unlike(self, other: Conditions) -> str | None:
        """How a pipeline under the `other` conditions differs from one that was measured under these, in words; None
        if nothing differs. Weights that cannot be read differ."""
        if (found := self._unlike(other, _WORDS)) is not None:
            return found
        if self.weights is None or other.weights is None:
            return "weights cannot be compared, because they are sharded or not in memory"
        return None if self.weights == other.weights else OTHER_WEIGHTS

    def _unlike(self, other: Conditions, names: Iterable[str]) -> str | None:
        """The first of these attributes that differs, in words."""
        for name in names:
            values, (has, measured, without) = [getattr(each, name) for each in (other, self)], _WORDS[name]
            if values[0] != values[1]:
                given, own = ((", ".join(each) if isinstance(each, tuple) else each) or without for each in values)
                return f"the pipeline {has} {given}, the profile was measured {measured} {own}"
        return None


_WORDS = {
    "model": ("has denoiser", "with", ""),
    "scheduler": ("has scheduler", "with", ""),
    "config_digest": ("has configuration", "with", ""),
    "dtype": ("computes in", "in", ""),
    "holding": ("holds its weights as", "with", ""),
    "autocast": ("runs with autocast", "with autocast", "off"),
    "adapters": ("has LoRA adapters", "with", "none"),
    "hooks": ("has hooks", "with", "none"),
    "guider": ("has guider", "with", "none"),
}
"""Of each attribute but the weights: what a pipeline does with it, how a profile was measured, and what stands for
nothing."""


class ConditionsWatch:
    """The conditions of one pipeline, which is held weakly. Threads may share it.

    Seen at once: a change of weights that torch counts, an optimizer's step, a replaced module, scheduler or
    configuration, a cast, a move, adapters, their scales, hooks, replaced forwards and autocast. A write that torch
    does not count, as into `tensor.data`, is seen if it changes the first value of any weight.
    """

    def __init__(self, pipeline: object) -> None:
        self._pipeline: Callable[[], Any] = reference(pipeline)
        self._lock = threading.RLock()
        self._is_due = True
        self._found: _Found | None = None
        this = weakref.ref(self)

        def suspect(*event: object) -> None:
            watch = this()  # no strong reference, for torch keeps this function
            if watch is not None and (watch._found is None or watch._found.is_touched_by(event)):
                watch._is_due = True

        self._suspect = suspect
        weakref.finalize(self, when_suspected(suspect))

    def now(self) -> Conditions:
        """The conditions in this thread at this moment.

        Raises:
            StateError: the pipeline is gone.
            UnsupportedModelError: it has no denoiser.

        Cost: if nothing has changed, about 2 ms for a thousand weights on a CPU (``python -m bench promise``), of each
            of which one value is read; else 64 values are. It waits for the device once.
        """
        pipeline = self._pipeline()
        if pipeline is None:
            raise StateError("ConditionsWatch.now: the pipeline is gone")
        with self._lock:
            found = self._found
            if self._is_due or found is None or not found.is_still(pipeline):
                self._is_due = False  # before looking: what happens meanwhile must lead to another look
                found = self._found = _Found(pipeline, self._suspect, found)
            return found.conditions()


def watch_of(pipeline: object) -> ConditionsWatch:
    """The one watch that all who ask share, as long as the pipeline lives."""
    with _lock:
        try:
            if (known := _watches.get(pipeline)) is None:
                known = _watches[pipeline] = ConditionsWatch(pipeline)
            return known
        except TypeError:  # not hashable, or not to be held weakly
            return ConditionsWatch(pipeline)


def read_weights_anew() -> None:
    """Let the next look at each pipeline of this process read its weights: somebody has written them in a way that
    torch does not count, as engines do that replace them."""
    with _lock:
        watches = list(_watches.values())
    for watch in watches:
        with watch._lock:
            watch._found = None


_lock = threading.Lock()
_watches: weakref.WeakKeyDictionary[Any, ConditionsWatch] = weakref.WeakKeyDictionary()


class _Found:
    """What one look at a pipeline has found.

    Args:
        pipeline: with a denoiser.
        suspect: called when a part may have changed.
        before: the look before it, if any.
    """

    def __init__(self, pipeline: object, suspect: Callable[..., None], before: _Found | None) -> None:
        parts = {name: getattr(pipeline, name, None) for name in DENOISERS}
        self._settings = [reference(each) for each in _settings(pipeline)]
        self._snapshot = Snapshot(parts, suspect)
        self._adapters = self._snapshot.adapters()
        self._hooks = ForwardHooks({name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)})
        self._plain: Conditions = before._plain if before is not None and self._continues(before) else _plain(pipeline)
        """The conditions but for autocast and hooks."""

    def is_touched_by(self, event: Sequence[object]) -> bool:
        """Whether an event of `suspect` may change a denoiser (`Snapshot.is_touched_by`)."""
        return self._snapshot.is_touched_by(event)

    def is_still(self, pipeline: object) -> bool:
        """Whether another look would find the same, but for autocast and hooks."""
        return (
            self._snapshot.has_parts_of(pipeline)
            and _are(self._settings, _settings(pipeline))
            and self._snapshot.has_weights()
            and self._snapshot.adapters() == self._adapters
        )

    def conditions(self) -> Conditions:
        """With this thread's autocast, and with hooks."""
        autocast, hooks = autocast_state(), self._hooks.names()
        if not autocast and not hooks:
            return self._plain
        on = ", ".join(f"{kind} {dtype}" for kind, dtype in autocast) or None
        return msgspec.structs.replace(self._plain, autocast=on, hooks=hooks)

    def _continues(self, before: _Found) -> bool:
        return (
            self._snapshot.continues(before._snapshot)
            and _are(before._settings, [each() for each in self._settings])
            and self._adapters == before._adapters
        )


def _plain(pipeline: object) -> Conditions:
    model, digest, scheduler = fingerprint(pipeline)
    held = held_by(denoisers_of(pipeline))
    return Conditions(
        model=model,
        config_digest=digest,
        scheduler=scheduler,
        weights=held.weights,
        adapters=held.adapters,
        dtype=dtype_of(pipeline),
        holding=held.kinds,
        guider=_guider_text(getattr(pipeline, "guider", None)),
    )


def _guider_text(guider: object) -> str | None:
    if guider is None:
        return None
    settings = {name: value for name, value in dict(getattr(guider, "config", {})).items() if not name.startswith("_")}
    return f"{type(guider).__name__}({', '.join(f'{name}={value!r}' for name, value in sorted(settings.items()))})"


def _settings(pipeline: object) -> list[Any]:
    """Objects that are exchanged when the scheduler, the guider or a configuration changes."""
    scheduler, guider = (getattr(pipeline, name, None) for name in ("scheduler", "guider"))
    configured = (scheduler, guider, *denoisers_of(pipeline))
    return [scheduler, guider, *(getattr(each, "config", None) for each in configured)]


def _are(references: Sequence[Callable[[], Any]], objects: Sequence[Any]) -> bool:
    return len(references) == len(objects) and all(
        find() is each for find, each in zip(references, objects, strict=True)
    )


_HARMLESS = frozenset(
    {
        # accelerate: devices alone.
        "AlignDevicesHook",
        "CpuOffload",
        "UserCpuOffloadHook",
        # diffusers: devices alone, and shards of one computation.
        "ContextParallelGatherHook",
        "ContextParallelSplitHook",
        "GroupOffloadingHook",
        "LayerExecutionTrackerHook",
        "LazyPrefetchGroupOffloadingHook",
    }
)
"""Hooks of accelerate and diffusers that leave numbers as they are."""
_FRAMEWORKS = ("omnireuse.", "accelerate.", "diffusers.hooks.", "torch.distributed.")
"""Modules whose functions are not named: what accelerate and diffusers do there is named by the classes of their
hooks."""


class ForwardHooks:
    """Forward hooks, replaced forwards, and hooks of accelerate and diffusers, on some modules and all that is inside.

    Args:
        parts: the modules by name, held weakly. Modules that are added later need another object of this class.
    """

    def __init__(self, parts: Mapping[str, torch.nn.Module]) -> None:
        inside = [
            (f"{part}.{path}" if path else part, module)
            for part, whole in parts.items()
            for path, module in whole.named_modules()
            if type(module).forward is not torch.nn.Module.forward  # containers compute nothing
        ]
        self._modules = [weakref.ref(module) for _, module in inside]
        self._paths = [path for path, _ in inside]
        self._kinds: dict[Any, str] = {type(module): path for path, module in reversed(inside)}

    def names(self) -> tuple[str, ...]:
        """The names of those that may change numbers, each with where it is.

        Cost: 0.2 µs for each module, and some µs for each that has any.
        """
        places: dict[str, list[str]] = defaultdict(list)
        for name in _named(
            [*everywhere._global_forward_hooks.values(), *everywhere._global_forward_pre_hooks.values()]
        ):
            places[name].append("every module")
        for kind, path in self._kinds.items():
            for name in _of_class(kind, kind.forward):
                places[name].append(f"each {kind.__name__}, as {path}")
        modules: list[Any] = [find() for find in self._modules]
        for number, module in enumerate(modules):
            if module is None:
                continue
            own = module.__dict__
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
                for name in dict.fromkeys(_of_module(module)):
                    places[name].append(self._paths[number])
        return tuple(
            f"{name} on {those[0] if len(those) == 1 else f'{len(those)} modules'}"
            for name, those in sorted(places.items())
        )


def _of_module(module: torch.nn.Module) -> Iterator[str]:
    own = vars(module)
    yield from _named((*module._forward_hooks.values(), *module._forward_pre_hooks.values()))
    of_accelerate: Any = own.get("_hf_hook")
    hooks = list(getattr(of_accelerate, "hooks", [] if of_accelerate is None else [of_accelerate]))
    hooks += getattr(own.get("_diffusers_hook"), "hooks", {}).values()
    yield from (kind for hook in hooks if (kind := type(hook).__name__) not in _HARMLESS)
    if "forward" in own and not is_optimized(module):
        yield from (f"forward {name}" for name in _named(_around(own["forward"], type(module))))


def _around(forward: Any, kind: type[torch.nn.Module]) -> Iterator[Callable[..., Any]]:
    """The functions that stand around the forward of the class, the outermost first."""
    while forward is not None and getattr(forward, "__func__", None) is not kind.forward:
        yield forward
        forward = getattr(forward, "__wrapped__", None)


@lru_cache(maxsize=512)
def _of_class(kind: type, forward: Callable[..., Any]) -> tuple[str, ...]:
    """The name of a forward that the class does not define itself."""
    definer = next(each for each in kind.__mro__ if "forward" in vars(each))
    is_own = getattr(forward, "__module__", None) == definer.__module__
    return () if is_own else tuple(f"forward {name}" for name in _named([forward]))


def _named(functions: Iterable[Callable[..., Any]]) -> Iterator[str]:
    for each in functions:
        function: Any = each.func if isinstance(each, functools.partial) else each
        if not f"{getattr(function, '__module__', '')}.".startswith(_FRAMEWORKS):
            yield str(getattr(function, "__qualname__", type(function).__name__)).replace(".<locals>", "")
