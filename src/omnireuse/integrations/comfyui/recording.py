"""Full runs of a sampler that are recorded, and runs that are led along them to fit weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from omnireuse.diffusion.calibration.branches import Shares
from omnireuse.diffusion.calibration.fit import LedRun
from omnireuse.diffusion.calibration.observer import NotFiniteError, Observations
from omnireuse.diffusion.calibration.path import Path
from omnireuse.diffusion.reuse.signals import change_of
from omnireuse.integrations.comfyui.noise import RunNoise
from omnireuse.integrations.comfyui.solver import Response
from omnireuse.integrations.comfyui.wrappers import PARTS, PREDICT, SAMPLER, Wrappers

__all__ = ["Leader", "PartsWatcher", "Recorder", "SolverPath"]


@dataclass
class SolverPath(Path):
    """The path of a full run of a sampler. Outputs are d = (x − x0) / σ; `latents` holds the last ones only.

    Attributes:
        outputs: of all steps, after guidance.
    """

    outputs: list[torch.Tensor] = field(default_factory=list)


class PartsWatcher:
    """Sees what the parts of guidance give in each call of the model."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []
        """Of the call that is under way."""

    def parts(self, executor: Any, model: Any, conds: Any, x: Any, timestep: Any, options: Any) -> Any:
        """The calls of the model for all parts of guidance."""
        found = executor(model, conds, x, timestep, options)
        self._parts += [x0 for x0, condition in zip(found, conds, strict=True) if condition is not None]
        return found


class Recorder(PartsWatcher):
    """Records one full run.

    Args:
        seen: takes what is observed; the path is recorded where it keeps values.
        noise: of the run.
        response: of the sampler; None where no weights can be fitted.
        calls_of: number of first steps whose calls are kept.

    Attributes:
        path: of the run, once it is over; without latents where no weights can be fitted.
        steps: that called the model.
    """

    def __init__(self, seen: Observations, noise: RunNoise, response: Response | None, calls_of: int) -> None:
        super().__init__()
        self._seen, self._noise, self._response, self._calls_of = seen, noise, response, calls_of
        self._before: dict[str, torch.Tensor] = {}
        self._shares, self._by_part = Shares(), list[list[torch.Tensor] | None]()
        self.path, self.steps = SolverPath(), list[int]()
        seen.begin_run()
        seen.quantity = "x0"

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        """By the kinds of ComfyUI's `WrappersMP`."""
        return {PREDICT: self.predict, PARTS: self.parts, SAMPLER: self.sample}

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        """A call of the model by the solver. The first of a step is recorded.

        Raises:
            NotFiniteError: x0 that is not finite.
        """
        self._parts.clear()
        x0: torch.Tensor = executor(x, timestep, options, seed)
        sigma = float(timestep.flatten()[0])
        step = self._noise.step_of(sigma)
        if step in self.steps[-1:]:
            return x0
        self.steps.append(step)
        finite = x0.isfinite().reshape(len(x0), -1).all(1)
        if not finite.all():
            raise NotFiniteError(step, int((~finite).nonzero()[0]), len(finite))
        if self._seen.keeps_values:
            self._changed("latents", step, x)
            self._changed("remembered", step, x0)
            self._seen.note_value(self._noise.levels[step].coordinate, x0.clone())
            if self._response is not None:
                self._keep((x - x0) / sigma, [(x - part) / sigma for part in self._parts])
        return x0

    def _changed(self, name: str, step: int, now: torch.Tensor) -> None:
        before, self._before[name] = self._before.get(name), now.clone()
        if before is not None:
            off, size = change_of(now, before).tolist()
            if size:
                self._seen.runs[-1].setdefault((name, "step"), {})[step] = off / size

    def _keep(self, output: torch.Tensor, parts: list[torch.Tensor]) -> None:
        self._shares.see(parts or None, output)
        self._by_part.append([part.float().cpu() for part in parts] or None)
        if len(self.path.calls) < self._calls_of:
            self.path.calls.append([*parts, output])
        self.path.outputs.append(output)

    def sample(self, executor: Any, *args: Any) -> Any:
        """The solver's run."""
        result = executor(*args)
        if self._seen.keeps_values and self._response is not None:
            self.path.latents.append(result.clone())
            handed = [output.float().cpu() for output in self.path.outputs]
            self.path.keep(self._shares, handed, self._by_part, self._response.moved[-1])
        return result


class Leader(PartsWatcher):
    """Leads one run along the path of its full run.

    Args:
        run: of a fit of weights.
        path: of the full run.
        response: of the sampler.
        first_gap: the first step that is not computed; calls before it are not made where the path knows them.

    Attributes:
        computed: calls of the model that were made.
    """

    def __init__(self, run: LedRun, path: SolverPath, response: Response, first_gap: int) -> None:
        super().__init__()
        self._run, self._path, self._response = run, path, response
        self._replayed = path.calls[:first_gap]
        self._off: list[torch.Tensor] = []
        self.computed = 0

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        """By the kinds of ComfyUI's `WrappersMP`."""
        return {PREDICT: self.predict, PARTS: self.parts}

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        """A call of the model by the solver: computed, or what the weights so far give."""
        self._parts.clear()
        step = self._run.index
        sigma, full = self._response.sigmas[step], self._path.outputs[step].to(x.device)
        parts: list[torch.Tensor] = []
        x0: torch.Tensor | None = None
        output = torch.zeros_like(full)
        if step < len(self._replayed):
            *parts, output = (each.to(x.device, copy=True) for each in self._replayed[step])
        elif self._run.computes:
            self.computed += 1
            x0 = executor(x, timestep, options, seed)
            output = (x - x0) / sigma
            parts = [(x - part) / sigma for part in self._parts]
        used = self._run.step(parts or None, output, lambda: self._response.aim(self._off, full))
        self._off.append(used - full)
        return x0 if used is output and x0 is not None else x - sigma * used
