"""The `cache-dit` library as a region: it decides and reuses, while runs and counting stay here.

By itself the library patches the class of a pipeline, tells branches by the parity of calls, and must be told step
counts. Here it is attached to each denoiser alone, and every branch of every run has a context of its own. So pipelines
of one class do not interfere, three branches or a guidance interval work, and nobody has to call `refresh`.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Sequence
from dataclasses import fields
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from omnireuse import messages
from omnireuse.errors import ConfigError, MissingExtraError, StateError, UnsupportedModelError
from omnireuse.hooks.denoisers import unwrapped
from omnireuse.hooks.interception import MethodCall
from omnireuse.hooks.run import DenoiserCall, Region, RegionFactory
from omnireuse.loop.events import Decision
from omnireuse.named.options import CacheDiTOptions, DBCacheOptions, DiffusionCacheConfig
from omnireuse.policies import scm_mask

__all__ = ["cache_dit_library", "cache_dit_region"]

logger = logging.getLogger("omnireuse")
_ABSENT = object()
_OF_OTHERS = ("enable_taylorseer", "taylorseer_order", "scm_steps_mask_policy", "scm_steps_policy")
_TAKEN = [each.name for each in (*fields(DBCacheOptions), *fields(CacheDiTOptions)) if each.name not in _OF_OTHERS]
"""Options that the library's `DBCacheConfig` takes under the same name."""


def cache_dit_library() -> Any:
    """The library.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import cache_dit
    except ImportError as error:
        raise MissingExtraError("the cache backend 'cache_dit'", "cache-dit") from error
    return cache_dit


def cache_dit_region(config: DiffusionCacheConfig, group: dist.ProcessGroup | None) -> RegionFactory:
    """Build the region in which the library does the work.

    Raises:
        MissingExtraError: the library is not installed.
        ConfigError: several ranks must agree.
    """
    cache_dit_library()
    if group is not None:
        raise ConfigError(messages.GROUP_OF_CACHE_DIT)
    return lambda _strategy, denoisers, _owner: _CacheDiTRegion(config, denoisers)


class _CacheDiTRegion(Region):
    """The library decides once for each call of a denoiser."""

    def __init__(self, config: DiffusionCacheConfig, denoisers: Sequence[torch.nn.Module]) -> None:
        self._config = config
        self._contexts: dict[tuple[int, str], Any] = {}
        """The library's state of one run, by denoiser and branch."""
        self._attached: list[_Attached] = []
        try:
            for denoiser in denoisers:
                self._attached.append(_Attached(denoiser, config))
        except BaseException:
            self.undo()
            raise

    def for_run(self) -> _CacheDiTRegion:
        own = copy.copy(self)
        own._contexts = {}
        return own

    def call(self, call: DenoiserCall) -> Any:
        """The output, computed or not."""
        attached, run, key = self._attached[call.denoiser], call.run, (call.denoiser, call.branch)
        started = perf_counter()
        contexts = self._contexts
        if key not in contexts:
            contexts[key] = attached.contexts(_options(self._config, run.generation.total))
        took = perf_counter() - started
        result, contexts[key], reused, drift = attached.call(contexts[key], call)
        decision = Decision(
            run=run.generation.number,
            step=run.generation.index,
            total=run.generation.total,
            branch=call.branch,
            reused=reused,
            reason="cache-dit",
            sigma=run.generation.level.sigma,
            drift=drift,
            error=None,
            host_seconds=took,
        )
        for hook in run.generation.hooks.all:
            hook(decision)
        return result

    def undo(self) -> None:
        """Take the library off the denoisers."""
        for attached in self._attached:
            attached.undo()


def _options(config: DiffusionCacheConfig, total: int | None) -> dict[str, Any]:
    """The arguments of a context for a run of `total` steps."""
    library = cache_dit_library()
    mask = None
    if config.scm_steps_mask_policy is not None:
        if total is None:
            raise StateError(messages.MASK_WITHOUT_STEPS)
        mask = list(scm_mask(config.scm_steps_mask_policy, total))
    forecast = library.TaylorSeerCalibratorConfig(taylorseer_order=config.taylorseer_order)
    return {
        "cache_config": library.DBCacheConfig(
            **{name: getattr(config, name) for name in _TAKEN},
            enable_separate_cfg=False,
            num_inference_steps=total,
            steps_computation_mask=mask,
            steps_computation_policy=config.scm_steps_policy,
        ),
        "calibrator_config": forecast if config.enable_taylorseer else None,
    }


