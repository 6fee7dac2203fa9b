"""What happens at one step of a run, in the order in which it happens.

A pipeline enters a cache context and calls the denoiser, once for each branch of guidance; then it calls the
scheduler's `step`, and then the user's callback. `Live` handles these calls. At the first call of the denoiser the
region asks whether the step is computed; at the scheduler's step it hands on what the generation uses.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from omnireuse import messages
from omnireuse.base.once import Once
from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.callers import CALLERS, is_called_by
from omnireuse.hooks.clock import NAMES, Asked, Begin, Clock, StepHint
from omnireuse.hooks.companions import Companions
from omnireuse.hooks.denoisers import adapter_scales, adapters_of, model_name, parameters_of, unwrapped
from omnireuse.hooks.interception import Handler, MethodCall
from omnireuse.hooks.parts import Guided, Parts
from omnireuse.hooks.regions.cuts import Cuts
from omnireuse.hooks.run import MOST_CALLS_A_STEP, Chooser, DenoiserCall, Layout, Region, Run
from omnireuse.hooks.windows import WINDOW
from omnireuse.loop.conditions import Seen
from omnireuse.loop.events import Event, FellBack, Hooks
from omnireuse.loop.generation import layout_of
from omnireuse.loop.stepper import Stepper

if TYPE_CHECKING:
    from omnireuse.hooks.inert import InertRuns

__all__ = ["Live", "Loop", "SeveralOutputsError", "StepRegion", "kinds_of", "next_step", "previous_sample"]

logger = logging.getLogger("omnireuse")

_ABSENT = object()


class SeveralOutputsError(UnsupportedModelError):
    """A denoiser that returns several kinds of latents, of which the scheduler is given one."""


class Loop:
    """The loop of a call of the pipeline, or all loops of a user's own in a thread.

    Args:
        chooser: chooses the strategy of its runs; None for the session's.
        call: of the pipeline, with its arguments; None for a loop of a user's own.
    """

    def __init__(
        self, chooser: Chooser | None = None, call: tuple[Any, Sequence[Any], Mapping[str, Any]] | None = None
    ) -> None:
        self.chooser, self.call = chooser, call
        self.run: Run | None = None
        """Under way."""
        self.had_run = False
        self.asked = 0
        """Denoiser calls of its runs so far, made or reused."""
        self.context: str | None = None
        """The cache context that the pipeline has entered."""
        self.touched: list[list[str]] = []
        """What each callback since the call before has replaced or written to, by name."""
        self.final: torch.Tensor | None = None
        """The latents that the scheduler has returned last."""
        self.clock, self.companions, self.guided = Clock(in_call=call is not None), Companions(), Guided()

    def end(self) -> Run | None:
        """Forget what is known of the loop; returns the run that ends with it, if one is under way."""
        self.clock.forget()
        self.guided.batch = None
        run, self.run = self.run, None
        return run


class Loops(threading.local):
    """The loops of one thread."""

    def __init__(self) -> None:
        self.own, self.calls = Loop(), list[Loop]()
        """The user's own, and those of the pipeline's calls under way, the innermost last."""
        self.now = self.own
        """The one that runs: that of the innermost call, or the user's own."""
        self.final: torch.Tensor | None = None
        """The latents of the latest call of the pipeline."""


