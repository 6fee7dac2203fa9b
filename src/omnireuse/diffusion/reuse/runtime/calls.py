"""What the arguments of a pipeline's call say of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnireuse.diffusion.reuse.call import arguments_of

__all__ = ["Calls"]


class Calls:
    """Calls with arguments of the pipeline's own. An engine that hands in requests has a class of its own."""

    def arguments(self, pipeline: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call but contents and noise, by name."""
        return arguments_of(pipeline, *args, **kwargs)

    def untunable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Why nothing is measured of such a call, in words; None where it may be."""
        return None
