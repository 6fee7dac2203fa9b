"""What MagCache needs of a model: published ratios, measured ones in a file, and which stream to measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omnireuse.diffusion.adapters import block_stack_for
from omnireuse.diffusion.adapters.extractors import has_extractor
from omnireuse.diffusion.cache.published import published_row
from omnireuse.diffusion.calibration.mag_cache import MagnitudeRecorder
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.errors import ConfigError, UnsupportedModelError

__all__ = ["load_ratios", "published_ratios", "recorder_for", "save_ratios"]

FORMAT = 2
"""Of the file; one without a format is of the first, whose ratios begin at the second step."""

Ratios = tuple[tuple[float, ...], ...]


def published_ratios(transformer_type: str, checkpoint: str = "") -> Ratios:
    """Ratios that others measured for a checkpoint of this class: for each branch one for each step, the first 1.0.

    Args:
        transformer_type: class name of the denoiser.
        checkpoint: name or path of the pipeline; where the table does not have it, the class's first row is taken.

    Raises:
        UnknownNameError: none published; the error lists the types and says how to calibrate.
    """
    row = published_row(
        "magcache_ratios",
        transformer_type,
        checkpoint,
        calibrate="to measure: generate with mag_calibrate=True and take calibrated_ratios()",
    )
    count = row["branches"]
    # The table leaves out the first step's 1.0 of each branch.
    return tuple((1.0, *row["ratios"][branch::count]) for branch in range(count))


def save_ratios(path: Path, pipeline: Any, ratios: Ratios) -> None:
    """Write measured ratios as JSON, with the class of the pipeline's denoiser; `load_ratios` reads them back."""
    model = type(unwrapped(denoisers_of(pipeline)[0])).__name__
    record = {"format": FORMAT, "transformer_class": model, "ratios": ratios, "source": "measured"}
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(record, indent=1), encoding="utf-8")
    part.replace(path)


def load_ratios(path: Path) -> Ratios:
    """What `MagCacheBackend.save_ratios` wrote.

    Raises:
        ConfigError: a file cut off or of another kind.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if (given := record.get("format", 1)) not in (1, FORMAT):
            raise ValueError(f"format {given!r} is not {FORMAT}")
        ratios = tuple(tuple(float(ratio) for ratio in branch) for branch in record["ratios"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"load_ratios({str(path)!r}): not a file of MagCache ratios: {error!r}") from error
    return tuple((1.0, *branch) for branch in ratios) if given == 1 else ratios


def recorder_for(transformer_type: str) -> MagnitudeRecorder:
    """A recorder of the stream that becomes the output of this denoiser.

    Raises:
        UnsupportedModelError: an extractor serves the model.
        UnknownNameError: nobody has declared the model.
    """
    if has_extractor(transformer_type):
        raise UnsupportedModelError(
            "MagCache calibration needs a declared model; models with extractors take mag_ratios"
        )
    stack = block_stack_for(transformer_type)
    return MagnitudeRecorder(num_streams=len(stack.streams), stream=stack.main_stream)
