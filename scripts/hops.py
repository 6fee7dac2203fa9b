"""The calls of one reused step within the package, from the denoiser's cache context to the end of the step.

    python scripts/hops.py [--check]

Runs the reference image pipeline with the default, without and with `callback_on_step_end`, and with its calibrated
profile, follows the first reused step behind the middle of the run with `sys.setprofile`, and prints its functions in
the order in which they are entered. With ``--check`` more calls or changes of file than the limits are an error, and so
are stations of docs/explanation/one-step.md that a step with a callback does not pass in the page's order.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import omnireuse
from reference.case import IMAGES

ROOT = str(Path(omnireuse.__file__).parent)
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "one-step.md"
STEPS = 28


class Call(NamedTuple):
    """A function of the package that was entered."""

    file: str
    function: str


class Limit(NamedTuple):
    """Of calls and changes of file in a reused step; may only go down."""

    calls: int
    changes: int


GOALS = {"default": Limit(37, 17), "with a callback": Limit(48, 20), "calibrated": Limit(48, 20)}
LIMITS = {"default": Limit(37, 17), "with a callback": Limit(48, 20), "calibrated": Limit(64, 40)}


class Hops:
    """The functions entered at each step of a run."""

    def __init__(self) -> None:
        self.by_step: list[list[Call]] = []
        self._entered: list[Call] = []

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """Take one event of `sys.setprofile`."""
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            self._entered.append(Call(name.removeprefix(ROOT + "/"), frame.f_code.co_name))

    @contextmanager
    def progress_bar(self, *_: Any, **__: Any) -> Iterator[Hops]:
        """A pipeline's progress bar, which it moves at the end of each step."""
        yield self

    def update(self, *_: Any) -> None:
        """A step is over."""
        sys.setprofile(None)
        self.by_step.append(self._entered)
        self._entered = []
        sys.setprofile(self.watch)


def reused_step(options: dict[str, Any], call: dict[str, Any]) -> list[Call]:
    """The calls of the first reused step behind the middle of a run."""
    pipeline, hops = IMAGES.load(), Hops()
    pipeline.set_progress_bar_config(disable=True)
    prompts = [IMAGES.caption(scene) for scene in IMAGES.held_out(1, seed=11)]
    with omnireuse.enable(pipeline, **options) as handle:
        pipeline.progress_bar = hops.progress_bar
        try:
            IMAGES.generate(pipeline, prompts, [0], num_inference_steps=STEPS, **call)
        finally:
            sys.setprofile(None)
        reused = {event.step for event in handle.events if event.reused}
    return hops.by_step[min(step for step in reused if step >= STEPS // 2)]


def walks() -> dict[str, list[Call]]:
    """The calls of a reused step for each way of enabling reuse."""
    untuned: dict[str, Any] = {"tune": False}
    profile = IMAGES.find(None) / "profiles" / f"{IMAGES.name}-{STEPS}-guided.json"
    return {
        "default": reused_step(untuned, {}),
        "with a callback": reused_step(untuned, {"callback_on_step_end": lambda *_: {}}),
        "calibrated": reused_step({"profile": str(profile)}, {}),
    }


def totals(calls: list[Call]) -> Limit:
    """How many there are, and how often the file changes."""
    return Limit(len(calls), sum(a.file != b.file for a, b in pairwise(calls)))


def stations(page: Path = PAGE) -> list[str]:
    """The functions that the headings of the page name, in their order."""
    return re.findall(r"^## \d+\. .*`(\w+)`", page.read_text("utf-8"), re.MULTILINE)


def missed(named: list[str], calls: list[Call]) -> list[str]:
    """The functions that are not entered in this order."""
    entered = iter([call.function for call in calls])
    return [name for name in named if name not in entered]


def main() -> None:
    """Print the calls for each way of enabling reuse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit status 1 above a limit")
    given = parser.parse_args()
    for name, calls in walks().items():
        found = totals(calls)
        print(f"{name}: {found.calls} calls with {found.changes} changes of file")
        for each in calls:
            print(f"    {each.file:28} {each.function}")
        if given.check and (found.calls > LIMITS[name].calls or found.changes > LIMITS[name].changes):
            sys.exit(f"{name}: above {LIMITS[name]}")
        if given.check and name == "with a callback" and (lost := missed(stations(), calls)):
            sys.exit(f"{PAGE.name}: a reused step does not enter {', '.join(lost)} in this order")


if __name__ == "__main__":
    main()
