"""A sampler's calls of the model and its use of the outputs, seen in runs on the host that compute nothing."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse.errors import UnsupportedModelError
from omnireuse.tuning.replay import unchanged_random_states
from omnireuse_engines.comfyui.calls import content_of, sampler_name
from omnireuse_engines.comfyui.noise import NEAR
from omnireuse_engines.comfyui.wrappers import POST

__all__ = ["SCHEDULED", "CallSigmas", "Response", "measured_response"]

logger = logging.getLogger("omnireuse")

SCHEDULED = {
    *("ddpm", "deis", "dpm_2", "dpm_2_ancestral", "dpm_fast_function", "dpmpp_2m", "dpmpp_2m_cfg_pp", "dpmpp_2m_sde"),
    *("dpmpp_2m_sde_gpu", "dpmpp_2m_sde_heun", "dpmpp_2m_sde_heun_gpu", "dpmpp_2s_ancestral"),
    *("dpmpp_2s_ancestral_cfg_pp", "dpmpp_3m_sde", "dpmpp_3m_sde_gpu", "dpmpp_sde", "dpmpp_sde_gpu", "er_sde"),
    *("euler", "euler_ancestral", "euler_ancestral_cfg_pp", "euler_cfg_pp", "exp_heun_2_x0", "exp_heun_2_x0_sde"),
    *("gradient_estimation", "gradient_estimation_cfg_pp", "heun", "heunpp2", "ipndm", "ipndm_v", "lcm", "lms"),
    *("res_multistep", "res_multistep_ancestral", "res_multistep_ancestral_cfg_pp", "res_multistep_cfg_pp"),
    *("sa_solver", "sa_solver_pece", "seeds_2", "seeds_3", "unipc", "unipc_bh2"),
}
"""Functions of samplers whose calls follow from the schedule alone."""
MOST_KEPT = 8
"""Schedules whose sigmas are remembered."""
_WAVES = 3
"""Elements whose outputs differ from zero at every step: a solver that is a weighted sum predicts them."""
_MISS = 1e-3


class _NoModel:
    """A stand-in for a sampler's model; notes the calls.

    Args:
        model: ComfyUI's `ModelPatcher`.
        outputs: (calls, elements) d = (x − x0) / σ of each call; 0 for calls after them.
    """

    def __init__(self, model: Any, outputs: torch.Tensor) -> None:
        self.inner_model = SimpleNamespace(model_patcher=model, inner_model=model.model)
        self._outputs = outputs
        self.sigmas, self.latents, self.is_by_part = list[float](), list[torch.Tensor](), False

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, **given: Any) -> torch.Tensor:
        call = len(self.sigmas)
        self.sigmas.append(float(sigma.flatten()[0]))
        self.latents.append(x.flatten().clone())
        x0 = x - self.sigmas[-1] * self._outputs[call].view_as(x) if call < len(self._outputs) else x.clone()
        for function in given.get("model_options", {}).get(POST, ()):
            self.is_by_part = True
            function({"denoised": x0, "cond_denoised": x0, "uncond_denoised": x0, "sigma": sigma, "input": x})
        return x0


def _run(sampler: Any, sigmas: Sequence[float], model: Any, x: torch.Tensor, outputs: torch.Tensor) -> _NoModel:
    """A run of the sampler on the host from these latents, whose last ones are noted, too."""
    noted, options = _NoModel(model, outputs), getattr(sampler, "extra_options", {})
    given = {"extra_args": {"seed": 0, "model_options": {}}, "callback": None, "disable": True}
    with unchanged_random_states():
        final = sampler.sampler_function(noted, x.view(1, 1, 1, -1), torch.tensor(sigmas), **given, **options)
    noted.latents.append(final.flatten())
    return noted


class CallSigmas:
    """The sigmas of samplers' calls, known before the calls are made: reading one waits for all work of the device."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], tuple[float, ...] | None] = {}

    def known(self, sampler: object, sigmas: Sequence[float], model: object) -> tuple[float, ...] | None:
        """The sigmas of all calls of a run; None if they must be read."""
        if sampler_name(sampler) not in SCHEDULED:
            return None
        key = _key(sampler, sigmas)
        if key not in self._seen:
            try:
                found = _run(sampler, sigmas, model, torch.ones(16), torch.zeros(0, 16))
                self._seen[key] = tuple(found.sigmas)
            except Exception as error:  # the picture must not fail because this does
                why = f"{type(error).__name__}: {error}"
                logger.info("sigmas of %s are read at each call: %s", sampler_name(sampler), why)
                self._seen[key] = None
            while len(self._seen) > MOST_KEPT:
                del self._seen[next(iter(self._seen))]
        return self._seen[key]

    def forget(self, sampler: object, sigmas: Sequence[float]) -> None:
        """A run has made other calls: those of the next are read."""
        if sampler_name(sampler) in SCHEDULED:
            self._seen[_key(sampler, sigmas)] = None


