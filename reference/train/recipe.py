"""What a reference pipeline's training consists of, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one reference pipeline is trained.

    Attributes:
        name: of the pipeline, and of the folders in ``runs/`` and ``models/``.
        stages: name -> (what trains in a folder, its optimizer steps), in order.
        num_scenes: scenes encoded before the flow is trained.
        export: (training folder, target) -> nothing; writes the pipeline.
    """

    name: str
    stages: Mapping[str, tuple[Callable[..., None], int]]
    num_scenes: int
    export: Callable[[Path, Path], None]
