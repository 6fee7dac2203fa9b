"""Runs of a sampler that are measured, and runs beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse.engines.comfyui.calls import SamplerCall
from omnireuse.engines.comfyui.graph import content_of, sampler_name
from omnireuse.engines.comfyui.noise import RunNoise
from omnireuse.engines.comfyui.solver import Response
from omnireuse.engines.comfyui.wrappers import PARTS, PREDICT, SAMPLER, Wrappers
from omnireuse.engines.loops import Loop
from omnireuse.errors import NotTunableError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.generation import Generation
from omnireuse.loop.stepper import Stepper, stepped
from omnireuse.profiles.conditions import Conditions
from omnireuse.tuning.configuration import Configuration

__all__ = ["Measurement", "SamplerLoop", "SamplerSteps"]

_MISS = 1e-2
"""Share of the final latents that a sampler's outputs may leave unexplained."""


@dataclass(frozen=True, kw_only=True)
class SamplerLoop(Loop):
    """A run of a sampler.

    Attributes:
        call: makes it again.
        noise: of its steps, for outputs d = (x − x0) / σ.
        response: the sampler's arithmetic; None before it is measured.
        guidance: class of the guider, and its numbers.
        conditions: finds those of its model; None for a run that is made again.
    """

    call: SamplerCall
    noise: RunNoise
    response: Response | None = None
    guidance: Mapping[str, str]
    conditions: Callable[[], Conditions] | None

    @property
    def start(self) -> RunStart:
        return RunStart(
            total=len(self.noise.sigmas),
            levels=self.noise.levels,
            scheduler=self.response or self.call.sampler,
            shape=tuple(self.call.noise.shape),
        )

    def twin(self) -> SamplerLoop:
        return replace(self, response=copy.deepcopy(self.response))

    def check(self) -> None:
        call = self.call
        if call.given.get("denoise_mask") is not None:
            raise NotTunableError("runs with a mask are not tuned")
        if len(call.given.get("latent_shapes") or ()) > 1:
            raise NotTunableError("runs with several kinds of latents are not tuned")
        if any("hooks" in each for group in call.conds.values() for each in group):
            raise NotTunableError("runs whose conditions change the weights are not tuned")

    def configuration(self, start: RunStart) -> Configuration:
        assert self.conditions is not None, "only a run that begins is looked up"
        call, sampler, conditions = self.call, sampler_name(self.call.sampler), self.conditions()
        groups = {
            kind: [type(each.get("control")).__name__ if "control" in each else "plain" for each in group]
            for kind, group in call.conds.items()
        }
        inner = call.options.get("transformer_options", {})
        functions = {
            name: [getattr(each, "__qualname__", type(each).__name__) for each in _listed(value)]
            for name, value in call.options.items()
            if name.startswith(("sampler_", "model_function"))
        } | {name: sorted(map(str, inner.get(name, {}))) for name in ("patches", "patches_replace")}
        return Configuration(
            pipeline=f"ComfyUI: {conditions.model}",
            conditions=conditions,
            scheduler=sampler,
            noises=tuple(round(level.coordinate, 4) for level in start.levels),
            call={
                "sampler options": content_of(getattr(call.sampler, "extra_options", {})),
                "conditions": repr(groups),
                "functions": repr(functions),
                **self.guidance,
            },
            shape=start.shape[1:],
        )


class SamplerSteps:
    """Has the steps of a sampler's run decided by another, in outputs d = (x − x0) / σ.

    Args:
        response: of the run, which is told the outputs; None if nobody asks it.
    """

    def __init__(self, run: Stepper, sigmas: tuple[float, ...], response: Response | None) -> None:
        self.run, self._sigmas, self._response = run, sigmas, response
        self._step, self._parts = 0, list[torch.Tensor]()

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        """By the kinds of ComfyUI's `WrappersMP`."""
        return {PREDICT: self.predict, PARTS: self.parts}

    def parts(self, executor: Any, model: Any, conds: Any, x: Any, timestep: Any, options: Any) -> Any:
        """The calls of the model for all parts of guidance."""
        found = executor(model, conds, x, timestep, options)
        self._parts += [x0 for x0, condition in zip(found, conds, strict=True) if condition is not None]
        return found

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        """A call of the model by the solver."""
        step, sigma, computed = self._step, self._sigmas[self._step], dict[int, torch.Tensor]()
        self._step += 1

        def compute() -> torch.Tensor:
            self._parts.clear()
            x0 = executor(x, timestep, options, seed)
            output: torch.Tensor = (x - x0) / sigma
            for part in self._parts:
                self.run.see(0, (x - part) / sigma)
            computed[id(output)] = x0
            return output

        used = stepped(self.run, compute, step, x, given={"return_dict": False})
        if self._response is not None:
            self._response.step(used, x)
        return computed[id(used)] if id(used) in computed else x - sigma * used


class Measurement(SamplerSteps):
    """Computes every step of one run, and keeps copies of what the model gives.

    Args:
        generation: of a strategy that computes every step; its events say that the run is measured.
    """

    def __init__(self, loop: SamplerLoop, generation: Generation) -> None:
        self.measured = loop.recording()
        super().__init__(self.measured, loop.noise.sigmas, None)
        self.loop, self.generation = loop, generation

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        return {**super().wrappers, SAMPLER: self.sample}

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        if self._step == len(self._sigmas):
            self.measured.fail(NotTunableError(f"the sampler calls the model more than {self._step} times"))
            x0: torch.Tensor = executor(x, timestep, options, seed)
            return x0
        self.generation.pass_by(replace(self.generation.decide(), reason="measuring"))
        self.generation.advance()
        return super().predict(executor, x, timestep, options, seed)

    def sample(self, executor: Any, *args: Any) -> Any:
        """The solver's run."""
        result = executor(*args)
        self.measured.arrived(result)
        self.measured.keep(self._check, result)
        return result

    def _check(self, final: torch.Tensor) -> None:
        """Refuse a run whose latents are not those that its outputs lead to: something else changes them."""
        recording, twin = self.measured, copy.deepcopy(self.loop.response)
        assert twin is not None, "it was measured first"
        reached: Any = recording.steps[0].sample
        outputs: list[Any] = [step.output for step in recording.steps]
        for output in outputs:
            (reached,) = twin.step(output, reached)
        missed = (reached - final.to(reached.device)).norm() / final.norm()
        if not missed <= _MISS:
            recording.fail(NotTunableError("other nodes change the sampler's latents on the way"))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
