"""One prompt three times from the same noise: in full, with reuse, and with as few plain steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import omnireuse
from omnireuse.pipelines import Caller, Signature, Source, capped_psnr, without_bar

__all__ = ["Example", "demonstrate", "example_of"]

PROMPT, STEPS = "a large red circle on a plain gray background", 28
"""Assumed if neither the caller nor the model's card says anything."""


class Example(NamedTuple):
    """A call that the card of a model shows.

    Attributes:
        prompt: the first text of its ``widget``; None without any.
        call: its ``inference.parameters``, by argument.
    """

    prompt: str | None
    call: Mapping[str, Any]


def example_of(place: str) -> Example:
    """The example in the card (README.md) of a model, which is empty if there is no card or none in it.

    Args:
        place: folder of the model, or its id on the hub.
    """
    from huggingface_hub import hf_hub_download, metadata_load
    from huggingface_hub.errors import HfHubHTTPError
    from yaml import YAMLError  # type: ignore[import-untyped]  # it has no types

    card = Path(place) / "README.md"
    try:
        found = metadata_load(card if Path(place).is_dir() else hf_hub_download(place, card.name)) or {}
    except (OSError, ValueError, HfHubHTTPError, YAMLError):  # no card, or none that can be read
        return Example(None, {})
    widgets, inference = found.get("widget"), found.get("inference")
    texts = [each.get("text") for each in widgets if isinstance(each, dict)] if isinstance(widgets, list) else []
    call = inference.get("parameters") if isinstance(inference, dict) else None
    return Example(next((text for text in texts if text), None), call if isinstance(call, dict) else {})


def demonstrate(
    source: Source,
    prompt: str | None,
    *,
    steps: int | None,
    speedup: float,
    seed: int,
    call: Mapping[str, Any] | None,
    out: Path,
) -> Iterator[str]:
    """Draw one prompt three times, and write "full.png", "reused.png" and "fewer.png" to a folder.

    Args:
        prompt: what to draw, and so `steps` and `call`: what is left out comes from the model's card if that has it,
            and is assumed otherwise.
        speedup: all steps divided by computed steps, ≥ 1.
        out: the folder, which is made.

    Returns:
        Where the prompt and the call come from, then a line for each picture when it is there: computed steps, seconds
        and dB to the full run, at most 100. Then the summary of the reuse.
    """
    pipeline = source.load()
    shown = example_of(str(source.given)) if source.is_place else Example(None, {})
    takes = Signature.of(pipeline).takes
    known = {name: value for name, value in shown.call.items() if takes(name)}
    if unknown := [name for name in shown.call if name not in known]:
        yield f"left out of the model's card, because {type(pipeline).__name__} does not take it: {', '.join(unknown)}"
    number = known.pop("num_inference_steps", None)
    words, total = prompt or shown.prompt or PROMPT, steps or number or STEPS
    arguments = {**known, **(call or {})}
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "the pipeline's own defaults"
    given = "as given, and from the model's card" if known else "as given"
    for what, origin, found, used in (
        ("prompt", prompt and "as given", shown.prompt, words),
        ("steps", steps and "as given", number, total),
        ("call", call and given, known, text),
    ):
        other = "from the model's card" if found else f"assumed, for no card of the model has it; --{what} sets it"
        yield f"{what} ({origin or other}): {used}"
    caller, pictures = Caller(pipeline, [words], seed=seed, call=arguments), []
    out.mkdir(parents=True, exist_ok=True)

    def draw(name: str, number: int) -> str:
        begun = time.perf_counter()
        with without_bar(pipeline):
            (picture,) = caller.pictures([0], strict=False, num_inference_steps=number)
        seconds = time.perf_counter() - begun
        pictures.append(picture)
        frame = picture if picture.ndim == 3 else picture[0]
        Image.fromarray((255 * np.clip(frame, 0, 1)).round().astype(np.uint8).squeeze()).save(out / f"{name}.png")
        distance = f", {capped_psnr(picture, pictures[0]):.1f} dB to the full run" if name != "full" else ""
        return f"in {seconds:.2f} s{distance}"

    yield f"{out / 'full.png'}: {total} computed steps {draw('full', total)}"
    with omnireuse.enable(pipeline, speedup=speedup, tune=False) as handle:
        said = draw("reused", total)
        summary = handle.summary()
    yield f"{out / 'reused.png'}: {summary.computed_steps:g} computed steps {said}"
    few = max(round(summary.computed_steps), 1)
    yield f"{out / 'fewer.png'}: {few} computed steps {draw('fewer', few)}"
    yield str(summary)
