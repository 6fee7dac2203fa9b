"""The runs of a search on the sampler of a ComfyUI graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from omnireuse.diffusion.calibration.fit import WeightFit
from omnireuse.diffusion.calibration.jobs import Description, Pictures
from omnireuse.diffusion.calibration.observer import Observations
from omnireuse.diffusion.calibration.origin import Origin
from omnireuse.diffusion.calibration.path import Path
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import ConfigError, UnsupportedModelError
from omnireuse.integrations.comfyui.graph import Graph, conditions_of, sampler_name
from omnireuse.integrations.comfyui.noise import RunNoise
from omnireuse.integrations.comfyui.patch import attach
from omnireuse.integrations.comfyui.recording import Leader, Recorder, SolverPath
from omnireuse.integrations.comfyui.solver import Response, measured_response
from omnireuse.integrations.comfyui.wrappers import PARTS, POST, Wrappers, wrapped
from omnireuse.integrations.settings import Plan

__all__ = ["GraphRunner"]


class GraphRunner:
    """The sampler of a graph with its prompts.

    Args:
        graph: what is sampled with.
        order: places of the graph's prompts, in the order of the search.
        called: called after each computed call of the model with the number of them so far, in full runs.
    """

    def __init__(self, graph: Graph, order: Sequence[int], called: Callable[[float], None]) -> None:
        self._graph, self._order, self._called = graph, order, called
        self.steps = len(graph.sigmas) - 1
        self.prompts: Sequence[str] = [f"prompt {place + 1}" for place in order]
        self._model = graph.model
        self._calls, self._calls_a_run = 0, 0
        self.unfitted = ""
        """Why no weights can be fitted, once the first run was recorded; "" where they can."""

    def describe(self, *, content: bool) -> Description:
        """As `Runner.describe`; the weights are always read."""
        model, sampler = self._graph.model, sampler_name(self._graph.sampler)
        conditions = conditions_of(model, sampler)
        return Description(
            text=f"{conditions.model} in ComfyUI on {model.load_device}, sampler {sampler}",
            conditions=conditions,
            origin=Origin(
                name="a model of ComfyUI",
                weights=conditions.weights,
                adapters=conditions.adapters,
                holding=conditions.holding,
            ),
            content=" ".join((str(conditions.weights), *conditions.adapters)),
        )

    def generate(self, places: range, *, strict: bool = False) -> Pictures:
        """As `Runner.generate`."""
        model = wrapped(self._model, {PARTS: self._count}, key="omnireuse progress")
        return [self._graph.decode(self._graph.run(model, self._order[place])) for place in places]

    def _count(self, executor: Any, *args: Any) -> Any:
        result = executor(*args)
        self._calls += 1
        self._called(self._calls / (self._calls_a_run or self.steps))
        return result

    @cached_property
    def _noise(self) -> RunNoise:
        return RunNoise(self._graph.sigmas, self._graph.model.get_model_object("model_sampling"), derivative=True)

    @cached_property
    def _response(self) -> Response | None:
        model = self._graph.model

        def run(wrappers: Mapping[str, Wrappers]) -> None:
            self._graph.run(wrapped(model, wrappers), self._order[0])

        try:
            return measured_response(run, self._graph.sigmas, own_functions=len(model.model_options.get(POST, [])))
        except UnsupportedModelError as error:
            self.unfitted = f"no weights can be fitted for the sampler {sampler_name(self._graph.sampler)}: {error}"
            return None

    @contextmanager
    def _on(self, model: Any) -> Iterator[None]:
        self._model = model
        try:
            yield
        finally:
            self._model = self._graph.model

    @contextmanager
    def recorded(self, seen: Observations, *, calls_of: int) -> Iterator[Path]:
        """As `Runner.recorded`.

        Raises:
            NotFiniteError: x0 that is not finite.
            ConfigError: a sampler that does not take the steps of the schedule.
        """
        recorder = Recorder(seen, self._noise, self._response if seen.keeps_values else None, calls_of)
        seen.unmeasured["blocks"] = "models of ComfyUI are not looked into"
        if self.unfitted:
            seen.unmeasured["weights"] = self.unfitted
        with self._on(wrapped(self._graph.model, recorder.wrappers)):
            yield recorder.path
        self._calls_a_run = self._calls_a_run or self._calls
        if recorder.steps != list(range(self.steps)):
            name = sampler_name(self._graph.sampler)
            raise ConfigError(
                f"Omnireuse calibrate(sampler={name}): sampler must call the model, through ComfyUI's wrappers, in "
                f"each of the {self.steps} steps of its sigmas, got calls in {len(recorder.steps)}; choose another"
            )

    @contextmanager
    def led(self, fit: WeightFit, path: Path, policy: FixedSchedule) -> Iterator[None]:
        """As `Runner.led`; the fit knows the steps of the policy."""
        assert isinstance(path, SolverPath), "a graph's runs have such paths"
        assert self._response is not None, "weights are fitted where there is one"
        leader = Leader(fit.begin(path.shares), path, self._response, fit.first_gap)
        with self._on(wrapped(self._graph.model, leader.wrappers)):
            yield

    @contextmanager
    def following(self, strategy: Strategy) -> Iterator[None]:
        """As `Runner.following`."""
        with self._on(attach(self._graph.model, Plan(strategy=strategy, name="candidate"))):
            yield