class Live(ABC):
    """Handles what a pipeline does at a step. `Session` says when runs begin and end.

    Attributes:
        hooks: take every event.
        calls_outside: denoiser calls that belonged to no run and were passed on.
    """

    def __init__(self, pipeline: Callable[[], Any], name: str, hooks: Hooks, inert: InertRuns) -> None:
        self._pipeline, self._name, self.hooks, self._inert, self.calls_outside = pipeline, name, hooks, inert, 0
        self._loops, self._parts, self._said = Loops(), Parts(self._handlers), Once()

    @property
    def loop(self) -> Loop:
        """The one that this thread is in."""
        return self._loops.now

    @contextmanager
    def _context_entered(self, call: MethodCall) -> Iterator[Any]:
        """The pipeline names the branch of the denoiser calls within, and may say which step it is at."""
        loop = self._loops.now
        outer = loop.context, loop.clock.hint
        loop.context = call.args[0] if call.args else call.kwargs.get("name")
        loop.clock.hint = StepHint(*map(call.kwargs.get, ("step_index", "num_inference_steps", "sigma")))
        try:
            with call.proceed(*call.args, **call.kwargs) as entered:
                yield entered
        finally:
            loop.context, loop.clock.hint = outer

    def _denoiser_called(self, index: int, module: torch.nn.Module) -> Handler:
        """The handler of one denoiser's calls."""
        model, name = unwrapped(module), model_name(module)

        def called(call: MethodCall) -> Any:
            loop, callers = self._loops.now, CALLERS.get()
            run, given_name = loop.run, loop.context or loop.guided.batch
            # The scheduler's steps tell those of the pipeline's own call. All else is looked at.
            is_told = run is not None and run.is_stepped and loop.call is not None and loop.clock.scheduler is None
            if not (is_told and callers and callers[-1] is self._pipeline()):
                run = self._run_of(loop, Asked(module, index, given_name, call.args, call.kwargs))
            if run is None:
                self.calls_outside += 1
                return call.make()
            sigma = loop.clock.hint.sigma
            if sigma is not None and run.generation.level.sample_weight is None:
                run.set_sigma(float(sigma))
            order = run.called.count(index)
            branch = given_name or str(order)
            repeat = run.branches[index, branch]
            run.called.append(index)
            run.branches[index, branch] = repeat + 1
            branch = f"{branch}#{repeat + 1}" if repeat else branch
            loop.asked += 1
            if len(run.called) > MOST_CALLS_A_STEP:
                self._end()
                return call.make()
            if loop.companions.are_called:
                call = loop.companions.denoise(run, call)
            conditions, held = run.conditions, run.conditions.held.get((index, branch))
            given, options, layout, is_held = form_of(model, call, index, loop.companions.scales, held)
            asks = bool(loop.touched) or (len(run.called) == 1 and (not run.step or loop.call is None))
            if asks or not is_held or conditions.latest != run.changed_at or run.windows.are_several:
                marks = adapters_of(model) if asks else {}
                asked = Asked(module, index, given_name, call.args, call.kwargs)
                self._look(loop, run, asked, branch, {} if is_held else given, marks)
            if run.changed_at:
                layout = layout._replace(conditions=run.changed_at)
            found = DenoiserCall(
                call.proceed, call.args, call.kwargs, run, model, name, index, branch, order, given, options, layout
            )
            try:
                if torch.is_grad_enabled():
                    found.refuse_gradients()
                try:
                    return run.region.call(found)
                except SeveralOutputsError as error:
                    return self._forecast_calls(run, error).call(found)
            except BaseException:
                self._end()
                raise

        return called

    def _scheduler_stepped(self, call: MethodCall) -> Any:
        """The scheduler is handed the output, and the step ends."""
        loop, callers = self._loops.now, CALLERS.get()
        run = loop.run
        if run is None or not ((callers and callers[-1] is self._pipeline()) or self._is_caller()):
            return call.make()
        args, kwargs = call.args, dict(call.kwargs)
        values = dict(zip(("model_output", "timestep", "sample"), args, strict=False)) | kwargs
        due, given = loop.clock.due, values.get("timestep")
        # By its address, as a loop over the scheduler's timesteps hands it on.
        is_due = type(given) is torch.Tensor and given.ndim == 0 and given.data_ptr() == due.get(run.step)
        ahead = 0 if is_due else loop.clock.ahead(run, given)
        if run.step and ahead == -1:
            self._compute_from_here(
                "computing every step of a loop of windows",
                f"the scheduler of the {self._name} is stepped several times at one timestep, as loops of windows do "
                "(panoramas): every step is computed, since a forecast must not mix outputs of two windows",
            )
            return call.make()
        if not run.called:
            if self._parts.have_other_denoisers(self._pipeline()):
                self._compute_from_here(
                    "computing every step",
                    f"the denoiser of the {self._name} was replaced in mid-run: its other steps are computed, since a "
                    "forecast must not mix outputs of two models",
                )
                return call.make()
            # The pipeline goes on with what the step before has given (Cosmos 1.0).
            result = call.make()
            run.latents = previous_sample(result)
            return result
        region = run.region
        try:
            # The first step was computed, and what it has given belongs to another step.
            if not ahead or run.step:
                output = region.scheduler_step(run, values)
                if args:
                    args = (output, *args[1:])
                else:
                    kwargs["model_output"] = output
            result = call.proceed(*args, **kwargs)
        except BaseException:
            self._end()
            raise
        latents = previous_sample(result)
        if region.stepper is not None:
            region.stepper.arrived(latents)
        if loop.call is not None:
            loop.final = latents
        if ahead:
            logger.info("the loop goes on at another step than the one after the last: its memory is dropped")
            self.emit(FellBack("the memory of another step"))
            run = self._begin(loop.clock.jump(run, ahead), ())
        if end_step(run, latents):
            self._end()
        return result

    def _look(
        self, loop: Loop, run: Run, asked: Asked, branch: str, given: Mapping[str, Any], marks: Mapping[str, Hashable]
    ) -> None:
        """Find out whether inputs of a call have changed, or its window, or what marks the weights and adapters of its
        model."""
        conditions, step, others, key = run.conditions, run.step, loop.companions, (asked.denoiser, branch)
        for changed in filter(None, loop.touched):
            conditions.change(step, changed)
        if loop.touched and self._has_other_parts(self._pipeline()):
            self._parts.refresh_others(self._pipeline())
        loop.touched.clear()
        for what, value in marks.items():
            if conditions.marks.get(what) != value:
                conditions.tell(step, what, value)
        if given:
            conditions.look(key, step, given, others.made if others.are_called else ())
        if (step < 2 or run.windows.are_several) and asked.latents is not None:
            name, index = asked.branch, asked.denoiser
            place = (run.branches[index, name] if name else run.called.count(index)) - 1
            is_again = loop.clock.is_again(run, conditions.held.get(key, ()))
            if run.windows.move(step, (asked.denoiser, name), place, asked.latents, is_again=step == 1 and is_again):
                conditions.change(step, [WINDOW])
        if (latest := conditions.latest) != run.changed_at:
            run.changed_at = latest
            names = ", ".join(name for name, steps in conditions.changes.items() if steps[-1] == latest)
            logger.info("step %d is computed, and what was remembered is dropped: %s changed", latest, names)
            self.emit(FellBack(f"computing after a change of {names}"))

    def _has_other_parts(self, pipeline: object) -> bool:
        """True if parts beside the denoisers were replaced, as a callback may do with the scheduler."""
        others = self._parts.others
        return [id(getattr(pipeline, name, None)) for name in others] != [*map(id, others.values())]

    def _compute_from_here(self, what: str, why: str) -> None:
        """Reuse nothing in the rest of the loop; say why, once for each text."""
        self.emit(FellBack(what))
        self._said.say(why)
        self._end()

    def emit(self, event: Event) -> None:
        """Hand an event to the hooks."""
        for hook in self.hooks.all:
            hook(event)

    def _is_caller(self) -> bool:
        """True if the pipeline's own call runs, or a loop of a user's own."""
        return is_called_by(self._pipeline())

    @abstractmethod
    def _handlers(self, name: str, part: object) -> Mapping[str, Handler]:
        """The handlers of a part's methods."""

    @abstractmethod
    def _run_of(self, loop: Loop, asked: Asked) -> Run | None:
        """The run that a denoiser call belongs to; None for a call that belongs to none."""

    @abstractmethod
    def _begin(self, begin: Begin, shape: tuple[int, ...]) -> Run:
        """Begin a run, in place of the one under way."""

    @abstractmethod
    def _end(self, *, is_complete: bool = False) -> None:
        """Drop the run of this thread's loop and everything it kept. Idempotent."""

    @abstractmethod
    def _forecast_calls(self, run: Run, why: SeveralOutputsError) -> Region:
        """Go on in region "call"."""


