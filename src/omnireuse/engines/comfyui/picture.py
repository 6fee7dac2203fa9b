"""The steps of a run as a picture, in the form of ComfyUI's images."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["step_picture"]

_COMPUTED = (0.06, 0.61, 0.53)
_FORECAST = (0.78, 0.80, 0.83)
_BACKGROUND = (1.0, 1.0, 1.0)
_WIDTH, _HEIGHT = 720, 48


def step_picture(shares: Sequence[float | None]) -> torch.Tensor:
    """A strip with a box for each step: dark if it was computed, grey if it was forecast, in between if only
    some of its calls were computed.

    Args:
        shares: share of each step's calls that computed, in [0, 1] (`Summary.last_run`); None for a step without any.

    Returns:
        Shape (1, height, width, 3), float32 in [0, 1].
    """
    picture = torch.tensor(_BACKGROUND).repeat(1, _HEIGHT, _WIDTH, 1)
    for step, share in enumerate(shares):
        left, right = (round(place * _WIDTH / len(shares)) for place in (step, step + 1))
        if share is not None:
            colour = torch.lerp(torch.tensor(_FORECAST), torch.tensor(_COMPUTED), share)
            picture[:, :, left : max(right - 2, left + 1)] = colour
    return picture
