"""What `quality=` without a profile comes to, caption by caption: PSNR in dB of reuse to the full run.

    python -m bench quality [--case shapes-flux …] [--run "shift 1" …] [--guidance guided] [--methods fixed tuned]

A quality is kept where nine of ten captions reach it. Three methods:

- "fixed": the untuned default with so many computed steps, by halving, to find the smallest number that keeps each
  quality;
- "tuned": `quality=` after some captions of its own that nothing is judged on;
- "fewer": the solver with as many steps of its own as "tuned" computed on average.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from bench._common import new_table
from bench._resumable import Row, parser_of, record_of
from bench._tolerance_figures import part_of
from bench.tolerance import RUNS, SEED, SHARE, STEPS, Latents, add_options, measure
from omnireuse.pipelines.pictures import capped_psnr

QUALITIES = (35.0, 40.0, 45.0, 50.0)
METHODS = ("fixed", "tuned", "fewer")


class Pictures(Latents):
    """Pictures of one pipeline by each method, held against those of its full run."""

    aim = "quality"

    @classmethod
    def share(cls, row: Row, aim: float) -> float:
        """The share of the captions that reach a quality."""
        return statistics.fmean(each >= aim for each in row["each"])

    def made(self, places: Sequence[int], steps: int = STEPS) -> Any:
        """The pictures of these captions as the pipeline makes them now."""
        prompts, seeds = [self.prompts[place] for place in places], [SEED + place for place in places]
        return self.case.generate(self.pipeline, prompts, seeds, num_inference_steps=steps, **self.guidance)

    def judge(self, made: Any) -> Row:
        """PSNR of each to its full run."""
        return {"each": [round(capped_psnr(*pair), 2) for pair in zip(made, self._full, strict=True)]}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``quality.json`` and show a table."""
    parser = parser_of("quality", __doc__, RUNS, prompts=10)
    add_options(parser, METHODS)
    parser.add_argument("--qualities", dest="aims", nargs="+", type=float, default=list(QUALITIES))
    options = parser.parse_args(arguments)
    show(record_of("quality", options, partial(measure, player=Pictures))["rows"], Console())


def figures_of(rows: Sequence[Row]) -> Iterator[Row]:
    """For each quality in one part: computed steps, the share of captions that reach it, the lowest one's distance in
    dB, and the same of the smallest fixed number and of fewer steps."""
    tuned = [row for row in rows if row["method"] == "tuned"]
    for quality in sorted({row["setting"] for row in tuned}):
        own = [row for row in tuned if row["setting"] == quality]
        missed = [r["setting"] for r in rows if r["method"] == "fixed" and Pictures.share(r, quality) < SHARE]
        above = [r["setting"] for r in rows if r["method"] == "fixed" and r["setting"] > max(missed, default=0)]
        fixed, computed = min(above, default=STEPS), statistics.fmean(row["computed"] for row in own)
        fewer = [r for r in rows if r["method"] == "fewer" and r["setting"] == round(computed)]
        yield {
            "quality": quality,
            "fixed": fixed,
            "computed": computed,
            "ratio": computed / fixed,
            "share": statistics.fmean(Pictures.share(row, quality) for row in own),
            "lowest": min(min(row["each"]) for row in own) - quality,
            "fewer": Pictures.share(fewer[0], quality) if fewer else None,
        }


def show(rows: Sequence[Row], console: Console) -> None:
    """A table of every part and quality, and the sums in words."""
    headings = ("quality", "fixed", "tuned", "reach it", "lowest", "fewer")
    table = new_table("computed steps, and the captions that reach the quality", "run", *headings)
    every: list[Row] = []
    for part in dict.fromkeys(map(part_of, rows)):
        for found in figures_of([row for row in rows if part_of(row) == part]):
            every.append({"case": part[0], **found})
            fewer = "–" if found["fewer"] is None else f"{found['fewer']:.0%}"
            table.add_row(
                f"{part[0]}, {part[1]}, {'guided' if part[2] else 'unguided'}",
                f"{found['quality']:g}",
                str(found["fixed"]),
                f"{found['computed']:.1f}",
                f"{found['share']:.0%}{'' if found['share'] >= SHARE else '*'}",
                f"{found['lowest']:+.1f}",
                fewer,
            )
    console.print(table)
    cases = {row["case"] for row in every}
    for name, chosen in [("all", every), *((case, [e for e in every if e["case"] == case]) for case in sorted(cases))]:
        if chosen:
            console.print(f"{name}: {_sentence(chosen)}")


def _sentence(found: Sequence[Row]) -> str:
    kept = sum(each["share"] >= SHARE for each in found)
    fewer = [each["fewer"] for each in found if each["fewer"] is not None]
    return (
        f"kept in {kept} of {len(found)}, by {statistics.fmean(each['share'] for each in found):.0%} of the captions "
        f"({statistics.fmean(fewer or [0]):.0%} with fewer steps); "
        f"{statistics.fmean(each['computed'] for each in found):.1f} steps computed, "
        f"{statistics.fmean(each['ratio'] for each in found):.2f} times the smallest fixed number, within 1.25 in "
        f"{sum(each['ratio'] <= 1.25 for each in found)}"
    )


if __name__ == "__main__":
    main()