def form_of(
    module: torch.nn.Module,
    call: MethodCall,
    denoiser: int,
    controls: tuple[tuple[str, Any], ...],
    held: Mapping[str, Seen] | None,
) -> tuple[Mapping[str, Any], Hashable, Layout, bool]:
    """A call's arguments by name, its options and its layout, as in `DenoiserCall`, and whether every condition that
    its branch has held so far is the same object, untouched.

    The layout is that of all arguments but timesteps (frames and sound may share one), with the scales of adapters,
    which a callback may change between steps, and those of ControlNets, which begin and end within a run.
    """
    parameters, args = parameters_of(type(module).forward), call.args
    given = dict(zip(parameters, args, strict=False))
    for place in range(len(parameters), len(args)):
        given[f"argument {place}"] = args[place]
    given.update(call.kwargs)
    tensors, options = [], []
    for name, value in {**parameters, **given}.items():
        if isinstance(value, (bool, str)):
            options.append((name, value))
        elif name in NAMES:
            continue
        elif isinstance(value, torch.Tensor):
            tensors.append((name, tuple(value.shape), value.dtype, value.device))
        elif isinstance(value, (list, tuple)):
            tensors += [
                (f"{name}[{place}]", *layout_of(each)[0])
                for place, each in enumerate(value)
                if isinstance(each, torch.Tensor)
            ]
    tensors.sort()
    options.sort()
    is_held = held is not None
    for name, (value, version, address) in held.items() if held is not None else ():
        now = given.get(name, _ABSENT)
        is_same = now is value and (version is None or now._version == version)
        is_held = is_held and is_same and (not address or now.data_ptr() == address)
    scales = adapter_scales(module) if "peft_config" in vars(module) else None
    return given, tuple(options), Layout(tuple(tensors), scales, (), denoiser, controls), is_held


