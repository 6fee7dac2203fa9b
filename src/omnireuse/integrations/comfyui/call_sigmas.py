"""The sigmas that a sampler calls the model at, known on the host: reading one waits for all work of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnireuse.integrations.comfyui.graph import content_of, sampler_name

__all__ = ["CallSigmas"]

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
"""Those that call it at sigmas of their own, which follow from the schedule alone: a first run shows them."""
MOST_KEPT = 8
"""Schedules whose sigmas are remembered."""


class CallSigmas:
    """What is known of the calls of samplers before they are made."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, tuple[float, ...]], tuple[float, ...]] = {}

    def known(self, sampler: Any, sigmas: Sequence[float]) -> tuple[float, ...] | None:
        """The sigmas of all calls of a run; None where they must be read.

        Args:
            sampler: ComfyUI's.
            sigmas: of the steps, and the one at which the run ends.
        """
        # Noise that is added before a call (s_churn) moves its sigma.
        if sampler_name(sampler) in AT_STEPS and not getattr(sampler, "extra_options", {}).get("s_churn"):
            return tuple(sigmas[:-1])
        return self._seen.get(_key(sampler, sigmas))

    def learn(self, sampler: Any, sigmas: Sequence[float], calls: Sequence[float]) -> None:
        """Note the sigmas of all calls of a whole run, where the schedule alone decides them."""
        if sampler_name(sampler) in ELSEWHERE:
            self.forget(sampler, sigmas)
            self._seen[_key(sampler, sigmas)] = tuple(calls)
            while len(self._seen) > MOST_KEPT:
                del self._seen[next(iter(self._seen))]

    def forget(self, sampler: Any, sigmas: Sequence[float]) -> None:
        """A run has made other calls."""
        self._seen.pop(_key(sampler, sigmas), None)


def _key(sampler: Any, sigmas: Sequence[float]) -> tuple[str, str, tuple[float, ...]]:
    return sampler_name(sampler), content_of(getattr(sampler, "extra_options", {})), tuple(sigmas)
