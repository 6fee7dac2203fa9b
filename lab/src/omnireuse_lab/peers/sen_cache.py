"""SenCache: hold the output while its change, expected from the model's sensitivities, stays small.

Source: "Sensitivity-Aware Caching", arXiv 2602.24208, and its public code (https://github.com/vita-epfl/SenCache): the
expected change Jₓ |Δx| + Jₜ |Δt| since the last computed step, with both sensitivities measured there between
neighbouring steps of full runs on the conditional branch; a tighter threshold in the first fifth of the run; at most K
reused steps in a row. Ours: relative L1 norms, while the code has L2 norms scaled by a model's constant, and one
decision a step for both branches with the output after guidance held, while the code holds the blocks' residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

import omnireuse
from omnireuse.errors import StateError
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, lazily, reuse
from omnireuse_lab.compare.restore import restored
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers.calibrating import HELD

__all__ = ["SEN_CACHE", "Sensitivities", "Sensitivity"]

PROMPTS = 4
EARLY = 0.2
TIGHTER = 14.0
"""Main over early threshold, of the defaults in the public code."""


@dataclass(frozen=True, kw_only=True)
class Sensitivities:
    """Of a denoiser's output at each step.

    Attributes:
        to_latents: relative change of the output for a relative change of the latents.
        to_noise: relative change of the output for a step of noise, a unit of σ/(α+σ).
    """

    to_latents: tuple[float, ...]
    to_noise: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Sensitivity(omnireuse.Policy):
    """Reuse while the expected relative change since the last computed step is below a threshold.

    Args:
        sensitivities: at each step.
        threshold: above 0; raising it reuses more.
        most: reused steps in a row, ≥ 1.
    """

    sensitivities: Sensitivities
    threshold: float
    most: int = 3

    needs_drift: ClassVar[bool] = True
    drift_since_computed: ClassVar[bool] = True
    signal: ClassVar[str | None] = "latents"

    def start(self) -> tuple[int, float, int]:
        return 0, 1.0, 0

    def wants_reuse(self, state: tuple[int, float, int], view: omnireuse.StepView) -> bool:
        computed, noise, reused = state
        if view.drift is None or view.noise is None or view.total is None or reused >= self.most:
            return False
        step = min(computed, len(self.sensitivities.to_latents) - 1)
        expected = self.sensitivities.to_latents[step] * view.drift
        expected += self.sensitivities.to_noise[step] * abs(view.noise - noise)
        is_early = view.index < EARLY * view.total
        return expected < self.threshold / (TIGHTER if is_early else 1.0)

    def after(self, state: tuple[int, float, int], view: omnireuse.StepView, reused: bool) -> tuple[int, float, int]:
        if reused:
            return state[0], state[1], state[2] + 1
        return view.index, 1.0 if view.noise is None else view.noise, 0


def measured_sensitivities(work: Workload) -> Sensitivities:
    """Two more evaluations a step: the next latents at this timestep, and these latents at the next timestep.

    Raises:
        StateError: a denoiser that is not called with `hidden_states` and `timestep` by name.
    """
    denoiser = denoisers_of(work.pipeline)[0]
    before: list[tuple[dict[str, Any], torch.Tensor]] = []
    to_latents: list[float] = []
    changes: list[float] = []
    with restored(work.pipeline):
        inner = denoiser.forward

        def evaluated(given: dict[str, Any]) -> torch.Tensor:
            output: torch.Tensor = inner(**{**given, "return_dict": False})[0]
            return output

        def forward(*args: Any, **given: Any) -> Any:
            if args or not {"hidden_states", "timestep"} <= given.keys():
                raise StateError(f"{type(denoiser).__name__} must be called with hidden_states= and timestep=")
            # The first call of a step is the conditional one.
            if not before or not torch.equal(given["timestep"], before[-1][0]["timestep"]):
                output = evaluated(given)
                if before:
                    last, known = before.pop()
                    latents, earlier = given["hidden_states"], last["hidden_states"]
                    moved = evaluated({**last, "hidden_states": latents})
                    to_latents.append(_relative(moved, known) / _relative(latents, earlier))
                    changes.append(_relative(evaluated({**last, "timestep": given["timestep"]}), known))
                before.append((given, output))
            return inner(**given)

        denoiser.forward = forward
        work.pictures(range(len(work.prompts)), work.steps)
        sigmas = [float(sigma) for sigma in work.pipeline.scheduler.sigmas]
    to_noise = [change / abs(a - b) for change, a, b in zip(changes, sigmas, sigmas[1:], strict=False)]
    return Sensitivities(to_latents=tuple(to_latents), to_noise=tuple(to_noise))


def _relative(now: torch.Tensor, before: torch.Tensor) -> float:
    return float((now - before).float().abs().sum() / before.float().abs().sum())


def _options(found: Sensitivities, **limits: Any) -> dict[str, Any]:
    return {"policy": Sensitivity(sensitivities=found, **limits), **HELD}


def _grid(subject: Subject) -> Iterator[Setting]:
    make = lazily(subject, PROMPTS, measured_sensitivities, _options)
    for threshold in (0.1, 0.2, 0.4, 0.8):
        for most in (1, 3):
            options = make(threshold=threshold, most=most)
            yield reuse("SenCache", options, threshold=threshold, K=most, prompts=PROMPTS)


SEN_CACHE = Method(key="sen-cache", name="SenCache, calibrated", family="peer", grid=_grid)
