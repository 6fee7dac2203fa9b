"""Full runs of a sampler that are recorded, and runs that are led along them to fit weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from omnireuse.engines.comfyui.solver import Response
from omnireuse.engines.comfyui.wrappers import PARTS, PREDICT, Wrappers
from omnireuse.planning.fit import LedRun
from omnireuse.planning.path import Path

__all__ = ["Leader", "PartsWatcher", "SolverPath"]


@dataclass
class SolverPath(Path):
    """The path of a full run of a sampler. Outputs are d = (x − x0) / σ; `latents` holds the last ones only.

    Attributes:
        outputs: of all steps, after guidance.
    """

    outputs: list[torch.Tensor] = field(default_factory=list)


class PartsWatcher:
    """Sees the outputs of guidance's parts in each call of the model."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []
        """The present call's parts."""

    def parts(self, executor: Any, model: Any, conds: Any, x: Any, timestep: Any, options: Any) -> Any:
        """The calls of the model for all parts of guidance."""
        found = executor(model, conds, x, timestep, options)
        self._parts += [x0 for x0, condition in zip(found, conds, strict=True) if condition is not None]
        return found


class Leader(PartsWatcher):
    """Leads one run along the path of its full run.

    Args:
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
        """A call of the model by the solver: computed, or forecast by the weights so far."""
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
