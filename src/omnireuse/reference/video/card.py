"""The model card beside the video weights, written from measured figures only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from omnireuse.reference.card import sample_grid
from omnireuse.reference.drawing import Array
from omnireuse.reference.load import VIDEO_SAMPLING
from omnireuse.reference.video.captions import caption, held_out_scenes
from omnireuse.reference.video.evaluate import Figures
from omnireuse.report.clips import save_clip

COMMAND = "python -m omnireuse.reference.video.evaluate --card"
GRID_ROWS, GRID_COLUMNS = 2, 8

CARD = """\
# shapes-wan

A small text-to-video pipeline, trained from nothing on clips that the project draws itself. It is an ordinary
`diffusers.WanPipeline`, small enough for two CPU cores, and exists so that step caches can be judged on real video
sampling, where guidance calls the transformer twice a step. It shows one coloured shape that moves in a straight line,
and nothing else.

![samples for held-out captions](samples.png)

The samples (an animated PNG) are for the first {num_samples} held-out captions, not for chosen ones.

```python
from diffusers import WanPipeline

pipeline = WanPipeline.from_pretrained("models/shapes-wan")
frames = pipeline(
    "{prompt}",
{arguments}
).frames[0]
```

or `omnireuse.reference.load_video_pipeline()` with `**omnireuse.reference.VIDEO_SAMPLING`. Training padded captions to
{length} tokens, so `max_sequence_length={length}` belongs to every call, as do the size and the number of frames.

## Figures

Measured by `{command}` on captions of which training never saw the
combination of object, direction and speed; weights loaded in float32.

{table}

The attributes are read from the frames by `omnireuse.reference.video.checker`. "Captions wholly right" asks for all of
them at once: one object in every frame, the background's colour, the object's shape, colour and size, the direction of
its motion (within 30 degrees, on a straight line) and its speed. Shape is the weak spot:
corners of small objects come out round, and circles a little square.

Guidance {guidance:g} was chosen on 24 of these captions, from other noise, as the weakest whole number at which half of
the steps lie below 38 dB of all of them: 3 gave 42.5 dB, 5 gave 38.7 and 6 gave 37.2, with as many attributes right
(weights of 300 flow steps earlier).

## Captions

- `a large red circle moving left slowly on a gray background`
- or with the background first: `a teal background with a small pink triangle moving up quickly`

| | |
|---|---|
| shapes | circle, square, triangle, cross |
| colours | red, green, blue, yellow, pink, white |
| sizes | small (little), large (big) |
| directions | left, right, up, down |
| speeds | slowly (about 1.2 pixels a frame), quickly (fast; about 3.2) |
| backgrounds | black, gray, brown, teal |

## Training

`python -m omnireuse.reference.train.video all`, seeded, on clips drawn as it goes; see docs/reference.md. Weights are
stored in float16. The data is the project's own drawing, and the licence is the project's.

These weights were trained in several goes, each from the checkpoint of the one before with a schedule of its own: the
autoencoder to step 2,200 and 3,600; the flow to step 1,000 of a schedule of 2,600, then to 1,300 and to 1,600; the
decoder for 600. An unbroken run gives other weights.

## Limits

A word outside this vocabulary is an unknown token. Other sizes and lengths, two objects, and an object that stands
still or turns were never trained.
"""


def figures_table(figures: Figures) -> str:
    """The figures as a Markdown table."""
    steps = VIDEO_SAMPLING["num_inference_steps"]
    threads = "1 thread" if figures.num_threads == 1 else f"{figures.num_threads} threads"
    rows = [
        ("held-out captions", f"{figures.num_captions}"),
        ("attributes right", f"{figures.attributes_right:.1%}"),
        ("captions wholly right", f"{figures.captions_right:.1%}"),
        *((f"- {name} right", f"{share:.1%}") for name, share in figures.right_by_attribute.items()),
        (f"seconds a clip, {threads}", f"{figures.seconds_per_clip:.2f}"),
        (
            f"{steps // 2} steps against {steps}, guidance {VIDEO_SAMPLING['guidance_scale']:g}, PSNR",
            f"{figures.psnr_guided:.1f} dB",
        ),
        (f"{steps // 2} steps against {steps}, no guidance, PSNR", f"{figures.psnr_unguided:.1f} dB"),
        ("prompts behind each PSNR", f"{figures.num_psnr_prompts}"),
        ("weights", f"{figures.weight_bytes / 1e6:.1f} MB"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def write_card(folder: Path, figures: Figures, clips: Array) -> None:
    """Write README.md and samples.png into ``folder``."""
    rows, columns = min(GRID_ROWS, max(len(clips) // GRID_COLUMNS, 1)), min(GRID_COLUMNS, len(clips))
    save_clip(np.stack([sample_grid(frames, rows, columns) for frames in clips.swapaxes(0, 1)]), folder / "samples.png")
    card = CARD.format(
        prompt=caption(held_out_scenes(1)[0]),
        arguments="\n".join(f"    {name}={value!r}," for name, value in VIDEO_SAMPLING.items()),
        length=VIDEO_SAMPLING["max_sequence_length"],
        guidance=VIDEO_SAMPLING["guidance_scale"],
        command=COMMAND,
        table=figures_table(figures),
        num_samples=rows * columns,
    )
    (folder / "README.md").write_text(card)
