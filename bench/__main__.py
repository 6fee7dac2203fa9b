"""``python -m bench NAME [options]``; without a name, all of them with their defaults."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from omnireuse.errors import OmniReuseError, UnknownNameError

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def main() -> int:
    """Run the named benchmark, or each in turn; one that cannot run here says why, and the next one follows."""
    name, *options = sys.argv[1:] or [None]
    if name in ("-h", "--help"):
        print(__doc__, f"Benchmarks: {', '.join(NAMES)}.", "Each has --help of its own.", sep="\n")
        return 0
    status = 0
    for each in NAMES if name is None else [name]:
        try:
            if each not in NAMES:
                raise UnknownNameError("benchmark", each, NAMES)
            import_module(f"bench.{each}").main(options)
        except OmniReuseError as error:
            print(f"bench: {error}", file=sys.stderr)
            status = 2
    return status


# Benchmarks measure the untuned default; the one of tuning turns it on by itself.
os.environ.setdefault("OMNIREUSE_TUNE", "0")
sys.exit(main())
