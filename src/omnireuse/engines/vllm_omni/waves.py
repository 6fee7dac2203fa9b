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
from omnireuse.loop.batch import Row, observe_batch, predict_batch
from omnireuse.loop.events import Choice
from omnireuse.loop.generation import layout_of

__all__ = ["Waves"]


@dataclass(eq=False)
class _Entry:
    """One request of a wave.

    Attributes:
        state: the engine's.
        request: its reuse state.
        choice: the decision at this step; None for a request without reuse, which computes.
        output: its scheduler's input.
    """

    state: Any
    request: RequestReuse
    choice: Choice | None = None
    output: torch.Tensor | None = None

    @property
    def reuses(self) -> bool:
        return self.choice is not None and self.choice.reuse

    def row(self) -> Row:
        assert self.request.generation is not None, "only requests with reuse have rows"
        assert self.choice is not None, "and they have chosen"
        return Row(
            generation=self.request.generation, choice=self.choice, sample=self.state.latents, output=self.output
        )


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
        computing = [entry for entry in entries if not entry.reuses]
        whole = input_batch if len(computing) == len(entries) else None
        if computing and not self._compute(computing, whole, kwargs):
            return None
        # Nothing of any request has changed up to here: a step that raises leaves all of them as they were.
        reusing = [entry for entry in entries if entry.reuses]
        if failed := self._served(predict_batch, reusing):
            for entry in computing:  # a graph of the device may write over its last output
                entry.output = None if entry.output is None else entry.output.clone()
            try:
                is_computed = self._compute(failed, None, kwargs)
            except BaseException as error:
                for entry in reusing:
                    if entry not in failed:  # its forecast is made, and the step is not
                        self._give_up(entry, "the computation of another request", error)
                raise
            if not is_computed:
                return None
        self._served(observe_batch, [entry for entry in computing if entry.choice is not None])
        self._count(entries)
        outputs = torch.cat([entry.output for entry in entries if entry.output is not None])
        self._after()
        return outputs

    def _entry(self, state: Any) -> _Entry:
        kept: RequestReuse | None = state.extra.get(KEY)
        request = RequestReuse(name=getattr(state, "request_id", None)) if kept is None else kept
        entry = _Entry(state, request)
        try:
            if kept is None:
                state.extra[KEY] = request
                request.plan = self._plan(state)
            if kept is None or not request.is_at(state.chunk_index, state.step_index):
                request.chunk = state.chunk_index
                request.start(state.scheduler, state.total_steps, at=state.step_index)
            if request.generation is not None:
                latents = state.latents
                entry.choice = request.generation.decide(layout=layout_of(latents), signal=latents)
        except Exception as error:  # of this request alone
            self._give_up(entry, "the decision on a step", error)
        return entry

    def _give_up(self, entry: _Entry, doing: str, error: BaseException) -> None:
        """Compute every further step of a request. Ranks that share a forward pass must fail alike, or the engine ends
        them: the error of one rank alone cannot be told to the others in the middle of a step."""
        entry.request.give_up(doing, error)
        entry.choice = None
        self.failures += 1

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

    def _served(
        self, fused: Callable[[list[Row]], Sequence[torch.Tensor | None]], entries: Sequence[_Entry]
    ) -> list[_Entry]:
        """Run a fused operation; return the requests that it failed for, whose outputs stay as they were."""
        rows, failed = [entry.row() for entry in entries], []
        for entry, row, output in zip(entries, rows, fused(rows), strict=True):
            if row.generation.failure:
                entry.request.end()
                entry.choice = None
                self.failures += 1
                failed.append(entry)
            else:
                entry.output = output
        return failed

    def _count(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            request = entry.request
            request.computed += not entry.reuses
            request.reused += entry.reuses
            try:
                if request.plan.measured is not None:
                    request.plan.measured.note(entry.state, entry.output)
                if request.generation is not None:
                    request.generation.advance()
            except Exception as error:  # of this request alone
                self._give_up(entry, "the end of a step", error)
            # The one mapping of numbers that travels with a request to its response; `hooks` makes metrics of them.
            entry.state.stage_durations.update(request.figures())
