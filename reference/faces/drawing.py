"""Pictures of people: SVGs from the npm package ``@dicebear/collection``, rasterised with resvg.

The design is Open Peeps by Pablo Stanley, CC0 1.0; the package's code is under the MIT licence. Needs node, npm and the
package ``resvg-py``.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np

from omnireuse.errors import ConfigError
from reference.drawing import Array
from reference.faces.people import (
    BACKGROUND_COLOURS,
    BEARDS,
    EXPRESSIONS,
    EYEWEAR,
    HAIR,
    HAIR_COLOURS,
    SHIRT_COLOURS,
    SKIN_COLOURS,
    Person,
)

IMAGE_SIZE = 64
PACKAGES = ("@dicebear/core@9.4.3", "@dicebear/collection@9.4.3")
SCRIPT = Path(__file__).with_name("open_peeps.mjs")
#: Colours of no part, which a drawing puts its own in the place of.
PLACEHOLDERS = {"skin": "010203", "hair": "040506", "clothing": "070809"}
#: The part of the style's canvas that is drawn (left, top, side), and how far a drawing moves it, in canvas units.
VIEW, VIEW_JITTER = (20.0, 30.0, 664.0), 14.0
TINT = 6


def _key(person: Person) -> str:
    return "|".join((person.hair, person.expression, person.beard, person.eyewear))


def make_svgs(folder: Path) -> Path:
    """Write an SVG of every combination of parts into one JSON file in ``folder``; made once."""
    target = folder / "people.json"
    if target.exists():
        return target
    npm, node = shutil.which("npm"), shutil.which("node")
    if not npm or not node:
        raise ConfigError("make_svgs: node and npm draw the people, and are not installed; install nodejs and npm")
    workshop = folder / "node"
    workshop.mkdir(parents=True, exist_ok=True)
    subprocess.run([npm, "install", "--silent", "--no-audit", "--prefix", workshop, *PACKAGES], check=True)
    shutil.copy(SCRIPT, workshop)
    looks = [
        {
            "key": "|".join((hair, expression, beard, eyewear)),
            "head": HAIR[hair],
            "face": EXPRESSIONS[expression],
            "facialHair": BEARDS[beard],
            "accessories": EYEWEAR[eyewear],
            **PLACEHOLDERS,
        }
        for hair, expression, beard, eyewear in product(HAIR, EXPRESSIONS, BEARDS, EYEWEAR)
    ]
    drawn = subprocess.run(
        [node, SCRIPT.name], cwd=workshop, input=json.dumps(looks), capture_output=True, encoding="utf-8", check=True
    )
    target.write_text(drawn.stdout, encoding="utf-8")
    return target


@lru_cache(maxsize=1)
def _svgs(path: Path) -> dict[str, str]:
    svgs: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return svgs


def _tinted(colour: str, rng: np.random.Generator) -> str:
    values = np.frombuffer(bytes.fromhex(colour), np.uint8) + rng.integers(-TINT, TINT + 1, 3)
    return bytes(np.clip(values, 0, 255).astype(np.uint8)).hex()


def rasterise(person: Person, rng: np.random.Generator, svgs: Path) -> np.ndarray:
    """``person`` as an image (64, 64, 3) uint8; ``rng`` decides zoom, place and tint, ``svgs`` is of `make_svgs`."""
    import resvg_py
    from PIL import Image

    # Without the mask, which would cut off what lies beyond the style's own canvas.
    svg = _svgs(svgs)[_key(person)].replace(' mask="url(#viewboxMask)"', "")
    hair = HAIR_COLOURS.get(person.hair_colour, "000000")
    colours = {"skin": SKIN_COLOURS[person.skin], "hair": hair, "clothing": SHIRT_COLOURS[person.shirt]}
    for name, colour in colours.items():
        svg = svg.replace(f"#{PLACEHOLDERS[name]}", f"#{_tinted(colour, rng)}")
    left, top, side = VIEW
    shift = rng.uniform(-VIEW_JITTER, VIEW_JITTER, 3)
    box = f'viewBox="{left + shift[0] - shift[2]:.2f} {top + shift[1] - shift[2]:.2f}'
    svg = svg.replace('viewBox="0 0 704 704"', f'{box} {side + 2 * shift[2]:.2f} {side + 2 * shift[2]:.2f}"', 1)
    background = f"#{_tinted(BACKGROUND_COLOURS[person.background], rng)}"
    png = resvg_py.svg_to_bytes(
        svg_string=svg, background=background, width=IMAGE_SIZE, height=IMAGE_SIZE, skip_system_fonts=True
    )
    return np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGB"))


def as_floats(pictures: np.ndarray) -> Array:
    """uint8 pictures as float32 in 0..1."""
    floats: Array = pictures.astype(np.float32) / np.float32(255)
    return floats
