"""What the arguments of a pipeline's call say of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnireuse.diffusion.reuse.guidance import scales_of

__all__ = ["Calls"]


class Calls:
    """Calls with arguments of the pipeline's own. An engine that hands in requests has a class of its own."""

    def scales(self, pipeline: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, float]:
        """The guidance scales of a call, by name."""
        return scales_of(pipeline, *args, **kwargs)

    def untunable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Why nothing is measured of such a call, in words; None where it may be."""
        return None
