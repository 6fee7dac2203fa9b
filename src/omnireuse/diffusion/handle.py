"""What a user holds of enabled reuse: see what it does, and end it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from omnireuse.diffusion.adapters.regions import make_region
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.events import Decision
from omnireuse.diffusion.reuse.present import summary_html
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.session import RegionFactory, Session, session_of
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Ledger, Promise, Summary
from omnireuse.errors import StateError

__all__ = ["Handle", "disable", "handle_of"]


class Handle:
    """Reuse at work on one pipeline. A context manager: leaving it disables.

    Args:
        pipeline: a pipeline with a denoiser.
        strategy: what to do.
        name: of the strategy, for the summary.
        region: builds the region; the strategy's own by default.
        agreement: how ranks agree; alone by default.
        promise: what a profile knows of the strategy's quality, for the summary.

    Raises:
        StateError: enabled already.
    """

    def __init__(
        self,
        pipeline: Any,
        strategy: Strategy,
        *,
        name: str,
        region: RegionFactory | None = None,
        agreement: Agreement | None = None,
        promise: Promise | None = None,
    ) -> None:
        if (present := handle_of(pipeline)) is not None:
            raise StateError(
                f"reuse is already enabled on this {type(pipeline).__name__} ({present.name}), so {name} cannot be "
                "enabled; call omnireuse.disable(pipeline) first"
            )
        self._name = name
        self._ledger = Ledger(name, promise)
        self._session = Session(pipeline, strategy, region or make_region, self._ledger.record, agreement)
        self._session.handle = self
        self._enabled = True
        self._pipeline = type(pipeline).__name__

    @property
    def name(self) -> str:
        """What the summary calls the strategy."""
        return self._name

    @property
    def strategy(self) -> Strategy:
        """The strategy at work."""
        return self._session.strategy

    @property
    def enabled(self) -> bool:
        """Whether `disable` was not yet called."""
        return self._enabled

    @property
    def events(self) -> tuple[Decision, ...]:
        """The latest decisions of this handle's runs, oldest first; at most 20,000."""
        return self._ledger.events

    def subscribe(self, observer: Callable[[Decision], None]) -> Callable[[], None]:
        """Call `observer` with every decision from now on; returns a function that ends it."""
        return self._ledger.subscribe(observer)

    def summary(self) -> Summary:
        """What reuse has done so far; readable through `str`, and in a notebook as it is."""
        return self._ledger.summary(
            kept_bytes=self._session.runs.peak_kept_bytes, calls_outside=self._session.calls_outside
        )

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop all state and announce the next run's step count, for engines without a diffusers scheduler; None where
        it is not known."""
        self._session.expect(num_inference_steps)

    def advance(self, latents: torch.Tensor | None = None) -> None:
        """Say that a step is over, in a loop that does not call its scheduler's `step` (rollouts with a step of their
        own).

        Regions "call", "blocks" and "tail" reuse in such a loop; region "step" computes everything, because its
        forecast goes through the scheduler.

        Args:
            latents: what the next step starts from, for quantity "x0" on models that are fed more channels than
                latents.

        Raises:
            StateError: no run is under way.
        """
        self._session.runs.advance(latents)

    def disable(self) -> None:
        """Restore the pipeline exactly and drop all state. Idempotent."""
        self._session.close()
        self._enabled = False

    def __repr__(self) -> str:
        return f"<Handle on {self._pipeline}{'' if self._enabled else ' (disabled)'}: {self.summary()!r}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        summary = self.summary()
        state = "enabled" if self._enabled else "disabled"
        return summary_html(summary, f"{summary.name} on {self._pipeline}, {state}")

    def __enter__(self) -> Handle:
        """The handle itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disable, whatever happened."""
        self.disable()


def handle_of(pipeline: Any) -> Handle | None:
    """The handle of the reuse that is enabled on this pipeline; None where none is."""
    session = session_of(pipeline)
    handle: Handle | None = None if session is None else session.handle
    return handle


def disable(pipeline: Any) -> None:
    """End reuse on this pipeline and restore it exactly. Nothing happens where none is enabled.

    Raises:
        UnsupportedModelError: something else than a pipeline with a denoiser.
    """
    handle = handle_of(pipeline)
    if handle is None:
        denoisers_of(pipeline)
    else:
        handle.disable()
