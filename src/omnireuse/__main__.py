"""``python -m omnireuse`` is the command ``omnireuse``."""

from __future__ import annotations

import sys

from omnireuse.cli import main

if __name__ == "__main__":
    sys.exit(main())
