"""What a node shows in the browser after a run."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import folder_paths
import numpy as np
import torch
from PIL import Image

__all__ = ["shown"]


def shown(text: str, pictures: torch.Tensor) -> dict[str, Any]:
    """A node's `ui`: pictures, which the frontend draws, and text, which the script in ``web`` draws.

    Args:
        text: of the node.
        pictures: shape (B, height, width, 3), in [0, 1]. They are written to ComfyUI's folder of temporary files, which
            it empties when it starts.
    """
    folder, images = Path(folder_paths.get_temp_directory()), []
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        name = f"omnireuse_{uuid.uuid4().hex}.png"
        pixels = (picture.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / name)
        images.append({"filename": name, "subfolder": "", "type": "temp"})
    return {"text": [text], "images": images}
