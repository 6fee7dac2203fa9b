"""One run of a pipeline, its denoiser calls, and the protocol of a region, which takes them."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
from torch.utils import _pytree as pytree

from omnireuse.hooks.denoisers import parameters_of
from omnireuse.hooks.interception import MethodCall
from omnireuse.hooks.windows import Windows
from omnireuse.loop.branch_state import refuse_gradients
from omnireuse.loop.conditions import CallConditions
from omnireuse.loop.events import Choice
from omnireuse.loop.generation import Generation, layout_of
from omnireuse.loop.stepper import Stepper
from omnireuse.loop.strategy import Strategy
from omnireuse.loop.wave import Wave
from omnireuse.noise.parametrization import NoiseLevel, level_of_sigma
from omnireuse.noise.signals import filtered, grid_of

__all__ = [
    "MOST_CALLS_A_STEP",
    "Chooser",
    "Chosen",
    "DenoiserCall",
    "Layout",
    "Region",
    "RegionFactory",
    "Run",
    "RunStart",
]

MOST_CALLS_A_STEP = 64
"""Far more than any guidance needs: a step with more calls is one whose end is not known."""
MOST_BRANCHES = 4
"""More calls than that belong to more than one step, if a run has no more steps."""


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run that begins.

    Attributes:
        total: number of steps; None if it is not known.
        levels: noise level of each step; empty if unknown.
        scheduler: the pipeline's scheduler, with its timesteps; None if nobody watches one.
        shape: of the denoiser's latents, with the batch; empty if they are not one tensor.
        call: of the pipeline, with its arguments; None in a loop that no call of it makes.
        strategy: of runs that nobody chooses another one for; None if there is none.
    """

    total: int | None
    levels: Sequence[NoiseLevel]
    scheduler: Any
    shape: tuple[int, ...]
    call: tuple[Any, Sequence[Any], Mapping[str, Any]] | None = None
    strategy: Strategy | None = None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The plan of a run.

    Attributes:
        strategy: decides and forecasts.
        region: takes its calls in place of the session's region; None for that one.
        kind: "reuse"; "measured" for a full run that is measured; "uncounted" for a run beside a
            picture, which is counted nowhere.
        references: which computed calls of an editing model are full; None for what the session does.
    """

    strategy: Strategy
    region: Region | None = None
    kind: Literal["reuse", "measured", "uncounted"] = "reuse"
    references: Any = None


Chooser = Callable[[RunStart], Chosen]


class Run:
    """One run of a pipeline: a generation, and the calls of its current step.

    Attributes:
        generation: decides for its batch as a whole, and remembers.
        wave: has the generations of rows that are decided on one by one.
        stepper: what region "step" asks: the generation, or the wave.
        kind, references: as in `Chosen`.
        began: when, by `time.perf_counter`.
        region: takes its calls.
        step: the current one, from 0.
        latents: the sample that the scheduler returned last, which the current step starts from.
        called: the denoiser of each call of the current step, in their order.
        branches: the number of these calls by denoiser and branch.
        is_stepped: whether somebody ends its steps: the scheduler's `step`, or a user.
        magnitudes: numbers of steps, and the largest magnitude of the latents after each, left on their device.
        conditions: what its steps are computed from beside latents and time.
        windows: of its latents, if its calls are given parts of them.
        has_times: whether each frame has a timestep of its own, so that a sample has several.
        changed_at: the step of the latest change of conditions that the hooks know of.
        grids: how the tokens of the latents unfold, by the layout of the call: reading positions waits for the device.
    """

    def __init__(self, generation: Generation, kind: str, region: Region, references: Any = None) -> None:
        self.generation, self.kind, self.region, self.references = generation, kind, region, references
        self.stepper: Stepper = generation
        self.wave = Wave([generation])
        self.step, self.began = 0, time.perf_counter()
        self.latents: torch.Tensor | None = None
        self.called: list[int] = []
        self.branches: Counter[tuple[int, str]] = Counter()
        self.is_stepped = False
        self.magnitudes: list[tuple[int, torch.Tensor]] = []
        self.grids: dict[Hashable, tuple[int, ...] | None] = {}
        self.conditions, self.changed_at = CallConditions(), 0
        self.windows, self.has_times = Windows(), False
        self._first_sigma: float | None = None

    def split(self, rows: int) -> None:
        """Let region "step" decide on each of so many rows; 1 decides for all together. What was remembered of another
        number is dropped."""
        if rows != self.wave.size:
            self.finish()
            self.wave.size, self.stepper = rows, self.wave if rows > 1 else self.generation

    def finish(self) -> None:
        """Drop what its generations remember."""
        for each in self.wave.generations:
            each.finish()

    def is_over(self, ahead: int = 0) -> bool:
        """True if all steps have ended, or will have after so many more. The generation is done with a step before
        the scheduler is."""
        total = self.generation.total
        return total is not None and self.step + ahead >= total

    @property
    def has_no_end_of_steps(self) -> bool:
        """True if the denoiser was called for more than a step, and none has ended."""
        most = max(MOST_BRANCHES, (self.generation.total or 0) - 1)
        return self.step == 0 and len(self.called) > min(most, MOST_CALLS_A_STEP)

    def set_sigma(self, sigma: float) -> None:
        """Take the noise level of this step from `cache_context`, if the scheduler's algebra is not known."""
        if self._first_sigma is None:
            self._first_sigma = sigma
        for each in self.wave.generations:
            each.call_at(level_of_sigma(sigma, self._first_sigma))

    @property
    def is_reused_by_schedule(self) -> bool:
        """True if a schedule says before any call that the present step is reused."""
        schedule = self.generation.schedule
        is_scheduled = schedule is not None and self.step not in schedule
        return is_scheduled and self.is_stepped and self.kind == "reuse" and self.conditions.latest != self.step

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage that this run holds beyond what the pipeline holds itself."""
        leaves = pytree.tree_leaves(dict(self.region.held))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta"]
        return sum(each.kept_bytes for each in self.wave.generations) + sum(tensor.nbytes for tensor in tensors)

    def first_broken(self) -> int | None:
        """The step after which the latents were first NaN or infinite; None if they never were. Cost: one read."""
        if not self.magnitudes:
            return None
        device = self.magnitudes[0][1].device
        values = torch.stack([value.to(device, torch.float32) for _, value in self.magnitudes]).tolist()
        steps = [step for step, _ in self.magnitudes]
        return next((step for step, value in zip(steps, values, strict=True) if not math.isfinite(value)), None)


class Region(ABC):
    """The part that is skipped. It gets every denoiser call and every scheduler step of a run.

    Attributes:
        stepper: answers in place of the run's generation; None for that one.
    """

    stepper: Stepper | None = None

    @property
    def held(self) -> Mapping[str, Any]:
        """The values that it remembers between calls, by name."""
        return vars(self)

    def for_run(self) -> Region:
        """The region of one run: an own one if something of the run is kept, this one for all elsewhere."""
        return self

    @abstractmethod
    def call(self, call: DenoiserCall) -> Any:
        """The result of a denoiser call, computed or not."""

    def scheduler_step(self, run: Run, given: Mapping[str, Any]) -> torch.Tensor:
        """The scheduler's input in place of `model_output`, of the arguments of its step by name."""
        output: torch.Tensor = given["model_output"]
        return output

    def undo(self) -> None:  # noqa: B027  # most put nothing
        """Take back whatever this region put between objects."""


