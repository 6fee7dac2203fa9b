"""``python -m bench NAME [options]``; without a name, all of them with their defaults."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from omnireuse.errors import OmniReuseError, UnknownNameError

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def main() -> int:
    """Run the named benchmark, or each in turn."""
    name, *options = sys.argv[1:] or [None]
    try:
        if name is not None and name not in NAMES:
            raise UnknownNameError("benchmark", name, NAMES)
        for each in NAMES if name is None else [name]:
            import_module(f"bench.{each}").main(options)
    except OmniReuseError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


sys.exit(main())
