"""Region `step`: all calls of a step are skipped, and the scheduler's input is forecast.

The forecast is made after guidance, so one history serves all branches and its error is the error that matters. On a
reused step the denoiser's calls return their last outputs: the pipeline's guidance arithmetic runs on them, and its
result is replaced before the scheduler sees it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Mapping
from itertools import compress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.regions.cuts import Cuts
from omnireuse.hooks.regions.rows import flattened, unflattened, with_rows
from omnireuse.hooks.run import DenoiserCall, Layout, Region, Run
from omnireuse.loop.events import Choice
from omnireuse.loop.strategy import Strategy

__all__ = ["SeveralOutputsError", "StepRegion", "kinds_of"]

logger = logging.getLogger("omnireuse")


class SeveralOutputsError(UnsupportedModelError):
    """A denoiser that returns several kinds of latents, of which the scheduler is given one."""


class StepRegion(Region):
    """One decision a step for each sample, or for the batch, taken at the step's first call of a denoiser.

    Args:
        cuts: knows which calls can be computed for some samples.
    """

    def __init__(self, strategy: Strategy, cuts: Cuts) -> None:
        self._strategy, self._cuts = strategy, cuts
        self._first_call: DenoiserCall | None = None
        """Of the step; None between steps."""
        self._choices: list[Choice] = []
        """Of the step: one a sample or one for the batch; none if that must wait for the scheduler."""
        self._placeholders: dict[Hashable, tuple[Layout, Any]] = {}
        """The last computed output of each denoiser, branch and form, with the layout of its call: returned if only
        its shape matters."""
        self._branches_when_computed: dict[int | None, Counter[tuple[int, str]]] = {}
        """The calls of each sample's last computed step, by branch: guidance that begins or ends changes them."""
        self._shape: torch.Size | None = None
        """Of the scheduler's latents, a row for each sample; None before the scheduler was called."""
        self._layouts: dict[Layout, Layout] = {}
        """Layouts of the calls so far, with one of them to stand for all. A step may begin with a call of its own, as
        the first one of WanAnimate2 does, which reads the driving video."""

    def for_run(self) -> StepRegion:
        return StepRegion(self._strategy, self._cuts)

    def call(self, call: DenoiserCall) -> Any:
        """The computed output; for reused samples the last one, whose values are not used."""
        if call.run.calls == 1:
            self._first_call, self._choices = call, self._decide(call)
        key = (call.denoiser, call.branch, call.options)
        reused = [choice.sample for choice in self._choices if choice.reuse]
        layout, last = self._placeholders.get(key, (None, None))
        if reused and layout != call.layout:
            # The last computed step did not have this call, and only computing it shows the form of its output.
            step = call.run.generation.index
            logger.info("step %d: branch %s is new and is computed although the step is reused", step, call.branch)
            reused = []
        if reused and len(reused) == len(self._choices):
            return last
        output = self._compute_without(call, reused, last) if reused else call.compute()
        if (kinds := kinds_of(call, output)) > 1:
            raise SeveralOutputsError(
                f"Strategy(region='step'): {call.model} must return one kind of latents, got {kinds}, "
                f"of which the scheduler is given one; use region='call', which forecasts all of them, or 'blocks'"
            )
        if self._layouts and key not in self._placeholders:
            self._layouts.setdefault(call.layout, next(iter(self._layouts.values())))
        self._placeholders[key] = call.layout, output
        return output

    def _decide(self, call: DenoiserCall) -> list[Choice]:
        by_sample = self._strategy.decides_by_sample
        if by_sample and self._shape is None:
            # Guidance may have stacked its branches in one call: only the scheduler's call shows how many samples there
            # are. The first step is computed, so it can wait for that.
            return []
        count = self._samples
        divided = by_sample and count > 1 and self._may_divide(call)
        if not divided:
            for choice in self._choices:
                if choice.sample is not None:
                    call.run.generation.forget(choice)
        # Another expert forecasts another sample: outputs of the one before it are of another kind.
        layout = call.layout
        if layout not in self._layouts:
            self._layouts = {layout: layout}
        signal = None if self._strategy.chosen_signal == "none" else call.watched(self._strategy)
        choices = []
        for sample in range(count) if divided else [None]:
            own = signal if signal is None or sample is None else signal[sample::count]
            choices.append(call.run.generation.decide("step", sample=sample, layout=self._layouts[layout], signal=own))
        return choices

    @property
    def _samples(self) -> int:
        """Samples of the batch; 1 before the scheduler was called."""
        return 1 if self._shape is None else self._shape[0]

    def _may_divide(self, call: DenoiserCall) -> bool:
        """True if the rows of a call are the samples in their order, once for each branch that it was stacked for, and
        it may be cut.

        Each branch has the same latents then, but for what is joined to them.
        """
        count = self._samples
        if count < call.batch and call.batch % count == 0:
            latents, shape = call.latents[0], self._shape or ()
            for dimension, length in enumerate(shape[1:], start=1) if latents.ndim == len(shape) else ():
                latents = latents.narrow(dimension, 0, min(length, latents.shape[dimension]))
            branches = latents.unflatten(0, (-1, count))
            if not torch.equal(branches, branches[:1].expand_as(branches)):
                self._cuts.refuse(call, "its input is not the latents of the samples once for each branch")
        return self._cuts.allows(call, count)

    def _compute_without(self, call: DenoiserCall, reused: list[int | None], last: Any) -> Any:
        samples, first = self._samples, self._first_call
        rows = [row for row in range(call.batch) if row % samples not in reused]
        result, is_whole = self._cuts.compute(call, rows) if self._may_divide(call) else (call.compute(), True)
        if is_whole:
            if first is not None and not self._cuts.allows(call, samples):
                # The samples of a step are decided on at its first call.
                self._cuts.refuse_like(first, call)
            return result
        before, form = flattened(last, call.batch)
        computed, _ = flattened(result, len(rows))
        pairs = zip(before, computed, strict=True)
        whole = [with_rows(old, rows, new) if isinstance(old, torch.Tensor) else new for old, new in pairs]
        return unflattened(whole, form)

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """For reused samples the forecast; computed ones are remembered and used, corrected or as they are."""
        call, self._first_call, choices = self._first_call, None, self._choices
        assert call is not None, "a step begins with a call"
        if self._shape != sample.shape and self._strategy.decides_by_sample:
            self._shape = sample.shape
            choices = self._choices = self._decide(call)
        generation, branches = run.generation, run.branches
        # Guidance that begins or ends changes the output: remembered values are of another kind then.
        known = self._branches_when_computed
        is_other = [known.get(choice.sample, branches) != branches for choice in choices]
        for choice in compress(choices, is_other):
            if not choice.reuse:
                generation.forget(choice)
        used = [generation.carry_out(choice, output, sample) for choice in choices]
        for choice in compress(choices, is_other):
            if choice.reuse:
                generation.forget(choice)
        known |= {choice.sample: branches.copy() for choice in choices if not choice.reuse}
        return used[0] if len(used) == 1 else torch.cat(used)


def kinds_of(call: DenoiserCall, output: Any) -> int:
    """The number of kinds of latents in a call's output."""
    # Entries with tensors: one may be a list of one tensor an image. What was handed in, such as a cache of keys and
    # values, is no output.
    entries = tuple(output.values()) if isinstance(output, Mapping) else output
    if not isinstance(entries, tuple):
        return 1
    given = {id(leaf) for leaf in pytree.tree_leaves((call.args, call.kwargs))}
    leaves = [pytree.tree_leaves(entry) for entry in entries]
    return sum(any(isinstance(leaf, torch.Tensor) and id(leaf) not in given for leaf in each) for each in leaves)
