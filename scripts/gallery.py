"""Make docs/gallery: the demo on images, the demo on clips, and a comparison with peers.

    python scripts/gallery.py                  # all of it, about two minutes
    python scripts/gallery.py peers            # the comparison's page again, from bench/results/compare.json
    python scripts/gallery.py peers --points FILE.json
    python scripts/gallery.py images clips --again      # the pages only, of the demos' results in out/gallery

The pages are what `omnireuse demo` and `omnireuse report` write; nothing is added here but the list of them.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from omnireuse.cli import main as omnireuse
from omnireuse.report.pareto import Case, Pareto, read_pareto, write_pareto

TOP = Path(__file__).parents[1]
GALLERY = TOP / "docs" / "gallery"
LARGEST = 600_000
"""Bytes of a page, so that the repository stays quick to clone."""
PAGES = {
    "images": ("Images", "The full run under a slider against each cache and against fewer steps, four prompts."),
    "clips": ("Clips", "Videos side by side, played in step, two prompts."),
    "peers": ("Beside other caches", "Methods over their settings: every point explained, with the call to copy."),
}
INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>omnireuse: gallery</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem; }}</style>
<h1>Gallery</h1>
<p>Reports as omnireuse writes them: each page is one file, needs no network, and was made by a command that anyone
can run again, <code>python scripts/gallery.py</code>.</p>
{pages}
</html>
"""


def make(name: str, points: Path, *, again: bool) -> None:
    """Write one page; the command line's own errors end the script."""
    folder, page = TOP / "out" / "gallery" / name, GALLERY / f"{name}.html"
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    if name == "peers":
        write_pareto(usual(read_pareto(points)), results)
    elif not again:
        kind = ["--prompts", "4"] if name == "images" else ["--video", "--prompts", "2"]
        run("demo", *kind, "--out", str(folder))
    run("report", str(results), "--out", str(page))
    if page.stat().st_size > LARGEST:
        size = page.stat().st_size
        raise SystemExit(f"{page}: must be at most {LARGEST:,} bytes, got {size:,}; take fewer prompts or points")


def run(*command: str) -> None:
    """A command of omnireuse, or the end of the script."""
    if status := omnireuse(command):
        raise SystemExit(status)


def usual(pareto: Pareto) -> Pareto:
    """Of each pipeline the guided case of fewest steps, as it is usually sampled; all cases would be megabytes."""
    found: dict[str, Case] = {}
    for case in sorted(pareto.cases, key=lambda case: (case.guidance <= 1.0, case.steps)):
        found.setdefault(case.pipeline, case)
    return replace(pareto, cases=tuple(found.values()))


def write_index() -> None:
    """List the pages that are there."""
    found = [
        f'<h2><a href="{name}.html">{heading}</a></h2>\n<p>{words}</p>'
        for name, (heading, words) in PAGES.items()
        if (GALLERY / f"{name}.html").exists()
    ]
    (GALLERY / "index.html").write_text(INDEX.format(pages="\n".join(found)), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help=f"{', '.join(PAGES)} (default: all)")
    parser.add_argument("--points", type=Path, default=TOP / "bench" / "results" / "compare.json")
    parser.add_argument("--again", action="store_true", help="of the demos whose results lie in out/gallery already")
    arguments = parser.parse_args()
    if unknown := set(arguments.pages) - set(PAGES):
        parser.error(f"no page {', '.join(sorted(unknown))}; known: {', '.join(PAGES)}")
    GALLERY.mkdir(exist_ok=True)
    for name in arguments.pages or PAGES:
        make(name, arguments.points, again=arguments.again)
    write_index()
