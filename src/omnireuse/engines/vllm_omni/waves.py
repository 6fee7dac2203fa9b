"""Continuous batching: each request of a wave computes or is forecast, as its own state says.

vllm-omni runs one denoising step of all running requests in a wave. Requests that compute go through the transformer in
one smaller batch; the others are forecast in one fused operation; the results are put back in the wave's order.

A wave that raises fails every request in it. So nothing that belongs to one request may raise here: that request
computes every further step, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.engines.request import RequestReuse
from omnireuse.engines.settings import KEY, RequestPlan

__all__ = ["Waves"]


@dataclass(eq=False)
class _Entry:
    """One request of a wave.

    Attributes:
        state: the engine's.
        request: its reuse state.
        failures: of the request before this step.
        computes: whether it computes this step.
        output: its scheduler's input.
    """

    state: Any
    request: RequestReuse
    failures: int
    computes: bool = True
    output: torch.Tensor | None = None

    def use(self) -> bool:
        """Turn what was computed, or nothing, into the scheduler's input; False if nothing can stand in."""
        self.output = self.request.use(self.output, self.state.latents)
        return self.output is not None


class Waves:
    """Stands before a pipeline's `denoise_step`.

    Args:
        denoise: the pipeline's own `denoise_step(input_batch, *, states, **kwargs)`.
        sub_batch: makes the input batch of some of the wave's requests.
        plan: of a request.
        after: is called after each wave that has computed or forecast its outputs.
    """

    def __init__(
        self,
        denoise: Callable[..., Any],
        sub_batch: Callable[[list[Any]], Any],
        plan: Callable[[Any], RequestPlan],
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._denoise, self._sub_batch, self._plan, self._after = denoise, sub_batch, plan, after
        self.failures = 0
        """Requests that went on without reuse because something of theirs failed."""

    def denoise_step(self, input_batch: Any, *, states: Sequence[Any] | None = None, **kwargs: Any) -> Any:
        """One denoising step of a wave.

        Args:
            states: the engine's state of each, in order; `latents` have shape (rows, …).

        Returns:
            The outputs of all rows, in the order of the states; None if the pipeline was interrupted.
        """
        if not states:
            return self._denoise(input_batch, states=states, **kwargs)
        entries = [self._entry(state) for state in states]
        try:
            return self._step(entries, input_batch, kwargs)
        finally:
            # Ranks that share a forward pass must fail alike, or the engine ends them: the error of one rank alone
            # cannot be told to the others in the middle of a step.
            self.failures += sum(entry.request.failures - entry.failures for entry in entries)

    def _step(self, entries: Sequence[_Entry], input_batch: Any, kwargs: dict[str, Any]) -> Any:
        computing = [entry for entry in entries if entry.computes]
        whole = input_batch if len(computing) == len(entries) else None
        if computing and not self._compute(computing, whole, kwargs):
            return None
        # Nothing of any request has changed up to here: a step that raises leaves all of them as they were.
        reusing = [entry for entry in entries if not entry.computes]
        if failed := [entry for entry in reusing if not entry.use()]:
            for entry in computing:  # a graph of the device may write over its last output
                entry.output = None if entry.output is None else entry.output.clone()
            try:
                is_computed = self._compute(failed, None, kwargs)
            except BaseException as error:
                for entry in reusing:
                    if entry not in failed:  # its forecast is made, and the step is not
                        entry.request.reused -= 1
                        entry.request.give_up("the computation of another request", error)
                raise
            if not is_computed:
                return None
        for entry in (*computing, *failed):
            entry.use()
        for entry in entries:
            self._note(entry)
        outputs = torch.cat([entry.output for entry in entries if entry.output is not None])
        self._after()
        return outputs

    def _entry(self, state: Any) -> _Entry:
        kept: RequestReuse | None = state.extra.get(KEY)
        request = RequestReuse(name=getattr(state, "request_id", None)) if kept is None else kept
        entry = _Entry(state, request, request.failures)
        try:
            if kept is None:
                state.extra[KEY] = request
                request.plan = self._plan(state)
            if kept is None or not request.is_at(state.chunk_index, state.step_index):
                request.chunk = state.chunk_index
                request.start(state.scheduler, state.total_steps, at=state.step_index)
            entry.computes = request.computes(state.step_index, state.latents)
        except Exception as error:  # of this request alone
            request.give_up("the decision on a step", error)
        return entry

    def _note(self, entry: _Entry) -> None:
        request, state = entry.request, entry.state
        try:
            if request.plan.measured is not None:
                request.plan.measured.note(state, entry.output)
        except Exception as error:  # of this request alone
            request.give_up("the end of a step", error)
        # The one mapping of numbers that travels with a request to its response; `hooks` makes metrics of them.
        state.stage_durations.update(request.figures())

    def _compute(self, entries: Sequence[_Entry], batch: Any, kwargs: dict[str, Any]) -> bool:
        """Compute the outputs of some requests; False if the pipeline was interrupted."""
        states = [entry.state for entry in entries]
        output = self._denoise(self._sub_batch(states) if batch is None else batch, states=states, **kwargs)
        if output is None:
            return False
        rows = [state.latents.shape[0] for state in states]
        for entry, part in zip(entries, output.split(rows), strict=True):
            entry.output = part
        return True
