"""What others have put around the forwards of a denoiser, by name, unless it leaves numbers as they are."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch.nn.modules import module as everywhere

from omnireuse.hooks.interception import is_optimized

__all__ = ["Hooks"]

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


class Hooks:
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
        modules: list[Any] = [reference() for reference in self._modules]
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
