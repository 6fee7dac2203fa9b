"""The model card beside the weights, written from measured figures only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from omnireuse.reference.captions import caption, held_out_scenes
from omnireuse.reference.drawing import Array
from omnireuse.reference.evaluate import Figures
from omnireuse.reference.load import SAMPLING

COMMAND = "python -m omnireuse.reference.evaluate --card"
GRID_ROWS, GRID_COLUMNS = 4, 8

CARD = """\
# shapes-flux

A small text-to-image pipeline, trained from nothing on scenes that the project draws itself. It is an ordinary
`diffusers.FluxPipeline`, small enough for two CPU cores, and exists so that step caches can be judged on real sampling
with true classifier-free guidance instead of on random weights. It draws one or two coloured shapes and nothing else.

![samples for held-out captions](samples.png)

The samples are for the first {num_samples} held-out captions, not for chosen ones.

```python
from diffusers import FluxPipeline

pipeline = FluxPipeline.from_pretrained("models/shapes-flux")
image = pipeline(
    "{prompt}",
{arguments}
).images[0]
```

or `omnireuse.reference.load_image_pipeline()` with `**omnireuse.reference.SAMPLING`. A batch needs as many negative
prompts as prompts. Training padded captions to {length} tokens, so `max_sequence_length={length}` belongs to every
call, as does the image size.

## Figures

Measured by `{command}` on captions whose arrangement (objects, place, relation) training never saw; weights loaded in
float32.

{table}

The attributes are read from the images by `omnireuse.reference.checker`. "Captions wholly right" asks for the number of
objects, the background's colour and pattern, each object's shape, colour and size, and the place or relation, all at
once. Guidance {guidance:g} is the weakest whole number at which half of the steps lie below 38 dB of all of them on
captions drawn with another seed: `step_sensitivity(pipeline, held_out_scenes(144, seed=4321), true_cfg_scale=…)` gives
39.7 dB at 4.5, 38.4 at 5, 36.3 at 6 and 34.1 at 7.

## Captions

- one object: `a large red circle in the top left on a plain gray background`
- two objects: `a small blue cross left of a large white square on a dotted teal background`
- either with the background first: `a striped black background with a small pink triangle in the centre`

| | |
|---|---|
| shapes | circle, square, triangle, cross |
| colours | red, green, blue, yellow, pink, white |
| sizes | small (little), large (big) |
| places | top left, top right, bottom left, bottom right, centre |
| relations | left of, right of (with or without "to the"), above (over), below (under) |
| backgrounds | black, gray, brown, teal |
| patterns | plain, striped, dotted |

## Training

`python -m omnireuse.reference.train all`, seeded, on scenes drawn as it goes; see docs/reference.md. Weights are stored
in float16. The data is the project's own drawing, and the licence is the project's.

## Limits

A word outside this vocabulary is an unknown token. Longer sequences than {length} tokens, other image sizes and
three or more objects were never trained.
"""


def figures_table(figures: Figures) -> str:
    """The figures as a Markdown table."""
    rows = [
        ("held-out captions", f"{figures.num_captions}"),
        ("attributes right", f"{figures.attributes_right:.1%}"),
        ("captions wholly right", f"{figures.captions_right:.1%}"),
        *((f"- {name} right", f"{share:.1%}") for name, share in figures.right_by_attribute.items()),
        (f"seconds an image, {figures.num_threads} threads", f"{figures.seconds_per_image:.2f}"),
        (f"14 steps against 28, guidance {SAMPLING['true_cfg_scale']}, PSNR", f"{figures.psnr_guided:.1f} dB"),
        ("14 steps against 28, no guidance, PSNR", f"{figures.psnr_unguided:.1f} dB"),
        ("prompts behind each PSNR", f"{figures.num_psnr_prompts}"),
        ("weights", f"{figures.weight_bytes / 1e6:.1f} MB"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def sample_grid(images: Array, rows: int, columns: int) -> Array:
    """The first rows * columns of ``images`` (B, H, W, 3) side by side."""
    shown = images[: rows * columns]
    return np.concatenate([np.concatenate(list(shown[row * columns :][:columns]), axis=1) for row in range(rows)])


def write_card(folder: Path, figures: Figures, images: Array) -> None:
    """Write README.md and samples.png into ``folder``."""
    from PIL import Image

    rows = min(GRID_ROWS, max(len(images) // GRID_COLUMNS, 1))
    columns = min(GRID_COLUMNS, len(images))
    grid = sample_grid(images, rows, columns)
    Image.fromarray((grid * 255).round().astype(np.uint8)).save(folder / "samples.png", optimize=True)
    card = CARD.format(
        prompt=caption(held_out_scenes(1)[0]),
        arguments="\n".join(f"    {name}={value!r}," for name, value in SAMPLING.items()),
        length=SAMPLING["max_sequence_length"],
        guidance=SAMPLING["true_cfg_scale"],
        command=COMMAND,
        table=figures_table(figures),
        num_samples=rows * columns,
    )
    (folder / "README.md").write_text(card)
