from __future__ import annotations

import sys
from pathlib import Path

# The tiny pipelines are shared with the tests of step reuse.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "diffusion")]
