"""How well a pipeline edits: what should change did, what should not did not, on looks that training never saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reference.drawing import Array
from reference.edits.drawing import Drawer, sample_jitter
from reference.edits.examples import Examples
from reference.edits.pool import encode
from reference.edits.task import Edit, as_looks
from reference.faces.checker import check

BATCH_SIZE = 50
#: Attributes of a person that an aspect consists of, where it has not the same name.
ATTRIBUTES_OF = {"hair": ("hair", "hair_colour")}


def _channels_last(pictures: torch.Tensor) -> Array:
    made: Array = pictures.movedim(1, -1).cpu().numpy()
    return made


def draw_examples(edits: Sequence[Edit], drawer: Drawer, *, seed: int = 0) -> Examples:
    """Draw references and truth of ``edits``."""
    rng = np.random.default_rng([seed, 12])
    own, other = sample_jitter(rng, len(edits)), sample_jitter(rng, len(edits))
    before, truths, givers = (
        _channels_last(drawer.draw(np.array([as_looks(person) for person in people]), jitter))
        for people, jitter in (
            ([edit.before for edit in edits], own),
            ([edit.after for edit in edits], own),
            ([edit.giver or edit.before for edit in edits], other),
        )
    )
    givers[[edit.giver is None for edit in edits]] = 0
    return Examples(edits=edits, references=np.stack([before, givers], axis=1), truths=truths)


def reference_latents(pipeline: Any, references: Array) -> torch.Tensor:
    """Latents (B, 8, 16, 16 R) of R pictures side by side, which the pipeline takes as ``image``.

    Each is encoded alone, because the autoencoder's norms take in the whole picture.

    Args:
        pipeline: a ``FluxKontextPipeline``.
        references: (B, R, 64, 64, 3), float in 0..1.
    """
    vae = pipeline.vae
    pictures = torch.from_numpy(references).movedim(-1, 2).to(vae.device, vae.dtype)
    return torch.cat([encode(vae, picture) for picture in pictures.unbind(1)], dim=3)


def generate(pipeline: Any, examples: Examples, sampling: dict[str, Any], *, seed: int = 1000) -> Array:
    """The pictures (B, 64, 64, 3) that ``pipeline`` makes of ``examples``, the first from noise of ``seed``."""
    made = np.zeros_like(examples.truths)
    for number in (1, 2):
        asked = [at for at, edit in enumerate(examples.edits) if (edit.giver is not None) == (number == 2)]
        for start in range(0, len(asked), BATCH_SIZE):
            chunk = asked[start : start + BATCH_SIZE]
            images = pipeline(
                prompt=[examples.edits[at].instruction for at in chunk],
                image=reference_latents(pipeline, examples.references[chunk, :number]),
                generator=[torch.Generator().manual_seed(seed + at) for at in chunk],
                output_type="np",
                **sampling,
            ).images
            made[chunk] = images
    return made


def seconds_each(pipeline: Any, examples: Examples, sampling: dict[str, Any], *, repeats: int = 5) -> float:
    """Seconds of computation, of all cores, that an edit of one picture takes, called alone on a CPU."""
    alone = examples.with_references(1).some([0])
    generate(pipeline, alone, sampling)
    start = time.process_time()
    for _ in range(repeats):
        generate(pipeline, alone, sampling)
    return (time.process_time() - start) / repeats


@torch.no_grad()
def reconstruct(pipeline: Any, pictures: Array) -> Array:
    """``pictures`` (B, 64, 64, 3) after the pipeline's autoencoder."""
    vae = pipeline.vae
    latents = vae.encode(torch.from_numpy(pictures).movedim(-1, 1).to(vae.device, vae.dtype) * 2 - 1).latent_dist.mode()
    return _channels_last((vae.decode(latents).sample / 2 + 0.5).clamp(0, 1))


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Shares in 0..1, and the mean PSNR in dB to the drawn truth.

    Attributes:
        changed_right: of the attributes that an instruction changes.
        kept_right: of those that it leaves.
        edits_right: of edits with every attribute right.
        by_aspect: share of changes right, by aspect.
        with_two_right: of edits with two references, with every attribute right.
        psnr: to the drawing.
    """

    changed_right: float
    kept_right: float
    edits_right: float
    by_aspect: dict[str, float]
    with_two_right: float
    psnr: float


def _share(verdicts: Sequence[bool]) -> float:
    return float(np.mean(verdicts)) if verdicts else float("nan")


def judge(examples: Examples, made: Array, check: Callable[[Any, Array], dict[str, bool]] = check) -> Figures:
    """Read ``made`` (edits, 64, 64, 3) back and compare with what was asked."""
    changed: dict[str, list[bool]] = {}
    kept: list[bool] = []
    whole: list[bool] = []
    for edit, image in zip(examples.edits, made, strict=True):
        right = check(edit.after, image)
        asked = {name: aspect for aspect in edit.changed for name in ATTRIBUTES_OF.get(aspect, (aspect,))}
        for aspect in edit.changed:
            names = ATTRIBUTES_OF.get(aspect, (aspect,))
            changed.setdefault(aspect, []).append(all(right.get(name, True) for name in names))
        kept += [value for name, value in right.items() if name not in asked]
        whole.append(all(right.values()))
    mse = np.square(made - examples.truths).mean(axis=(1, 2, 3))
    return Figures(
        changed_right=_share([value for values in changed.values() for value in values]),
        kept_right=_share(kept),
        edits_right=_share(whole),
        by_aspect={aspect: _share(values) for aspect, values in sorted(changed.items())},
        with_two_right=_share([is_right for edit, is_right in zip(examples.edits, whole, strict=True) if edit.giver]),
        psnr=float(np.mean(-10 * np.log10(mse))),
    )


def save_sheet(
    examples: Examples, made: Array, path: Path, *, count: int = 24, columns: int = 2, side: int = 128
) -> None:
    """A picture of the first ``count`` edits: the references, the instruction, what was made, and the truth.

    Each picture is ``side`` pixels wide.
    """
    from PIL import Image, ImageDraw

    letters = max(side // 6, 12)
    gap, wide = side // 20, 17 * letters
    row_width = 4 * (side + gap) + wide
    count = min(count, len(made))
    rows = -(-count // columns)
    sheet = Image.new("RGB", (columns * row_width, rows * (side + gap)), "white")
    write = ImageDraw.Draw(sheet)
    for index in range(count):
        edit = examples.edits[index]
        left, top = index % columns * row_width, index // columns * (side + gap)
        shown = [*examples.references[index], None, made[index], examples.truths[index]]
        for picture in shown:
            if picture is None:
                words, lines = edit.instruction.split(), [""]
                for word in words:
                    lines = [*lines, word] if len(lines[-1]) + len(word) > 26 else [*lines[:-1], f"{lines[-1]} {word}"]
                place = left + letters // 2, top + side // 3
                write.multiline_text(place, "\n".join(lines).strip(), fill="black", font_size=letters)
                left += wide - 2 * letters
            else:
                image = Image.fromarray((picture * 255).round().astype(np.uint8)).resize(
                    (side, side), Image.Resampling.LANCZOS
                )
                if picture.any():
                    sheet.paste(image, (left, top))
                left += side + gap
    # 256 colours are a third of the bytes; nobody sees the difference.
    sheet.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
