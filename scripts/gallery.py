"""Make docs/gallery (the demo on images, the demo on clips, a comparison with peers) and the pictures in docs/images.

    python scripts/gallery.py                  # all of it, about two minutes
    python scripts/gallery.py peers            # the comparison's page again, from bench/results/compare_faces.json
    python scripts/gallery.py peers --points FILE.json
    python scripts/gallery.py images clips --again      # the pages only, of the demos' results in out/gallery
    python scripts/gallery.py pictures         # docs/images only, of the results in bench/results

The pages are what `python -m reference demo` and `omnireuse compare` write; nothing is added here but the list of them.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from msgspec.structs import replace
from PIL import Image

from omnireuse_lab.record import Case, Comparison, read_comparison
from omnireuse_lab.report.page import write_page
from omnireuse_lab.report.style import DARK, LIGHT
from reference.commands import main as reference
from reference.demo.page import write_demo_page
from reference.demo.record import read_demo
from reference.figures import comparison_figure, save_figure
from reference.pictures import difference, read_frames

TOP = Path(__file__).parents[1]
GALLERY = TOP / "docs" / "gallery"
IMAGES = TOP / "docs" / "images"
RESULTS = TOP / "bench" / "results"
NEWER = RESULTS / "compare_default.json"
"""Of the default and `speedup`, measured again after the others."""
GONE = "best_order"
"""A forecaster in the records that the library no longer has: nobody could copy its calls."""
SIDE = 192
"""Pixels of a picture in a small picture of a page."""
LARGEST = 700_000
"""Bytes of a page, so that the repository stays quick to clone."""
PAGES = {
    "images": (
        "Faces",
        "Four people in full, with each cache and with fewer steps, and the differences.",
        "A picture of the full run, of the default and of fewer steps, and below the differences to the full run.",
    ),
    "clips": (
        "Clips",
        "Two clips of a coloured shape that moves, played in step, and the differences.",
        "A frame of the full run, of the default and of fewer steps, and below the differences to the full run.",
    ),
    "peers": (
        "Beside other caches",
        "Faces by every method over its settings: each point explained, with the call to copy.",
        "A plot of closeness to the full run over computed steps, a line for each method.",
    ),
}
"""Name -> heading, what is seen there, and what its small picture shows."""
PICTURES = "pictures"
INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>omnireuse: gallery</title>
<style>
:root {{ {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }}
main {{ max-width: 1180px; margin: 0 auto; padding: clamp(1.25rem, 4vw, 3rem) clamp(1rem, 4vw, 2.5rem); }}
h1 {{ font-size: clamp(1.6rem, 4vw, 2.2rem); letter-spacing: -.025em; line-height: 1.15; margin: 0 0 .5rem; }}
p {{ color: var(--muted); margin: 0 0 1.5rem; max-width: 70ch; }}
ul {{ list-style: none; margin: 0; padding: 0; display: grid; gap: 1.25rem; grid-template-columns: repeat(3, 1fr); }}
a {{ display: block; height: 100%; color: inherit; text-decoration: none; background: var(--card);
  border: 1px solid var(--line); border-radius: 14px; overflow: hidden; }}
a:hover, a:focus-visible {{ border-color: var(--highlight); outline: 2px solid var(--highlight); }}
img {{ display: block; width: 100%; aspect-ratio: 3 / 2; object-fit: cover; background: #fff; }}
h2 {{ font-size: 1.1rem; margin: .9rem 1.1rem .2rem; color: var(--highlight); }}
a p {{ margin: 0 1.1rem 1.1rem; font-size: .9rem; }}
@media (max-width: 800px) {{ ul {{ grid-template-columns: 1fr; }} }}
</style>
<main>
<h1>Gallery</h1>
<p>Reports as omnireuse writes them: each page is one file, needs no network, and was made by a command that anyone
can run again, <code>python scripts/gallery.py</code>.</p>
<ul>
{pages}
</ul>
</main>
</html>
"""


def make(name: str, points: Path, *, again: bool) -> None:
    """Write one page; the command line's own errors end the script."""
    folder, page = TOP / "out" / "gallery" / name, GALLERY / f"{name}.html"
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "report.json"
    if name == "peers":
        comparison = callable_now(usual(read_comparison(points)))
        write_page(comparison, page)
        write_plot(name, comparison)
    else:
        kind = ["--prompts", "4"] if name == "images" else ["--video", "--prompts", "2"]
        if not again and (status := reference(["demo", *kind, "--out", str(folder)])):
            raise SystemExit(status)
        write_demo_page(read_demo(results), folder, page)
        write_thumbnail(name, results)
    if page.stat().st_size > LARGEST:
        size = page.stat().st_size
        raise SystemExit(f"{page}: must be at most {LARGEST:,} bytes, got {size:,}; take fewer prompts or points")


