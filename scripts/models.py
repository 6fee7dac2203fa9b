"""Write docs/models.md: what is reused of which model, from the declarations, the published tables and the tests.

Usage: python scripts/models.py [--check]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

from omnireuse.diffusion.adapters import BLOCK_STACKS, UNSUPPORTED, BlockStack
from omnireuse.diffusion.cache.borrowed import borrowed_rows

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "models.md"
TRIED = (TOP / "tests" / "diffusion" / "tiny.py", *sorted((TOP / "tests" / "diffusion" / "pipelines").glob("*.py")))

HEAD = """\
# Models

Written by `python scripts/models.py`; a test keeps it current.

Regions `step` and `call` know nothing of the model: they serve every diffusers pipeline whose denoiser is its
`transformer`, `transformer_2`, `unet`, `prior` or `decoder`, and whose scheduler is told its timesteps. On tiny
versions of these pipelines they are tested to be bit-equal where everything computes, to do half of the work where half
is reused, and to leave nothing behind:
{pipelines}.

A denoiser that makes two kinds of latents (LTX-2: frames and sound) is served in region `call`, which forecasts both;
region `step` raises `UnsupportedModelError`, because the pipeline's scheduler is handed only one of them.

## Regions `blocks` and `tail`

Each model below is tested, in both regions, to be bit-equal to the plain model where it computes, and to give the sum
of input and residual through its own output layers where it reuses. The signal is what TeaCache watches. Published
figures are borrowed from their sources (`cache/data/*.json`), not measured here; without them, the caches are
calibrated on the model's own steps.

| denoiser | signal | TeaCache's coefficients for | MagCache's ratios for | to know |
|---|---|---|---|---|
"""

UNSERVED = """
## Served in regions `step` and `call` alone

Asking for region `blocks` or `tail` of these raises `UnsupportedModelError` with the reason.

| denoiser | why |
|---|---|
"""


def published(table: str, stack: BlockStack) -> str:
    """The checkpoints with figures for this model and its signal."""
    rows = [row for row in borrowed_rows(table) if row["transformer_class"] == stack.model]
    return "; ".join(row["checkpoint"] for row in rows if row.get("signal", stack.signal_name) == stack.signal_name)


def notes(stack: BlockStack) -> str:
    """What a user of this model should know."""
    said = []
    if stack.bypass:
        said.append(f"region `tail` always runs {', '.join(f'`{name}`' for name in stack.bypass)}")
    if stack.has_long_skips:
        said.append("region `tail` needs at least as many first blocks as last ones")
    return "; ".join(said)


def pipelines(paths: Iterable[Path]) -> list[str]:
    """The pipelines of diffusers that the tests build."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "diffusers":
                found |= {name.name for name in node.names if name.name.endswith("Pipeline")}
    return sorted(found)


def page() -> str:
    """The page as it should be."""
    tried = ", ".join(f"`{name}`" for name in pipelines(TRIED))
    lines = [HEAD.format(pipelines=tried)]
    for name, stack in sorted(BLOCK_STACKS.items()):
        cells = (
            f"`{name}`",
            stack.signal_name.replace("_", " "),
            published("teacache_coefficients", stack),
            published("magcache_ratios", stack),
            notes(stack),
        )
        lines.append("| " + " | ".join(cells) + " |\n")
    lines.append(UNSERVED)
    lines += [f"| `{name}` | {why} |\n" for name, why in sorted(UNSUPPORTED.items())]
    return "".join(lines)


def main() -> int:
    """Write the page, or with ``--check`` only say whether it is current."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted
        print("docs/models.md is current" if current else "docs/models.md is not current: run scripts/models.py")
        return 0 if current else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
