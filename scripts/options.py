"""Write what follows from the dataclasses of the named caches' options: the types of `enable` in
`omnireuse.arguments.choices`, and the table in docs/step-reuse-options.md.

Usage: python scripts/options.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.named.step_caches import STEP_CACHES, StepCache

TOP = Path(__file__).resolve().parents[1]
PAGE, TYPES = TOP / "docs" / "step-reuse-options.md", TOP / "src" / "omnireuse" / "arguments" / "choices.py"


def type_text(hint: Any) -> str:
    """A type as it is written."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(type_text, inner))
    if get_origin(hint) is Literal:
        return f"Literal[{', '.join(map(json.dumps, inner))}]"
    if get_origin(hint) is Sequence:
        return f"Sequence[{type_text(inner[0])}]"
    return "None" if hint is NoneType else "Any" if hint is Any else hint.__name__


def types_of(config: type) -> str:
    """The body of `CacheOptions`: the fields of a config with their types."""
    hints = get_type_hints(config)
    return "".join(f"    {each.name}: {type_text(hints[each.name])}\n" for each in fields(config))


def names_of(caches: Mapping[str, StepCache]) -> str:
    """The lines of `BackendName`."""
    return "".join(f'    "{name}",\n' for name in sorted(caches))


def table_of(caches: Mapping[str, StepCache]) -> str:
    """The rows of the table; caches with the same options share one."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, cache in caches.items():
        rows.setdefault((cache.skips, *cache.options), []).append(name)
    return "".join(
        f"| {', '.join(f'`{name}`' for name in names)} | `{skips}` | {', '.join(f'`{each}`' for each in options)} |\n"
        for (skips, *options), names in rows.items()
    )


def page(text: str) -> str:
    """The page with the table as it should be."""
    return re.sub(r"(?<=\| cache \| region \| options \|\n\|---\|---\|---\|\n)(\|.*\n)+", table_of(STEP_CACHES), text)


def types(text: str) -> str:
    """The module with the types as they should be."""
    text = re.sub(r'(?<=BackendName = Literal\[\n)(    "\w+",\n)+', names_of(STEP_CACHES), text)
    body = types_of(DiffusionCacheConfig)
    return re.sub(r'(?<=which describes them\."""\n\n)(    .*\n)+', lambda _: body, text)


if __name__ == "__main__":
    for path, change in ((PAGE, page), (TYPES, types)):
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