def previous_sample(result: object) -> torch.Tensor | None:
    """The latents that a scheduler's step returned, in whatever form; None if there are none."""
    sample = getattr(result, "prev_sample", None)
    if sample is None and isinstance(result, (tuple, list)) and result:
        sample = result[0]
    return sample if isinstance(sample, torch.Tensor) else None


def end_step(run: Run, latents: torch.Tensor | None) -> bool:
    """End a run's step; the next one starts from `latents`. Returns whether it was the last. Cost: one reduction."""
    if latents is not None and latents.is_floating_point() and latents.numel() and not latents.is_meta:
        run.magnitudes.append((run.step, torch.linalg.vector_norm(latents.detach(), math.inf)))
    next_step(run)
    run.latents, run.is_stepped = latents, True
    total = run.generation.total
    return total is not None and run.step >= total


def next_step(run: Run) -> None:
    """The next call belongs to the next step."""
    run.step += 1
    for each in run.wave.generations:
        if each.index < run.step:  # region "step" has ended it by `use`
            each.advance()
    run.latents = None
    run.called.clear()
    run.branches.clear()


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
        stepper = self.stepper or call.run.stepper
        if len(call.run.called) == 1:
            self._first_call, self._computes = call, self._ask(call)
        elif self._first_call is not None and call.layout.conditions != self._first_call.layout.conditions:
            # A condition of a later branch. The calls before have returned their last outputs; the next step asks anew.
            self._computes = True
        key, own = (call.denoiser, call.branch, call.options), call.layout
        if self._layouts and key not in self._placeholders:
            self._layouts.setdefault(own, next(iter(self._layouts.values())))
        layout, last = self._placeholders.get(key, (None, None))
        is_left_out = not self._computes or bool(stepper.reused_rows)
        if is_left_out and layout != own:
            last = stepper.known(len(call.run.called) - 1, next((each.device for each in call.tensors), None))
            if last is None:
                # The last computed step did not have this call, and only computing it shows the form of its output.
                step = call.run.step
                logger.info("step %d: branch %s is new and is computed although the step is reused", step, call.branch)
                is_left_out = False
            else:
                self._placeholders[key] = own, last
        if is_left_out and not self._computes:
            return last
        output = self._compute_without(call, stepper.reused_rows, last) if is_left_out else self._compute(call)
        kinds = kinds_of(call, output)
        if self.stepper is not None:
            self.stepper.see(call.denoiser, output, kinds)
        elif kinds > 1:
            raise SeveralOutputsError(messages.SEVERAL_OUTPUTS, model=call.model, kinds=kinds)
        self._placeholders[key] = own, output
        return output

    def _compute(self, call: DenoiserCall) -> Any:
        return call.make() if self._inner is None else self._inner.call(call)

    def _ask(self, call: DenoiserCall) -> bool:
        """Whether the step is computed, for some samples at least."""
        run, strategy = call.run, call.run.generation.strategy
        if self.stepper is None and strategy.decides_by_sample:
            if self._shape is None:
                # Guidance may have stacked its branches in one call: only the scheduler's call shows how many samples
                # there are. The first step is computed, so it can wait for that.
                return True
            run.split(self._shape[0] if self._shape[0] > 1 and self._may_divide(call, self._shape) else 1)
        # Another expert forecasts another sample: outputs of the one before it are of another kind.
        layout = call.layout
        if layout not in self._layouts:
            self._layouts = {layout: layout}
        signal = None if strategy.chosen_signal == "none" else call.watched(strategy)
        return (self.stepper or run.stepper).computes(run.step, signal, kind=self._layouts[layout])

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

    def _compute_without(self, call: DenoiserCall, reused: Sequence[int], last: object) -> Any:
        shape, first = self._shape, self._first_call
        assert shape is not None, "samples are known"
        if self._may_divide(call, shape):
            rows = [row for row in range(call.batch) if row % shape[0] not in reused]
            output = self._cuts.compute(call, rows, last)
        else:
            output = call.make()
        if first is not None and not self._cuts.allows(call, shape[0]):
            # The samples of a step are decided on at its first call.
            self._cuts.refuse_like(first, call)
        return output

    def scheduler_step(self, run: Run, given: Mapping[str, Any]) -> torch.Tensor:
        """What the stepper uses: for reused samples forecasts, computed ones corrected or as they are."""
        call, self._first_call = self._first_call, None
        assert call is not None, "a step begins with a call"
        generation, sample = run.generation, given["sample"]
        if self.stepper is None and generation.strategy.decides_by_sample and self._shape != sample.shape:
            self._shape = sample.shape
            self._computes = self._ask(call)
        if self._branches != run.branches:
            # Guidance that begins or ends changes the output: remembered values are of another kind then.
            for each in run.wave.generations:
                each.is_of_new_kind = self._branches is not None
            self._branches = run.branches.copy()
        if self.stepper is not None and self._inner is None:
            generation.record_computed(replace(generation.decide(), reason="measuring"))
        used = (self.stepper or run.stepper).use(given["model_output"] if self._computes else None, sample, given)
        assert used is not None, "the loop of a pipeline always goes on"
        return used

    def undo(self) -> None:
        if self._inner is not None:
            self._inner.undo()


def kinds_of(call: DenoiserCall, output: object) -> int:
    """The number of kinds of latents in a call's output."""
    # Entries with tensors: one may be a list of one tensor an image. What was handed in, such as a cache of keys and
    # values, is no output.
    entries = tuple(output.values()) if isinstance(output, Mapping) else output
    if not isinstance(entries, tuple):
        return 1
    given = {id(leaf) for leaf in pytree.tree_leaves((call.args, call.kwargs))}
    leaves = [pytree.tree_leaves(entry) for entry in entries]
    return sum(any(isinstance(leaf, torch.Tensor) and id(leaf) not in given for leaf in each) for each in leaves)
