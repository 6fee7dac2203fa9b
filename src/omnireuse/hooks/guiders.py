"""Guiders of diffusers name the batches of a step, and prepare the denoiser for one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["GUIDERS", "Guided", "guider_handlers"]

GUIDERS = ("guider", "guider_2")
"""Attributes of a pipeline that hold a guider."""


class Guided:
    """The batches of one loop.

    Attributes:
        batch: name of the batch that the guider has prepared the denoiser for; None for none.
        to_come: names of the batches that it has prepared for this step and that are to come.
    """

    batch: str | None = None
    to_come: Iterator[str] = iter(())


def guider_handlers(guider: Any, guided: Callable[[], Guided]) -> dict[str, Callable[..., Any]]:
    """Handlers of a guider's methods, which give each denoiser call the name of its batch as its branch.

    Modular pipelines call a denoiser without `cache_context`, as a rule, and the order of a call does not show its
    branch: where guidance by an unconditional branch ends, the second call is that of another branch.

    Args:
        guided: gives the state of the loop that calls.
    """

    def inputs_prepared(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        batches = proceed(*args, **kwargs)
        guided().to_come = iter([str(getattr(batch, guider._identifier_key)) for batch in batches])
        return batches

    def models_prepared(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        guided().batch = next(guided().to_come, None)
        return proceed(*args, **kwargs)

    def models_cleaned(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        guided().batch = None
        return proceed(*args, **kwargs)

    return {
        "prepare_inputs": inputs_prepared,
        "prepare_inputs_from_block_state": inputs_prepared,
        "prepare_models": models_prepared,
        "cleanup_models": models_cleaned,
    }
