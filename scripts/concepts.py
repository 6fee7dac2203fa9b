"""How much of the package someone must know: what the main parts import, and how long the whole is.

    python scripts/concepts.py [--check]

Counts come from the source by `ast`. The closure of a module is the module with all modules of the package that it
imports, directly or not. Imports inside of functions count, since who changes the one has to know the other; those for
type checkers do not. A circle is a group of files, or of packages, that import one another. Circles of files are also
counted at the top level of modules alone, there with imports for type checkers. The package's own `__init__`, which
names everything, is part of none. An edge to another distribution (the laboratory, or the engines) is a file that
imports a module of it, in functions too; an edge of it is a module of the package that it imports. With ``--check`` a
figure above its limit is an error.
`scripts/hops.py` counts the files that a reused step passes, for it has to run one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "omnireuse"
DISTRIBUTIONS = {"lab": "omnireuse_lab", "engines": "omnireuse_engines"}
"""By folder of the repository the package of each further distribution."""


class Row(NamedTuple):
    """One figure: its limit, which may only go down, and its goal."""

    name: str
    limit: int
    goal: int


CLOSURES = {
    "enable": "omnireuse.enabling",
    "Generation": "omnireuse.loop.generation",
    "Session": "omnireuse.hooks.session",
}
ROWS = (
    Row("enable, files", 110, 75),
    Row("enable, lines", 18_650, 10_000),
    Row("Generation, files", 18, 20),
    Row("Generation, lines", 3_040, 2_800),
    Row("Session, files", 31, 35),
    Row("Session, lines", 6_305, 5_500),
    Row("circles, top level", 0, 0),
    Row("circles of files", 0, 0),
    Row("packages in circles", 0, 0),
    Row("edges to lab", 0, 0),
    Row("edges of lab", 14, 14),
    Row("edges to engines", 0, 0),
    Row("edges of engines", 55, 50),
    Row("lines of src", 26_295, 20_000),
)


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file."""
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def lines_of(name: str) -> int:
    """The lines of a module."""
    return len(modules()[name].read_text(encoding="utf-8").splitlines())


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _nodes(node: ast.AST, *, at_top: bool) -> Iterator[ast.AST]:
    yield node
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    if (is_function and at_top) or (_is_for_types(node) and not at_top):
        return
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, at_top=at_top)


@cache
def imports(name: str, *, at_top: bool = False) -> frozenset[str]:
    """The modules of the package that a module imports, in functions too; or those at its top level, with those for
    type checkers."""
    found = set()
    for node in _nodes(ast.parse(modules()[name].read_text(encoding="utf-8")), at_top=at_top):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            wholes = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(whole if whole in modules() else str(node.module) for whole in wholes)
    return frozenset(found & modules().keys() - {name, PACKAGE})


def edges(source: Path, package: str) -> set[tuple[Path, str]]:
    """Each file below a folder with each module of a package that it imports anywhere: in functions, and for types."""
    found = set()
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            wholes: set[str] = set()
            if isinstance(node, ast.Import):
                wholes = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                wholes = {f"{node.module}.{alias.name}" for alias in node.names}
                wholes = {whole if whole in modules() else str(node.module) for whole in wholes}
            found |= {(path, whole) for whole in wholes if whole.partition(".")[0] == package}
    return found


def closure(name: str) -> set[str]:
    """A module, and all that it imports, directly or not."""
    found, left = set(), [name]
    while left:
        if (each := left.pop()) not in found:
            found.add(each)
            left += imports(each)
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The groups of names that lead to one another, directly or not."""
    reach: dict[str, set[str]] = {}
    for name in graph:
        found: set[str] = set()
        left = [*graph[name]]
        while left:
            if (each := left.pop()) not in found:
                found.add(each)
                left += graph[each]
        reach[name] = found
    groups = {frozenset(each for each in reach[name] if name in reach[each]) for name in reach if name in reach[name]}
    return sorted(sorted(group) for group in groups)


def packages() -> dict[str, set[str]]:
    """Package or single module below the top -> those that its modules import."""
    found: dict[str, set[str]] = {}
    for name in modules().keys() - {PACKAGE}:
        top = name.split(".")[1]
        found.setdefault(top, set()).update(each.split(".")[1] for each in imports(name))
        found[top].discard(top)
    return found


def figures() -> dict[str, int]:
    """Each figure by its name."""
    found = {}
    for name, module in CLOSURES.items():
        reached = closure(module)
        found[f"{name}, files"], found[f"{name}, lines"] = len(reached), sum(map(lines_of, reached))
    for folder, package in DISTRIBUTIONS.items():
        taken = {module for _, module in edges(SOURCE.parent / folder / "src", PACKAGE)}
        found[f"edges to {folder}"], found[f"edges of {folder}"] = len(edges(SOURCE, package)), len(taken)
    return {
        **found,
        "circles, top level": len(circles({name: imports(name, at_top=True) for name in modules()})),
        "circles of files": len(circles({name: imports(name) for name in modules()})),
        "packages in circles": sum(map(len, circles(packages()))),
        "lines of src": sum(map(lines_of, modules())),
    }


def over(found: Mapping[str, int]) -> list[str]:
    """What is above its limit, in words."""
    return [f"{row.name}: {found[row.name]:,} is above {row.limit:,}" for row in ROWS if found[row.name] > row.limit]


def main() -> int:
    """Print the table; with ``--check``, exit status 1 where a figure is above its limit."""
    found = figures()
    print(f"{'':20}{'now':>8}{'limit':>8}{'goal':>8}")
    for row in ROWS:
        print(f"{row.name:20}{found[row.name]:8,}{row.limit:8,}{row.goal:8,}")
    for group in (*circles({name: imports(name) for name in modules()}), *circles(packages())):
        print("a circle: " + ", ".join(group))
    faults = over(found) if "--check" in sys.argv[1:] else []
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
