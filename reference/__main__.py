"""``python -m reference``: the demo."""

from __future__ import annotations

import sys

from reference.commands import main

if __name__ == "__main__":
    sys.exit(main())
