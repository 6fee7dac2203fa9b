"""Draws people on any device, from the parts that resvg rasterised once.

A picture is linear in the colours of skin, hair, shirt and background. What resvg draws is therefore kept as the
weights of these colours, several times as large as a picture; colour, zoom, place and the mean over a pixel follow.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from reference.edits.task import ASPECTS, HEADS, NAMES, SIZES
from reference.faces.drawing import IMAGE_SIZE, PLACEHOLDERS, TINT, VIEW, VIEW_JITTER, make_svgs
from reference.faces.people import (
    BACKGROUND_COLOURS,
    BEARDS,
    EXPRESSIONS,
    EYEWEAR,
    HAIR,
    HAIR_COLOURS,
    SHIRT_COLOURS,
    SKIN_COLOURS,
)
from reference.train.loop import Loop

PARTS = "parts.npz"
#: Side of what resvg draws, and samples along each side of a pixel.
PARTS_SIZE, SAMPLES = 320, 4
#: What resvg draws lies around `VIEW` by this much, in canvas units.
MARGIN = 2 * VIEW_JITTER
#: Pictures drawn together.
CHUNK = 256
COLOURED = ("skin", "hair", "clothing")


def _premultiplied(svg: str, colours: dict[str, str]) -> np.ndarray:
    """RGB times opacity, and opacity, (PARTS_SIZE, PARTS_SIZE, 4) in 0..255."""
    import resvg_py
    from PIL import Image

    for name, colour in colours.items():
        svg = svg.replace(f"#{PLACEHOLDERS[name]}", f"#{colour}")
    png = resvg_py.svg_to_bytes(svg_string=svg, width=PARTS_SIZE, height=PARTS_SIZE, skip_system_fonts=True)
    straight = np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGBA")).astype(np.float32)
    straight[..., :3] *= straight[..., 3:] / 255
    return straight


def draw_parts(folder: Path) -> Path:
    """Write the weights of the colours, (combinations, 7, PARTS_SIZE, PARTS_SIZE) uint8, to ``folder``; made once.

    Channels: opacity, three of what has a colour of its own, and the weights of skin, hair and shirt. Needs what
    `make_svgs` needs.
    """
    import json

    target = folder / PARTS
    if target.exists():
        return target
    svgs = json.loads(make_svgs(folder).read_text(encoding="utf-8"))
    left, top, side = VIEW
    box = f'viewBox="{left - MARGIN} {top - MARGIN} {side + 2 * MARGIN} {side + 2 * MARGIN}"'
    keys = ["|".join(look) for look in product(HAIR, EXPRESSIONS, BEARDS, EYEWEAR)]
    parts = np.empty((len(keys), 7, PARTS_SIZE, PARTS_SIZE), np.uint8)
    for index in Loop("parts", len(keys)):
        svg = svgs[keys[index]].replace(' mask="url(#viewboxMask)"', "").replace('viewBox="0 0 704 704"', box, 1)
        own = _premultiplied(svg, dict.fromkeys(COLOURED, "000000"))
        lit = _premultiplied(svg, dict(zip(COLOURED, ("ff0000", "00ff00", "0000ff"), strict=True)))
        channels = np.concatenate([own[..., 3:], own[..., :3], lit[..., :3] - own[..., :3]], axis=-1)
        parts[index] = np.clip(np.rint(channels), 0, 255).astype(np.uint8).transpose(2, 0, 1)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target, parts=parts)
    return target


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """What a picture leaves open; an edit keeps it.

    Attributes:
        shift: right, down and out, in canvas units, (B, 3).
        tint: of skin, hair, shirt and background, (B, 4, 3) in -`TINT`..`TINT`.
    """

    shift: np.ndarray
    tint: np.ndarray


def sample_jitter(rng: np.random.Generator, count: int) -> Jitter:
    """As `reference.faces.drawing.rasterise` draws it."""
    return Jitter(
        shift=rng.uniform(-VIEW_JITTER, VIEW_JITTER, (count, 3)),
        tint=rng.integers(-TINT, TINT + 1, (count, 4, 3)),
    )


def _rgb(colours: Sequence[str]) -> np.ndarray:
    return np.array([list(bytes.fromhex(colour)) for colour in colours])


class Drawer:
    """Draws rows of looks.

    Args:
        parts: the file of `draw_parts`.
        device: that of the pictures.
    """

    def __init__(self, parts: Path, device: torch.device | str = "cpu") -> None:
        with np.load(parts) as file:
            self.parts = torch.from_numpy(file["parts"]).to(device)
        self.device = torch.device(device)
        self._styles = np.array([list(HAIR).index(hair) for hair, _ in HEADS])
        self._palettes = [
            (NAMES.index("skin"), _rgb(list(SKIN_COLOURS.values()))),
            (NAMES.index("hair"), _rgb([HAIR_COLOURS.get(colour, "000000") for _, colour in HEADS])),
            (NAMES.index("shirt"), _rgb(list(SHIRT_COLOURS.values()))),
            (NAMES.index("background"), _rgb(list(BACKGROUND_COLOURS.values()))),
        ]

    def _which(self, looks: np.ndarray) -> np.ndarray:
        expression, _, hair, eyewear, beard = looks.T[:5]
        index: np.ndarray = self._styles[hair]
        for name, look in (("expression", expression), ("beard", beard), ("eyewear", eyewear)):
            index = index * len(ASPECTS[name]) + look
        return index

    @torch.no_grad()
    def draw(self, looks: np.ndarray, jitter: Jitter) -> torch.Tensor:
        """Pictures (B, 3, 64, 64) in 0..1 of ``looks`` (B, 7)."""
        looks = np.asarray(looks)
        if looks.ndim != 2 or looks.shape[1] != len(SIZES):
            raise ValueError(f"draw(looks.shape={looks.shape}): looks must be (B, {len(SIZES)}), one of each aspect")
        chunks = range(0, len(looks), CHUNK)
        return torch.cat([self._draw(looks[at : at + CHUNK], _cut(jitter, at, at + CHUNK)) for at in chunks])

    def _draw(self, looks: np.ndarray, jitter: Jitter) -> torch.Tensor:
        def there(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array.astype(np.float32)).to(self.device)

        base = np.stack([palette[looks[:, place]] for place, palette in self._palettes], axis=1)
        colours = there(np.clip(base + jitter.tint, 0, 255) / 255)
        parts = self.parts[torch.from_numpy(self._which(looks)).to(self.device)].float() / 255
        opacity, own, weights = parts[:, :1], parts[:, 1:4], parts[:, 4:]
        large = own + torch.einsum("bwij,bwc->bcij", weights, colours[:, :3])
        large += (1 - opacity) * colours[:, 3, :, None, None]
        # Where each sample of each pixel lies in the large picture, in -1..1 from edge to edge.
        side, whole = VIEW[2], VIEW[2] + 2 * MARGIN
        right, down, out = there(jitter.shift).unbind(1)
        steps = torch.linspace(-1, 1, 2 * SAMPLES * IMAGE_SIZE + 1, device=self.device)[1::2]
        scale = ((side + 2 * out) / whole)[:, None]
        x, y = (scale * steps + 2 * moved[:, None] / whole for moved in (right, down))
        grid = torch.stack([x[:, None, :].expand(-1, len(steps), -1), y[:, :, None].expand(-1, -1, len(steps))], dim=-1)
        sampled = functional.grid_sample(large, grid, mode="bilinear", padding_mode="border", align_corners=False)
        return functional.avg_pool2d(sampled, SAMPLES).clamp(0, 1)


def _cut(jitter: Jitter, start: int, end: int) -> Jitter:
    return Jitter(shift=jitter.shift[start:end], tint=jitter.tint[start:end])
