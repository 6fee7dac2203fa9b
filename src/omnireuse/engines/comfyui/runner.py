"""The runs of a search on the sampler of a ComfyUI graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from omnireuse.calibration.observer import Seen
from omnireuse.calibration.runs import Description, Pictures, RunInFull
from omnireuse.engines.comfyui.graph import Graph, conditions_of, sampler_name
from omnireuse.engines.comfyui.noise import RunNoise
from omnireuse.engines.comfyui.patch import attach
from omnireuse.engines.comfyui.recording import Leader, SolverPath, StepWatch
from omnireuse.engines.comfyui.shadows import Measurement
from omnireuse.engines.comfyui.solver import BY_PART, Response, measured_response
from omnireuse.engines.comfyui.wrappers import PARTS, POST, PREDICT, SAMPLER, Wrappers, wrapped
from omnireuse.engines.settings import RequestPlan
from omnireuse.errors import ConfigError, StateError, UnsupportedModelError
from omnireuse.loop.generation import Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.fit import WeightFit
from omnireuse.policies import Steps
from omnireuse.profiles.origin import Origin
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.trials import MeasuredCall, Shadow

__all__ = ["GraphRunner"]


class GraphRunner:
    """The sampler of a graph with its prompts.

    Args:
        order: places of the graph's prompts, in the order of the search.
        called: called after each computed call of the model with the number of them so far, in full runs.
    """

    def __init__(self, graph: Graph, order: Sequence[int], called: Callable[[float], None]) -> None:
        self._graph, self._order, self._called = graph, order, called
        self.steps = len(graph.sigmas) - 1
        self.prompts: Sequence[str] = [f"prompt {place + 1}" for place in order]
        self._calls, self._calls_a_run = 0, 0
        self.unfitted = ""
        """The reason against fitting weights, once the first run was recorded, or ""."""

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

    def _pictures(self, places: range, model: Any) -> Pictures:
        model = wrapped(model, {PARTS: self._count}, key="omnireuse progress")
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
            if str(error) == BY_PART:
                name = sampler_name(self._graph.sampler)
                raise ConfigError(
                    f"Omnireuse calibrate(sampler={name}): sampler must step from what guidance gives, got one that "
                    "steps from a part of it (CFG++), whose steps are all computed; choose another"
                ) from None
            self.unfitted = f"no weights can be fitted for the sampler {sampler_name(self._graph.sampler)}: {error}"
            return None

    def run_in_full(self, places: range, *, record: bool) -> RunInFull:
        """As `Runner.run_in_full`, of one prompt.

        Raises:
            NotFiniteError: x0 that is not finite.
            ConfigError: a sampler that does not take the steps of the schedule.
            StateError: the run cannot be recorded.
        """
        watch, model = StepWatch(self._noise), self._graph.model
        response, measurement = self._response if record else None, None
        if response is not None:
            measurement = Measurement(response, Generation(FULL, self._noise.levels), is_bounded=False)
            model = wrapped(model, measurement.wrappers)
        pictures = self._pictures(places, wrapped(model, {PREDICT: watch.predict}, key="omnireuse steps"))
        self._calls_a_run = self._calls_a_run or self._calls
        if watch.steps != list(range(self.steps)):
            name = sampler_name(self._graph.sampler)
            raise ConfigError(
                f"Omnireuse calibrate(sampler={name}): sampler must call the model, through ComfyUI's wrappers, in "
                f"each of the {self.steps} steps of its sigmas, got calls in {len(watch.steps)}; choose another"
            )
        if measurement is not None and not measurement.is_whole:
            raise StateError(f"nothing can be calibrated: {measurement.failure or 'the run ended too early'}")
        unmeasured = {"blocks": "models of ComfyUI are not looked into"}
        return RunInFull(
            pictures=pictures,
            full=None if measurement is None else measurement.full_run(),
            seen=Seen(
                coordinates=tuple(level.coordinate for level in self._noise.levels[: self.steps]),
                target="x0",
                unmeasured={**unmeasured, "weights": self.unfitted} if self.unfitted else unmeasured,
            ),
        )

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Shadow:
        """As `Runner.lead`; the fit knows the steps of the policy."""
        path = call.full.path
        assert isinstance(path, SolverPath), "a graph's runs have such paths"
        assert self._response is not None, "weights are fitted where there is one"
        leader = Leader(fit.begin(path.shares), path, self._response, fit.first_gap)
        ended: list[torch.Tensor] = []

        def sample(executor: Any, *args: Any) -> Any:
            result = executor(*args)
            ended.append(result.clone())
            return result

        model = wrapped(self._graph.model, {**leader.wrappers, SAMPLER: sample})
        pictures = self._pictures(call.replay, model)
        return Shadow(leader.computed, ended[-1], pictures)

    def made_with(self, places: range, strategy: Strategy) -> Pictures:
        """As `Runner.made_with`."""
        return self._pictures(places, attach(self._graph.model, RequestPlan(strategy=strategy, name="candidate")))
