"""Whether a request's settings can be served, decided before the request waits for its turn.

The engine's scheduler may live in another process than the pipeline. So the plan is made here without it: what a server
refuses for its pipeline's sake, it refuses when it starts.
"""

from __future__ import annotations

from typing import Any

from omnireuse.errors import StateError
from omnireuse.integrations.settings import RequestSettings
from omnireuse.integrations.vllm_omni.ranks import RankSizes, refuse_undecidable
from omnireuse.integrations.vllm_omni.settings import OmniSettings
from omnireuse.integrations.vllm_omni.steps import refuse_plan

__all__ = ["Admission"]

FIELD = "extra_args"


class Admission:
    """Checks requests of one engine.

    Args:
        config: of the engine, vllm-omni's `OmniDiffusionConfig`.
    """

    def __init__(self, config: Any) -> None:
        self._settings = OmniSettings(config.cache_config)
        self._steps = bool(getattr(config, "step_execution", False))
        self._sizes = RankSizes.of(getattr(config, "parallel_config", None))
        self._dtype = str(getattr(config, "dtype", "")).removeprefix("torch.")

    def check(self, request: Any) -> None:
        """Refuse what cannot be served.

        Args:
            request: vllm-omni's.

        Raises:
            ConfigError: a value out of range or beyond the operator's limits, or a target that cannot be reached.
            StateError: a quality that the server's profile does not promise of it.
            UnknownNameError: a key that is no setting.
            WrongTypeError: settings of another kind.
        """
        sampling = request.sampling_params
        wanted = RequestSettings.of(sampling.extra_args, field=FIELD)
        if not wanted.targets:
            return
        self._settings.check_limits(wanted, steps=sampling.num_inference_steps, field=FIELD)
        plan = self._settings.plan(wanted, None)
        self._check_dtype(wanted)
        if self._steps and getattr(request, "use_step_execution", True):
            refuse_plan(plan, place=FIELD)
        refuse_undecidable(plan, self._sizes, place=FIELD)

    def _check_dtype(self, wanted: RequestSettings) -> None:
        profile, names = self._settings.profile, [name for name, _ in wanted.targets]
        if profile is not None and "quality" in names and self._dtype and profile.dtype not in (None, self._dtype):
            raise StateError(
                f"{FIELD}(quality=…): nothing is promised, for the profile was measured in {profile.dtype}, the server "
                f"runs in {self._dtype}; ask for speedup= or computed_steps="
            )