RegionFactory = Callable[[Strategy, Sequence[torch.nn.Module], object], Region]
"""A function that makes the region of a strategy on denoisers, and names the owner of its interceptions."""


class Layout(NamedTuple):
    """What must be the same at the steps that a forecast is made from.

    Attributes:
        arguments: name, shape, dtype and device of each tensor argument, in the order of their names.
        scales: of adapters; None if there are none.
        streams: the same of the tensors that enter the blocks.
        denoiser: its number.
        controls: scales of the ControlNets whose outputs the call may be given, by name.
        conditions: the step at which one changed last.
    """

    arguments: tuple[tuple[str, tuple[int, ...], Any, Any], ...]
    scales: tuple[Any, ...] | None = None
    streams: tuple[tuple[tuple[int, ...], Any, Any], ...] = ()
    denoiser: int = 0
    controls: tuple[tuple[str, Any], ...] = ()
    conditions: int = 0

    def changes_to(self, other: Layout) -> str:
        """What differs in `other`, in words."""
        found = ["the denoiser"] if self.denoiser != other.denoiser else []
        before = {name: what for name, *what in self.arguments}
        after = {name: what for name, *what in other.arguments}
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old is None or new is None:
                found.append(f"{name} is given at some steps only")
            elif old != new:
                found.append(f"{name} from {next(f'{a} to {b}' for a, b in zip(old, new, strict=True) if a != b)}")
        if self.scales != other.scales:
            found.append("the scales of adapters")
        if self.controls != other.controls:
            found.append("the scales of ControlNets")
        if self.conditions != other.conditions:
            found.append("the content of conditions")
        if self.streams != other.streams and self.arguments == other.arguments:
            found.append("the shapes of what enters the blocks")
        return ", ".join(found) or "nothing"


