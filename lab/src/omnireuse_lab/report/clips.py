"""Images and clips as files. A clip is an animated PNG: lossless, and it plays wherever an image is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FRAME_MILLISECONDS", "save_clip", "save_pair"]

FRAME_MILLISECONDS = 125
"""How long a clip shows each frame."""
LARGEST = 512
"""Height of a picture in a pair, in pixels."""


def save_clip(clip: NDArray[Any], path: Path) -> None:
    """Write (height, width, 3) as a PNG, or (frames, height, width, 3) as an animated one; floats in 0..1."""
    frames = np.rint((clip if clip.ndim == 4 else clip[None]) * 255.0).astype(np.uint8)
    first, *rest = (Image.fromarray(frame) for frame in frames)
    animation = {"save_all": True, "append_images": rest, "duration": FRAME_MILLISECONDS, "loop": 0} if rest else {}
    first.save(path, format="png", optimize=True, **animation)


def save_pair(left: NDArray[Any], right: NDArray[Any], path: Path) -> None:
    """Write two pictures or clips of one size beside each other, as `save_clip`; large ones at a whole fraction."""
    step = -(-left.shape[-3] // LARGEST)
    both = np.concatenate([left, right], axis=-2)[..., ::step, ::step, :]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_clip(np.nan_to_num(both).clip(0.0, 1.0), path)