def _key(sampler: object, sigmas: Sequence[float]) -> tuple[Any, ...]:
    return sampler_name(sampler), content_of(getattr(sampler, "extra_options", {})), tuple(sigmas)


class Response:
    """A sampler's arithmetic in the form of a scheduler's: each step adds a weighted sum of the outputs so far.

    Args:
        moved: (steps + 1, steps) how far an output d = (x − x0) / σ of 1 at each step moves the latents before each
            step, and the last.
    """

    def __init__(self, moved: NDArray[np.float64]) -> None:
        self.moved, self._outputs = moved, list[torch.Tensor]()

    def __deepcopy__(self, memo: object) -> Response:
        twin = copy.copy(self)
        twin._outputs = list(self._outputs)
        return twin

    def step(self, model_output: torch.Tensor, sample: torch.Tensor, return_dict: bool = False) -> tuple[torch.Tensor]:
        """The latents after the next step."""
        self._outputs.append(model_output)
        step = len(self._outputs)
        weights = self.moved[step, :step] - self.moved[step - 1, :step]
        return (sample + sum(float(weight) * each for weight, each in zip(weights, self._outputs, strict=True)),)


def measured_response(sampler: object, sigmas: Sequence[float], model: object) -> Response:
    """The response of a sampler, from two runs with made-up outputs.

    Latents have one element for each step, whose output is 1 there and 0 elsewhere.

    Args:
        sigmas: of the steps, and the one at which the run ends.
        model: ComfyUI's `ModelPatcher`.

    Raises:
        UnsupportedModelError: its latents are no weighted sum of one output a step.
    """
    steps = len(sigmas) - 1
    waves = torch.cos(torch.arange(1.0, steps + 1)[:, None] * torch.arange(1.0, _WAVES + 1))
    outputs = torch.cat([torch.eye(steps), waves], dim=1)
    still = _run(sampler, sigmas, model, torch.ones(steps + _WAVES), torch.zeros_like(outputs))
    if still.is_by_part:
        raise UnsupportedModelError("it steps from a part of guidance (CFG++)")
    is_near = (abs(a - b) <= NEAR * b for a, b in zip(still.sigmas, sigmas, strict=False))
    if len(still.sigmas) != steps or not all(is_near):
        raise UnsupportedModelError("it calls the model more than once a step, or at sigmas of its own")
    if not all(torch.allclose(each, still.latents[0], rtol=_MISS) for each in still.latents):
        raise UnsupportedModelError("it adds noise on the way, which no output shows before")
    moved = torch.stack(_run(sampler, sigmas, model, torch.zeros(steps + _WAVES), outputs).latents).double()
    alone, together = moved.split([steps, _WAVES], dim=1)
    missed = (together - alone @ waves.double()).abs().max()
    if not missed <= _MISS * together.abs().max() or not (alone[1:].diagonal().abs() > 0).all():
        raise UnsupportedModelError("what it makes of the model's outputs is no weighted sum of them")
    return Response(alone.numpy())