@dataclass(frozen=True)
class DenoiserCall(MethodCall):
    """One call of a denoiser within a run; `make` computes its output.

    Attributes:
        run: which it belongs to.
        module: the denoiser, without its wrappers.
        model: the name of its class.
        denoiser: its place among the pipeline's denoisers.
        branch: its name among the calls of the step.
        order: its number among the step's calls of this denoiser, from 0.
        arguments: by the names of the forward's parameters, however the call spells them; those given by position
            first.
        options: the choices that the call makes beside its inputs, `return_dict` among them: the form of its result.
        layout: what a reuse needs unchanged.
    """

    run: Run
    module: torch.nn.Module
    model: str
    denoiser: int
    branch: str
    order: int
    arguments: Mapping[str, Any]
    options: Hashable
    layout: Layout

    def ask(self, rows: int, *, layout: Hashable, signal: torch.Tensor | None, visit: int = 1) -> list[Choice]:
        """Decide whether each of so many rows of the batch is computed or reused; 1 decides for all together.

        Args:
            signal: that of the whole batch.
            visit: which way through the block stack within this call, from 1; each has a history of its own.
        """
        branch = self.branch if visit == 1 else f"{self.branch}/{visit}"
        run, denoiser, order = self.run, self.denoiser, self.order
        if rows > 1:
            return run.wave.ask(rows, branch, denoiser=denoiser, order=order, layout=layout, signal=signal)
        return [run.generation.decide(branch, denoiser=denoiser, order=order, layout=layout, signal=signal)]

    def make_with(self, arguments: Mapping[str, Any]) -> Any:
        """The denoiser's output for other values of its `arguments`, spelled as in this call."""
        positional = list(self.arguments)[: len(self.args)]
        return self.proceed(*map(arguments.get, positional), **{name: arguments[name] for name in self.kwargs})

    @cached_property
    def configuration(self) -> Hashable:
        """What a cut of the call into rows depends on: the denoiser, how its arguments are nested, and their shapes."""
        leaves, structure = pytree.tree_flatten(dict(sorted(self.arguments.items())))
        return self.denoiser, str(structure), tuple(layout_of(leaf) or type(leaf) for leaf in leaves)

    @cached_property
    def latents(self) -> list[torch.Tensor]:
        """The latents that the denoiser was called with: its first argument, or the one named as such. Most get one
        tensor. Z-Image and Cosmos 3 get a list of one an image or clip, which is stacked if all have one shape."""
        first = next(iter(parameters_of(type(self.module).forward)), "argument 0")
        named = [self.arguments.get(name) for name in (first, "hidden_states", "sample", "x", "vision_tokens")]
        lists: list[list[Any]] = [each if isinstance(each, list) else [each] for each in named]
        candidates = [*lists, *([value] for value in self.arguments.values())]
        found = next((each for each in candidates if each and all(map(_is_latent, each))), list[torch.Tensor]())
        is_list = any(found is value for value in self.arguments.values())
        return [torch.stack(found)] if is_list and len({each.shape for each in found}) == 1 else found

    @cached_property
    def input(self) -> torch.Tensor | None:
        """The latents as one tensor, to be watched."""
        if len(self.latents) > 1:
            return torch.cat([each.flatten() for each in self.latents])
        return self.latents[0] if self.latents else None

    @cached_property
    def batch(self) -> int:
        """Rows of the input; 1 if it has none, or is several tensors."""
        return self.latents[0].shape[0] if len(self.latents) == 1 and self.latents[0].ndim else 1

    def watched(self, strategy: Strategy) -> torch.Tensor | None:
        """The signal, as seen from outside; None if there is none."""
        if self.input is not None and strategy.chosen_signal == "filtered_latents":
            grids, layout = self.run.grids, self.layout
            if layout not in grids:
                grids[layout] = grid_of(self.input, self.arguments)
            return filtered(self.input, self.run.generation.level.noise, grids[layout])
        return self.input

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments."""
        return [value for value in self.values if isinstance(value, torch.Tensor)]

    def refuse_gradients(self) -> None:
        """Raise if autograd is on and the output would carry gradients, whether it will be computed or not.

        Asked before anything runs, because a reused call has no output to look at, and reentrant checkpointing hides
        the graph from the blocks.

        Raises:
            StateError: a parameter or an input requires a gradient.
        """
        given = (leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor))
        refuse_gradients(chain(given, self.module.parameters()))


def _is_latent(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
