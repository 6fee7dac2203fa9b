"""Which files of the package one reused step passes, from the call of the denoiser to the step of the scheduler.

    python scripts/hops.py [--check]

Runs the reference image pipeline with the default and with its calibrated profile, follows the first reused step behind
the middle of the run with `sys.setprofile`, and prints the files in the order in which they are entered.
With ``--check`` more files than the limit are an error.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import omnireuse
from reference.case import IMAGES

ROOT = str(Path(omnireuse.__file__).parent)
STEPS = 28
LIMIT = 12
"""Files; may only go down."""


class Hops:
    """The files entered at each step of a run."""

    def __init__(self) -> None:
        self.by_step: list[list[str]] = []
        self._entered: list[str] = []

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """Take one event of `sys.setprofile`."""
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            self._entered.append(name.removeprefix(ROOT + "/"))

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


def main() -> None:
    """Print the files for each way of enabling reuse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help=f"exit status 1 above {LIMIT} files")
    check = parser.parse_args().check
    pipeline = IMAGES.load()
    pipeline.set_progress_bar_config(disable=True)
    prompts = [IMAGES.caption(scene) for scene in IMAGES.held_out(1, seed=11)]
    profile = IMAGES.find(None) / "profiles" / f"{IMAGES.name}-{STEPS}-guided.json"
    for name, options in (("default", {"tune": False}), ("calibrated", {"profile": str(profile)})):
        hops = Hops()
        with omnireuse.enable(pipeline, **options) as handle:
            pipeline.progress_bar = hops.progress_bar
            try:
                IMAGES.generate(pipeline, prompts, [0], num_inference_steps=STEPS)
            finally:
                sys.setprofile(None)
                del pipeline.progress_bar
            reused = {event.step for event in handle.events if event.reused}
        step = min(step for step in reused if step >= STEPS // 2)
        entered = hops.by_step[step]
        files, changes = Counter(entered), sum(a != b for a, b in pairwise(entered))
        print(f"{name}: step {step} passes {len(files)} files in {len(entered)} calls with {changes} changes of file")
        for file, calls in files.items():
            print(f"    {calls:3}  {file}")
        if check and len(files) > LIMIT:
            sys.exit(f"{name}: {len(files)} files are above {LIMIT}")


if __name__ == "__main__":
    main()
