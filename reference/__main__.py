"""``python -m reference``: the demos and the trace replay."""

from __future__ import annotations

import sys

from reference.commands import main

if __name__ == "__main__":
    sys.exit(main())
