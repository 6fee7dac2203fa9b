"""Guiders of diffusers name the batches of a step, and prepare the denoiser for one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omnireuse.hooks.runs import Runs

__all__ = ["GUIDERS", "guider_handlers"]

GUIDERS = ("guider", "guider_2")
"""Attributes of a pipeline that hold a guider."""


def guider_handlers(guider: Any, runs: Runs) -> dict[str, Callable[..., Any]]:
    """Handlers of a guider's methods, which give each denoiser call the name of its batch as its branch.

    Modular pipelines call a denoiser without `cache_context`, as a rule, and the order of a call does not show its
    branch: where guidance by an unconditional branch ends, the second call is that of another branch.
    """

    def inputs_prepared(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        batches = proceed(*args, **kwargs)
        runs.here.batches = iter([str(getattr(batch, guider._identifier_key)) for batch in batches])
        return batches

    def models_prepared(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        runs.here.guided = next(runs.here.batches, None)
        return proceed(*args, **kwargs)

    def models_cleaned(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        runs.here.guided = None
        return proceed(*args, **kwargs)

    return {
        "prepare_inputs": inputs_prepared,
        "prepare_inputs_from_block_state": inputs_prepared,
        "prepare_models": models_prepared,
        "cleanup_models": models_cleaned,
    }