class _Attached:
    """The library on one denoiser.

    Its context manager is emptied after every call, so a call that belongs to no run finds none and computes.
    """

    def __init__(self, wrapped: torch.nn.Module, config: DiffusionCacheConfig) -> None:
        library, denoiser = cache_dit_library(), unwrapped(wrapped)
        name = type(denoiser).__name__
        if getattr(denoiser, "_is_cached", False):
            raise StateError(f"cache-dit is already enabled on this {name}; call cache_dit.disable_cache on it first")
        if not library.BlockAdapterRegister.is_supported(denoiser):
            raise UnsupportedModelError(f"cache-dit does not know {name}; 'db_cache' may")
        adapter = library.BlockAdapterRegister.get_adapter(denoiser, skip_post_init=True)
        kept = config.Fn_compute_blocks + config.Bn_compute_blocks
        for blocks in library.BlockAdapter.flatten([adapter.blocks]):
            if kept > len(blocks):
                given = {each: f"{getattr(config, each)}" for each in ("Fn_compute_blocks", "Bn_compute_blocks")}
                most = f"the {len(blocks)} blocks of each block list of {name}, which cache-dit takes one by one"
                raise ConfigError.of_fields("DiffusionCacheConfig", given, f"be at most {most}", f"{kept}")
        with _Changes(denoiser) as self._changes:
            library.enable_cache(denoiser, cache_config=library.DBCacheConfig(enable_separate_cfg=False))
        marked: Any = denoiser
        self._manager = marked._context_manager
        self._names: list[str] = list(marked._context_names)
        self._one_at_a_time = threading.Lock()
        # Contexts are handed over call by call; a manager that keeps them would make its own outside of runs.
        self._manager._persistent_context = False
        self._manager.clear_contexts()

    def contexts(self, options: dict[str, Any]) -> dict[str, Any]:
        """A fresh context for each block list."""
        return {name: self._manager.new_context(name=name, **copy.deepcopy(options)) for name in self._names}

    def call(self, contexts: dict[str, Any], call: MethodCall) -> tuple[Any, dict[str, Any], bool, float | None]:
        """The output, the contexts from now on, whether every block list was reused, and the largest drift measured."""
        before = {name: context.get_accumulated_cached_steps() for name, context in contexts.items()}
        # The library swaps the block lists of the denoiser itself, so calls from several threads take turns.
        with self._one_at_a_time:
            self._manager._cached_context_manager.update(contexts)
            try:
                result = call.make()
                # A forced refresh has put new ones in their place.
                contexts = {name: self._manager.get_context(name) for name in self._names}
            finally:
                self._manager._cached_context_manager.clear()
                self._manager._current_context = None
        reused = all(context.get_accumulated_cached_steps() > before[name] for name, context in contexts.items())
        drifts = [context.get_residual_diffs().get(str(context.get_current_step())) for context in contexts.values()]
        # Negative figures are the library's marks for "not measured".
        drift = max((each for each in drifts if each is not None and each >= 0), default=None)
        return result, contexts, reused, drift

    def undo(self) -> None:
        """Take the library off."""
        self._manager.clear_contexts()
        self._changes.undo()


class _Changes:
    """The changes to the attributes of a module and its submodules while it is entered; `undo` takes them back."""

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = root
        self._order = list(root._modules)
        self._before = [(module, dict(vars(module))) for module in root.modules()]
        self._done: list[tuple[torch.nn.Module, str, Any, Any]] = []

    def __enter__(self) -> _Changes:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for module, before in self._before:
            for name, value in vars(module).items():
                old = before.get(name, _ABSENT)
                if value is not old:
                    self._done.append((module, name, old, value))
        self._before.clear()
        if error is not None:
            self.undo()

    def undo(self) -> None:
        """Restore every attribute that nobody else has changed since."""
        for module, name, old, value in self._done:
            if vars(module).get(name) is not value:
                logger.warning("%s.%s was replaced while cache-dit was on and is left", type(module).__name__, name)
            elif old is _ABSENT:
                del vars(module)[name]
            else:
                vars(module)[name] = old
        self._done.clear()
        # The library takes the block lists out and puts them back in every call, which moves them to the end.
        modules = self._root._modules
        for name in (*self._order, *(name for name in list(modules) if name not in self._order)):
            if name in modules:
                modules[name] = modules.pop(name)
