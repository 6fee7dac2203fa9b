"""Write the records of bench/results and the pictures of docs/images with fewer bytes, so that a checkout stays small.

    python scripts/compact.py

Measured figures of comparisons (PSNR, SSIM, seconds, scores) keep five significant digits, what they were measured with
keeps all. Records are written without indentation; what does not fit a line is broken into one line an entry. A record
that does not name its revision stays as it is, because `scripts/figures.py --older` takes that of its last change.
Pictures get 256 colours; those that compare many samples of a model keep every pixel.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

TOP = Path(__file__).resolve().parents[1]
RESULTS, IMAGES = TOP / "bench" / "results", TOP / "docs" / "images"
#: Pictures of IMAGES that compare many samples of a model.
SAMPLES = {"lead", "lead-phone"}
MEASURED = {"psnr", "each", "ssim", "speedup", "seconds", "scores"}
WIDTH = 120
#: Smaller files stay as they are.
SMALLEST = 40_000


def rounded(value: Any) -> Any:
    """``value`` with five significant digits in every float."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def measured_rounded(value: Any) -> Any:
    """``value`` with what is `MEASURED` rounded."""
    if isinstance(value, dict):
        return {name: (rounded if name in MEASURED else measured_rounded)(each) for name, each in value.items()}
    return [measured_rounded(each) for each in value] if isinstance(value, list) else value


def as_text(value: Any) -> str:
    """JSON of ``value``, an entry a line where a line does not hold it."""
    short = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    flat = not isinstance(value, (dict, list)) or not any(
        isinstance(each, (dict, list)) for each in (value.values() if isinstance(value, dict) else value)
    )
    if len(short) <= WIDTH or flat:
        return short
    if isinstance(value, dict):
        entries = [f"{json.dumps(name)}:{as_text(each)}" for name, each in value.items()]
        return "{" + ",\n".join(entries) + "}"
    return "[" + ",\n".join(as_text(each) for each in value) + "]"


def names_revision(record: dict[str, Any]) -> bool:
    """Whether ``record`` says which revision it was made with."""
    return "revision" in {**record.get("environment", {}), **record.get("run", {})}


def compact_record(path: Path) -> None:
    """Write one record again, if it is large."""
    record = json.loads(path.read_text("utf-8"))
    if path.stat().st_size < SMALLEST or not names_revision(record):
        return
    record = measured_rounded(record) if record.get("kind") == "comparison" else record
    path.write_text(as_text(record) + "\n", "utf-8")


def compact_picture(path: Path) -> None:
    """Write one picture again, unless it has a palette already.

    Raises:
        SystemExit: when the picture is transparent somewhere.
    """
    picture: Image.Image = Image.open(path)
    if picture.mode == "P":
        return
    if picture.mode == "RGBA" and picture.getchannel("A").getextrema() != (255, 255):
        raise SystemExit(f"{path}: must be opaque")
    picture = picture.convert("RGB")
    if path.stem not in SAMPLES:
        picture = picture.quantize(256, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)


def main() -> None:
    """Write all of them again, and say what that saves."""
    for files, compact in ((RESULTS.glob("*.json"), compact_record), (IMAGES.glob("*.png"), compact_picture)):
        for path in sorted(files):
            before = path.stat().st_size
            compact(path)
            print(f"{path.relative_to(TOP)}: {before:,} bytes, now {path.stat().st_size:,}")


if __name__ == "__main__":
    main()
