"""A strategy at work on one pipeline: it stands before scheduler and denoisers, and undoes itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.generation import Emit
from omnireuse.diffusion.reuse.runtime.gradients import refuse_gradients
from omnireuse.diffusion.reuse.runtime.interception import Interception, intercept, interceptors_of
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall, Region
from omnireuse.diffusion.reuse.runtime.runs import Runs
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import StateError, UnsupportedModelError

__all__ = ["DENOISERS", "Session", "denoisers_of", "previous_sample"]

logger = logging.getLogger("omnireuse")

DENOISERS = ("transformer", "transformer_2", "unconditional_transformer", "unet", "prior", "decoder")
"""Attributes of a pipeline that hold a denoiser."""

RegionFactory = Callable[[Strategy, Sequence[torch.nn.Module], object], Region]


def denoisers_of(pipeline: Any) -> list[torch.nn.Module]:
    """The pipeline's denoisers, in the order of `DENOISERS`.

    Raises:
        UnsupportedModelError: a pipeline without any.
    """
    found = [getattr(pipeline, name, None) for name in DENOISERS]
    denoisers = [module for module in found if isinstance(module, torch.nn.Module)]
    if not denoisers:
        raise UnsupportedModelError(
            f"{type(pipeline).__name__} has no denoiser: looked for a torch module at {', '.join(DENOISERS)}"
        )
    return denoisers


class _Here(threading.local):
    """What this thread is doing."""

    context: str | None = None
    """The cache context that the pipeline has entered."""


class Session:
    """One strategy on one pipeline, from construction until `close`.

    Args:
        pipeline: anything with a denoiser; a diffusers pipeline tells its steps through its scheduler.
        strategy: what to do.
        make_region: builds the region for the denoisers.
        emit: takes every decision.
        agreement: how ranks agree; alone by default.

    Raises:
        StateError: a pipeline that already has a session.
        UnsupportedModelError: a pipeline without a denoiser, or without a scheduler where the region forecasts what it
            is handed, or one whose parts cannot be intercepted.
    """

    def __init__(
        self,
        pipeline: Any,
        strategy: Strategy,
        make_region: RegionFactory,
        emit: Emit,
        agreement: Agreement | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.strategy = strategy
        self.runs = Runs(pipeline, strategy, agreement or Agreement(), emit)
        self.calls_outside = 0
        """Denoiser calls that belonged to no run and were passed on."""
        self._make_region = make_region
        self._here = _Here()
        self._region: Region | None = None
        self._denoisers: list[torch.nn.Module] = []
        self._scheduler: Any = None
        self._on_denoisers: list[Interception] = []
        self._on_scheduler: Interception | None = None
        self._on_pipeline: Interception | None = None
        for denoiser in denoisers_of(pipeline):
            if any(isinstance(owner, Session) and owner.pipeline is pipeline for owner in interceptors_of(denoiser)):
                raise StateError(
                    f"reuse is already enabled on this {type(pipeline).__name__}; call disable() on its handle first"
                )
        try:
            self._attach()
            if strategy.region == "step" and self._on_scheduler is None:
                raise UnsupportedModelError(
                    f"Strategy(region='step'): {type(pipeline).__name__}.scheduler must have set_timesteps and step, "
                    f"got {self._scheduler!r}; use region='call', which needs no scheduler"
                )
            if any("__call__" in vars(cls) for cls in type(pipeline).__mro__):
                self._on_pipeline = intercept(pipeline, self, {"__call__": self._pipeline_called})
        except BaseException:
            self.close()
            raise

    # -- coming and going -------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Stand before the pipeline's present denoisers and scheduler, which a user may have exchanged."""
        denoisers = denoisers_of(self.pipeline)
        if len(denoisers) != len(self._denoisers) or any(
            a is not b for a, b in zip(denoisers, self._denoisers, strict=True)
        ):
            self._detach_denoisers()
            self._denoisers = denoisers
            for index, denoiser in enumerate(denoisers):
                handlers: dict[str, Callable[..., Any]] = {"__call__": self._denoiser_handler(index, denoiser)}
                if hasattr(denoiser, "cache_context"):
                    handlers["cache_context"] = self._context_entered
                self._on_denoisers.append(intercept(denoiser, self, handlers))
            self._region = self._make_region(self.strategy, denoisers, self)
        scheduler = getattr(self.pipeline, "scheduler", None)
        if scheduler is not self._scheduler:
            if self._on_scheduler is not None:
                self._on_scheduler.undo()
                self._on_scheduler = None
            self._scheduler = scheduler
            if hasattr(scheduler, "set_timesteps") and hasattr(scheduler, "step"):
                handlers = {"set_timesteps": self._timesteps_set, "step": self._scheduler_stepped}
                self._on_scheduler = intercept(scheduler, self, handlers)

    def _detach_denoisers(self) -> None:
        if self._region is not None:
            self._region.undo()
            self._region = None
        for interception in self._on_denoisers:
            interception.undo()
        self._on_denoisers.clear()
        self._denoisers = []

    def close(self) -> None:
        """Restore every object and drop all state. Idempotent."""
        self.runs.close()
        self._here = _Here()
        self._detach_denoisers()
        for interception in (self._on_scheduler, self._on_pipeline):
            if interception is not None:
                interception.undo()
        self._on_scheduler = self._on_pipeline = self._scheduler = None

    # -- what the intercepted objects report ------------------------------------------------------------------------

    def _pipeline_called(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._attach()
        self.runs.watch()
        try:
            result = proceed(*args, **kwargs)
        finally:
            self.runs.end()
        if not self.runs.served:
            logger.warning(
                "%s finished without a run: its scheduler set no timesteps, or its denoiser was not called; "
                "nothing was reused",
                type(self.pipeline).__name__,
            )
        return result

    def _timesteps_set(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.runs.end()
        result = proceed(*args, **kwargs)
        self.runs.announce(self._scheduler)
        return result

    def _scheduler_stepped(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = self.runs.current
        if run is None:
            return proceed(*args, **kwargs)
        if run.calls == 0:
            # No denoiser was asked: the pipeline works on with what the step before has given (Cosmos 1.0).
            result = proceed(*args, **kwargs)
            run.latents = previous_sample(result)
            return result
        try:
            values = dict(zip(("model_output", "timestep", "sample"), args, strict=False)) | kwargs
            assert self._region is not None
            output = self._region.scheduler_step(run, values["model_output"], values["sample"])
            if args:
                args = (output, *args[1:])
            else:
                kwargs["model_output"] = output
            result = proceed(*args, **kwargs)
        except BaseException:
            self.runs.end()
            raise
        self.runs.advance(previous_sample(result))
        return result

    def _denoiser_handler(self, index: int, module: torch.nn.Module) -> Callable[..., Any]:
        def called(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            run = self.runs.enter(module, args, kwargs, by_timestep=self._on_scheduler is None)
            if run is None or self._region is None:
                self.calls_outside += 1
                return proceed(*args, **kwargs)
            order = run.order(index)
            branch = run.name_branch(index, self._here.context)
            if self.runs.stalls(run):
                return proceed(*args, **kwargs)
            call = DenoiserCall(
                run=run,
                module=module,
                denoiser=index,
                branch=branch,
                order=order,
                proceed=proceed,
                args=args,
                kwargs=kwargs,
            )
            try:
                refuse_gradients(call)
                return self._region.call(call)
            except BaseException:
                # Nothing half remembered may serve a later call.
                self.runs.end()
                raise

        return called

    @contextmanager
    def _context_entered(self, proceed: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        outer, self._here.context = self._here.context, name
        try:
            with proceed(name, *args, **kwargs) as entered:
                yield entered
        finally:
            self._here.context = outer


def previous_sample(result: Any) -> torch.Tensor | None:
    """The latents that a scheduler's step returned, in whatever form; None where there are none."""
    sample = getattr(result, "prev_sample", None)
    if sample is None and isinstance(result, (tuple, list)) and result:
        sample = result[0]
    return sample if isinstance(sample, torch.Tensor) else None
