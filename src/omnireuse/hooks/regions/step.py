"""Region `step`: all calls of a step are skipped, and the scheduler's input is forecast.

The forecast is made after guidance, so one history serves all branches and its error is the error that matters. On a
reused step the denoiser's calls return their last outputs: the pipeline's guidance arithmetic runs on them, and its
result is replaced before the scheduler sees it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.regions.cuts import Cuts
from omnireuse.hooks.run import DenoiserCall, Layout, Region, Run
from omnireuse.loop.stepper import Stepper

__all__ = ["SeveralOutputsError", "StepRegion", "kinds_of"]

logger = logging.getLogger("omnireuse")


class SeveralOutputsError(UnsupportedModelError):
    """A denoiser that returns several kinds of latents, of which the scheduler is given one."""


class StepRegion(Region):
    """Asks a stepper at the step's first call of a denoiser, and gives the scheduler what it uses.

    Args:
        cuts: knows which calls can be computed for some samples.
        stepper: of every run; None for the generation of each. The events of a run that has another one say that it is
            measured.
        inner: makes the calls, computes every one, and tells events of its own; None for the denoisers.
    """

    def __init__(self, cuts: Cuts | None = None, stepper: Stepper | None = None, inner: Region | None = None) -> None:
        self._cuts, self.stepper, self._inner = cuts or Cuts({}), stepper, inner
        self._first_call: DenoiserCall | None = None
        """Of the step; None between steps."""
        self._computes = True
        """The stepper's answer for the step."""
        self._placeholders: dict[Hashable, tuple[Layout, Any]] = {}
        """The last computed output of each denoiser, branch and form, with the layout of its call: returned if only
        its shape matters."""
        self._branches: Counter[tuple[int, str]] | None = None
        """The calls of the step before, by branch: guidance that begins or ends changes them."""
        self._shape: torch.Size | None = None
        """Of the scheduler's latents, a row for each sample; None before the scheduler was called."""
        self._layouts: dict[Layout, Layout] = {}
        """Layouts of the calls so far, with one of them to stand for all. A step may begin with a call of its own, as
        the first one of WanAnimate2 does, which reads the driving video."""

    def for_run(self) -> StepRegion:
        return StepRegion(self._cuts) if self.stepper is None else self

    def call(self, call: DenoiserCall) -> Any:
        """The computed output; for reused samples the last one, whose values are not used."""
        stepper = self.stepper or call.run.generation
        if call.run.calls == 1:
            self._first_call, self._computes = call, self._ask(call)
        key = (call.denoiser, call.branch, call.options)
        if self._layouts and key not in self._placeholders:
            self._layouts.setdefault(call.layout, next(iter(self._layouts.values())))
        layout, last = self._placeholders.get(key, (None, None))
        is_left_out = not self._computes or bool(stepper.reused_samples)
        if is_left_out and layout != call.layout:
            last = stepper.known(call.run.calls - 1, next((each.device for each in call.tensors), None))
            if last is None:
                # The last computed step did not have this call, and only computing it shows the form of its output.
                step = call.run.step
                logger.info("step %d: branch %s is new and is computed although the step is reused", step, call.branch)
                is_left_out = False
            else:
                self._placeholders[key] = call.layout, last
        if is_left_out and not self._computes:
            return last
        output = self._compute_without(call, stepper.reused_samples, last) if is_left_out else self._compute(call)
        kinds = kinds_of(call, output)
        if self.stepper is not None:
            self.stepper.see(call.denoiser, output, kinds)
        elif kinds > 1:
            raise SeveralOutputsError(
                f"Strategy(region='step'): {call.model} must return one kind of latents, got {kinds}, "
                f"of which the scheduler is given one; use region='call', which forecasts all of them, or 'blocks'"
            )
        self._placeholders[key] = call.layout, output
        return output

    def _compute(self, call: DenoiserCall) -> Any:
        return call.compute() if self._inner is None else self._inner.call(call)

    def _ask(self, call: DenoiserCall) -> bool:
        """Whether the step is computed, for some samples at least."""
        run, generation, strategy = call.run, call.run.generation, call.run.generation.strategy
        if self.stepper is None and strategy.decides_by_sample:
            if self._shape is None:
                # Guidance may have stacked its branches in one call: only the scheduler's call shows how many samples
                # there are. The first step is computed, so it can wait for that.
                return True
            samples = self._shape[0] if self._shape[0] > 1 and self._may_divide(call, self._shape) else 1
            if samples != generation.samples:
                generation.finish()
                generation.samples = samples
        # Another expert forecasts another sample: outputs of the one before it are of another kind.
        layout = call.layout
        if layout not in self._layouts:
            self._layouts = {layout: layout}
        signal = None if strategy.chosen_signal == "none" else call.watched(strategy)
        return (self.stepper or generation).computes(run.step, signal, kind=self._layouts[layout])

    def _may_divide(self, call: DenoiserCall, shape: torch.Size) -> bool:
        """True if the rows of a call are the samples in their order, once for each branch that it was stacked for, and
        it may be cut.

        Each branch has the same latents then, but for what is joined to them.
        """
        samples = shape[0]
        if samples < call.batch and call.batch % samples == 0:
            latents = call.latents[0]
            for dimension, length in enumerate(shape[1:], start=1) if latents.ndim == len(shape) else ():
                latents = latents.narrow(dimension, 0, min(length, latents.shape[dimension]))
            branches = latents.unflatten(0, (-1, samples))
            if not torch.equal(branches, branches[:1].expand_as(branches)):
                self._cuts.refuse(call, "its input is not the latents of the samples once for each branch")
        return self._cuts.allows(call, samples)

    def _compute_without(self, call: DenoiserCall, reused: Sequence[int | None], last: Any) -> Any:
        shape, first = self._shape, self._first_call
        assert shape is not None, "samples are known"
        if self._may_divide(call, shape):
            rows = [row for row in range(call.batch) if row % shape[0] not in reused]
            output = self._cuts.compute(call, rows, last)
        else:
            output = call.compute()
        if first is not None and not self._cuts.allows(call, shape[0]):
            # The samples of a step are decided on at its first call.
            self._cuts.refuse_like(first, call)
        return output

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """What the stepper uses: for reused samples forecasts, computed ones corrected or as they are."""
        call, self._first_call = self._first_call, None
        assert call is not None, "a step begins with a call"
        generation = run.generation
        if self.stepper is None and generation.strategy.decides_by_sample and self._shape != sample.shape:
            self._shape = sample.shape
            self._computes = self._ask(call)
        if self._branches != run.branches:
            # Guidance that begins or ends changes the output: remembered values are of another kind then.
            generation.is_of_new_kind = self._branches is not None
            self._branches = run.branches.copy()
        if self.stepper is not None and self._inner is None:
            generation.pass_by(replace(generation.decide(), reason="measuring"))
        used = (self.stepper or generation).use(output if self._computes else None, sample, run.given)
        assert used is not None, "the loop of a pipeline always goes on"
        return used

    def undo(self) -> None:
        if self._inner is not None:
            self._inner.undo()


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
