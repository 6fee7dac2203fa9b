"""The sigmas that a sampler calls the model at, known on the host: reading one waits for all work of the device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from omnireuse.engines.comfyui.graph import content_of, sampler_name
from omnireuse.tuning.replay import unchanged_random_states

__all__ = ["CallSigmas"]

logger = logging.getLogger("omnireuse")

AT_STEPS = {
    *("ddpm", "deis", "dpmpp_2m", "dpmpp_2m_cfg_pp", "euler", "euler_ancestral", "euler_ancestral_cfg_pp"),
    *("euler_cfg_pp", "gradient_estimation", "gradient_estimation_cfg_pp", "ipndm", "ipndm_v", "lcm", "lms"),
    *("res_multistep", "res_multistep_ancestral", "res_multistep_ancestral_cfg_pp", "res_multistep_cfg_pp"),
    *("unipc", "unipc_bh2"),
}
"""Functions of samplers that call the model once at each sigma of the schedule."""
ELSEWHERE = {
    *("dpm_2", "dpm_2_ancestral", "dpm_fast_function", "dpmpp_2m_sde", "dpmpp_2m_sde_gpu", "dpmpp_2m_sde_heun"),
    *("dpmpp_2m_sde_heun_gpu", "dpmpp_2s_ancestral", "dpmpp_2s_ancestral_cfg_pp", "dpmpp_3m_sde", "dpmpp_3m_sde_gpu"),
    *("dpmpp_sde", "dpmpp_sde_gpu", "er_sde", "exp_heun_2_x0", "exp_heun_2_x0_sde", "heun", "heunpp2"),
    *("sa_solver", "sa_solver_pece", "seeds_2", "seeds_3"),
}
"""Those that call it at sigmas of their own, which follow from the schedule alone: a run without a model shows them."""
MOST_KEPT = 8
"""Schedules whose sigmas are remembered."""


class CallSigmas:
    """Sigmas of samplers' calls, known before the calls are made."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, tuple[float, ...]], tuple[float, ...] | None] = {}

    def known(self, sampler: Any, sigmas: Sequence[float], model: Any) -> tuple[float, ...] | None:
        """The sigmas of all calls of a run; None where they must be read."""
        # Noise that is added before a call (s_churn) moves its sigma.
        if sampler_name(sampler) in AT_STEPS and not getattr(sampler, "extra_options", {}).get("s_churn"):
            return tuple(sigmas[:-1])
        if sampler_name(sampler) not in ELSEWHERE:
            return None
        key = _key(sampler, sigmas)
        if key not in self._seen:
            self._seen[key] = _calls_of(sampler, sigmas, model)
            while len(self._seen) > MOST_KEPT:
                del self._seen[next(iter(self._seen))]
        return self._seen[key]

    def forget(self, sampler: Any, sigmas: Sequence[float]) -> None:
        """A run has made other calls: those of the next are read."""
        if sampler_name(sampler) in ELSEWHERE:
            self._seen[_key(sampler, sigmas)] = None


class _NoModel:
    """A stand-in for a sampler's model: it computes nothing, and notes the sigmas."""

    def __init__(self, model: Any) -> None:
        self.inner_model = SimpleNamespace(model_patcher=model, inner_model=model.model)
        self.sigmas: list[float] = []

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, **_: Any) -> torch.Tensor:
        self.sigmas.append(float(sigma.flatten()[0]))
        return torch.zeros_like(x)


def _calls_of(sampler: Any, sigmas: Sequence[float], model: Any) -> tuple[float, ...] | None:
    """The sigmas of all calls, from a run of the sampler on the host without the model; None where it fails."""
    noted, options = _NoModel(model), getattr(sampler, "extra_options", {})
    given = {"extra_args": {"seed": 0, "model_options": {}}, "callback": None, "disable": True}
    try:
        with unchanged_random_states():
            sampler.sampler_function(noted, torch.ones(1, 1, 4, 4), torch.tensor(sigmas), **given, **options)
    except Exception as error:  # the picture must not fail because this does
        logger.info("sigmas of %s are read at each call: %s: %s", sampler_name(sampler), type(error).__name__, error)
        return None
    return tuple(noted.sigmas)


def _key(sampler: Any, sigmas: Sequence[float]) -> tuple[str, str, tuple[float, ...]]:
    return sampler_name(sampler), content_of(getattr(sampler, "extra_options", {})), tuple(sigmas)
