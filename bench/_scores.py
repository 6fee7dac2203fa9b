"""Scores that networks give: LPIPS to the full run, and how well a picture suits its prompt. All run on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from omnireuse.base.loading import quiet_loading
from omnireuse.pipelines.pictures import Picture
from omnireuse_lab.compare.workload import Score

logger = logging.getLogger("omnireuse")

CLIP = "openai/clip-vit-large-patch14"


def _frames(picture: Picture) -> Any:
    """Shape (frames, height, width, channels); pixels that are not finite count as black."""
    return np.nan_to_num(picture if picture.ndim == 4 else picture[None]).clip(0.0, 1.0)


def _lpips() -> Score:
    """Source: Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", 2018; AlexNet."""
    import lpips

    network = lpips.LPIPS(net="alex", verbose=False)

    def score(picture: Picture, full: Picture, prompt: str) -> float:
        pair = [torch.from_numpy(_frames(each)).float().movedim(-1, 1) * 2 - 1 for each in (picture, full)]
        with torch.no_grad():
            return float(network(*pair).mean())

    return score


def _clip() -> Score:
    """Source: Hessel et al., "CLIPScore", 2021; 100 times the cosine, at least 0, as torchmetrics has it."""
    from transformers import CLIPModel, CLIPProcessor

    model, processor = CLIPModel.from_pretrained(CLIP), CLIPProcessor.from_pretrained(CLIP)

    def score(picture: Picture, full: Picture, prompt: str) -> float:
        images = list(np.rint(_frames(picture) * 255).astype(np.uint8))
        given = processor(text=[prompt], images=images, return_tensors="pt", padding=True, truncation=True)
        with torch.no_grad():
            cosines = torch.cosine_similarity((found := model(**given)).image_embeds, found.text_embeds)
        return 100 * float(cosines.clamp_min(0).mean())

    return score


def _image_reward() -> Score:
    """Source: Xu et al., "ImageReward: Learning and Evaluating Human Preferences", 2023."""
    import ImageReward
    from PIL import Image

    model = ImageReward.load("ImageReward-v1.0", device="cpu")

    def score(picture: Picture, full: Picture, prompt: str) -> float:
        frames = np.rint(_frames(picture) * 255).astype(np.uint8)
        return float(np.mean([model.score(prompt, Image.fromarray(frame)) for frame in frames]))

    return score


SCORES: dict[str, Callable[[], Score]] = {"lpips": _lpips, "clip": _clip, "image_reward": _image_reward}
"""Name -> its loader."""


def load_scores() -> dict[str, Score]:
    """The scores that can be loaded; of the others a warning says why."""
    found: dict[str, Score] = {}
    for name, load in SCORES.items():
        try:
            with quiet_loading():
                found[name] = load()
        except Exception as error:  # whatever a package or its download raises
            reason = str(error).strip().split("\n")[0]
            logger.warning("score %s is left out: %s: %s", name, type(error).__name__, reason)
    return found