def usual(comparison: Comparison) -> Comparison:
    """Of each pipeline the guided case of fewest steps, as it is usually sampled; all cases would be megabytes."""
    found: dict[str, Case] = {}
    for case in sorted(comparison.cases, key=lambda case: (case.guidance <= 1.0, case.steps)):
        found.setdefault(case.pipeline, case)
    return replace(comparison, cases=tuple(found.values()))


def callable_now(comparison: Comparison) -> Comparison:
    """Without the points of what the library no longer has."""
    cases = []
    for case in comparison.cases:
        points = tuple(point for point in case.points if GONE not in point.call)
        cases.append(replace(case, points=points))
    return replace(comparison, cases=tuple(cases))


def with_newer(comparison: Comparison) -> Comparison:
    """The comparison with the points of `NEWER` in place of the same methods' own."""
    newer = {(case.pipeline, case.steps, case.guidance): case.points for case in read_comparison(NEWER).cases}
    cases = []
    for case in comparison.cases:
        found = newer.get((case.pipeline, case.steps, case.guidance), ())
        methods = {point.method for point in found}
        points = (*(point for point in case.points if point.method not in methods), *found)
        cases.append(replace(case, points=points))
    return replace(comparison, cases=tuple(cases))


def write_index() -> None:
    """List the pages that are there, each with its small picture."""
    found = [
        f'<li><a href="{name}.html"><img src="{name}.webp" alt="{shown}"><h2>{heading}</h2><p>{words}</p></a></li>'
        for name, (heading, words, shown) in PAGES.items()
        if (GALLERY / f"{name}.html").exists()
    ]
    light, dark = ("; ".join(f"--{name}: {value}" for name, value in theme.items()) for theme in (LIGHT, DARK))
    text = INDEX.format(pages="\n".join(found), light=light, dark=dark)
    (GALLERY / "index.html").write_text(text, encoding="utf-8")


def write_plot(name: str, comparison: Comparison) -> None:
    """The small picture of a comparison for the index: the plot of its first case."""
    figure = comparison_figure(replace(comparison, cases=comparison.cases[:1]))
    # At this size neither can be read; the page has both.
    figure.legends[0].remove()
    figure.suptitle("")
    figure.set_size_inches(6.0, 4.0)
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=100)
    Image.open(held).convert("RGB").save(GALLERY / f"{name}.webp", quality=80, method=6)


def write_thumbnail(name: str, results: Path) -> None:
    """The small picture of a demo for the index: the prompt that differs most."""
    demo = read_demo(results)
    plain = demo.baseline_of(0)
    shown = [demo.full, demo.samples[0], *([] if plain is None else [demo.samples[plain]])]
    differ = min(range(len(demo.case.prompts)), key=lambda number: shown[-1][number].psnr)
    frames = [read_frames(results.parent / each[differ].image) for each in shown]
    pictures = [each[len(each) // 2].resize((SIDE, SIDE), Image.Resampling.NEAREST) for each in frames]
    picture = Image.new("RGB", (SIDE * len(pictures), 2 * SIDE))
    for column, one in enumerate(pictures):
        picture.paste(one, (SIDE * column, 0))
        picture.paste(difference(one, pictures[0]), (SIDE * column, SIDE))
    picture.save(GALLERY / f"{name}.webp", quality=80, method=6)


def write_pictures() -> None:
    """The plot of the comparisons, from the results of the benchmarks."""
    held = io.BytesIO()
    save_figure(comparison_figure(callable_now(with_newer(read_comparison(RESULTS / "compare.json")))), held, dpi=130)
    write_small(Image.open(held), IMAGES / "compare.png")


def write_small(picture: Image.Image, path: Path) -> None:
    """As a PNG of 256 colours, which charts do not exceed visibly."""
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path}: must be at most {LARGEST:,} bytes, got {path.stat().st_size:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help=f"{', '.join((*PAGES, PICTURES))} (default: all)")
    parser.add_argument("--points", type=Path, default=RESULTS / "compare_faces.json")
    parser.add_argument("--again", action="store_true", help="of the demos whose results lie in out/gallery already")
    arguments = parser.parse_args()
    if unknown := set(arguments.pages) - {*PAGES, PICTURES}:
        parser.error(f"no page {', '.join(sorted(unknown))}; known: {', '.join((*PAGES, PICTURES))}")
    GALLERY.mkdir(exist_ok=True)
    for name in arguments.pages or (*PAGES, PICTURES):
        if name == PICTURES:
            write_pictures()
        else:
            make(name, arguments.points, again=arguments.again)
    write_index()
