"""How much of the code someone must know: what the main parts import, how long each house is, how large its parts are.

    python scripts/concepts.py [--check | --lower]

Counts come from the source by `ast`. The closure of a module is the module with all modules of the package that it
imports, directly or not. Imports inside of functions count, since who changes the one has to know the other; those for
type checkers do not. A circle is a group of files, or of packages, that import one another. Circles of files are also
counted at the top level of modules alone, there with imports for type checkers. The package's own `__init__`, which
names everything, is part of none. An edge to another distribution (the laboratory, or the engines) is a file that
imports a module of it, in functions too; an edge of it is a module of the package that it imports. Of the product
and the engines together it counts parameters that are callables, annotations that say ``: Any``, and classes with more
than twelve attributes; of these and the laboratory, names that two classes have; of the product the lines of `raise`.
With ``--check`` a figure above its limit is an error, and so is a limit above its figure, which ``--lower`` writes
anew. The lines of a house may fall below their limit, because the limit of all houses is exact.
The plain table also shows the calls and files that a reused step passes. `scripts/hops.py` counts and checks these,
because it has to run a step.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "omnireuse"
DISTRIBUTIONS = {"lab": "omnireuse_lab", "engines": "omnireuse_engines"}
"""By folder of the repository the package of each further distribution."""


MOST_ATTRIBUTES = 12
"""Of a class that one can hold in the head."""


class Row(NamedTuple):
    """One figure: its limit, which may only go down, and its goal."""

    name: str
    limit: int
    goal: int


CLOSURES = {
    "enable": "omnireuse.enabling",
    "its keywords": "omnireuse.front",
    "Generation": "omnireuse.loop.generation",
    "Session": "omnireuse.hooks.session",
}
ROWS = (
    Row("enable, files", 51, 62),
    Row("enable, lines", 9_359, 10_500),
    Row("its keywords, files", 116, 100),
    Row("its keywords, lines", 19_879, 15_000),
    Row("Generation, files", 19, 20),
    Row("Generation, lines", 3_306, 2_800),
    Row("Session, files", 35, 35),
    Row("Session, lines", 6_896, 5_500),
    Row("circles, top level", 0, 0),
    Row("circles of files", 0, 0),
    Row("packages in circles", 0, 0),
    Row("edges to lab", 0, 0),
    Row("edges of lab", 14, 14),
    Row("edges to engines", 0, 0),
    Row("edges of engines", 49, 50),
    Row("lines of src", 29_754, 22_500),
    Row("lines of lab", 4_753, 4_500),
    Row("lines of engines", 8_552, 7_500),
    Row("callables", 79, 60),
    Row("callables, aliases too", 139, 90),
    Row("annotations Any", 351, 400),
    Row("large classes", 11, 5),
    Row("lines of raise", 341, 400),
    Row("names of two things", 0, 0),
)
HOUSES = (
    Row("arguments", 494, 400),
    Row("base", 709, 570),
    Row("calibration", 582, 460),
    Row("cli", 618, 470),
    Row("core", 1_894, 1_440),
    Row("diffusion", 708, 550),
    Row("fingerprints", 967, 850),
    Row("forecasters", 674, 520),
    Row("front", 971, 550),
    Row("hooks", 4_021, 3_130),
    Row("loop", 1_574, 1_160),
    Row("models", 641, 490),
    Row("modulation", 1_522, 1_160),
    Row("named", 1_129, 860),
    Row("noise", 479, 370),
    Row("pipelines", 938, 730),
    Row("planning", 572, 440),
    Row("policies", 1_151, 870),
    Row("profiles", 1_444, 1_100),
    Row("prompts", 2_015, 2_140),
    Row("references", 769, 580),
    Row("stores", 817, 620),
    Row("summary", 801, 600),
    Row("testing", 388, 290),
    Row("tuning", 3_880, 2_970),
)
"""The lines of each package of the product; "front" is its top level, which `enable` is in."""


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


def _aliases(trees: Iterable[ast.Module]) -> set[str]:
    """The names that modules give to types of callables."""
    assigned = (each for tree in trees for each in tree.body if isinstance(each, ast.Assign))
    return {ast.unparse(each.targets[0]) for each in assigned if _names(each.value, {"Callable"})}


def _names(annotation: ast.expr | None, types: set[str]) -> bool:
    if annotation is None or not isinstance(annotation, (ast.Name, ast.Subscript, ast.BinOp, ast.Constant)):
        return False
    return bool(types & set(re.findall(r"\w+", ast.unparse(annotation))))


def _attributes(cls: ast.ClassDef) -> set[str]:
    """The attributes that a class declares, and those that its methods assign."""
    declared = (each.target for each in cls.body if isinstance(each, ast.AnnAssign))
    assigned = (node for node in ast.walk(cls) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {each.id for each in declared if isinstance(each, ast.Name)} | {
        each.attr for each in assigned if isinstance(each.value, ast.Name) and each.value.id == "self"
    }


def house_lines() -> dict[str, int]:
    """The lines of each house."""
    found = Counter[str]()
    for path in SOURCE.joinpath(PACKAGE).rglob("*.py"):
        house, *inside = path.relative_to(SOURCE / PACKAGE).parts
        found[house if inside else "front"] += len(path.read_text(encoding="utf-8").splitlines())
    return dict(found)


def sizes() -> dict[str, int]:
    """The lines of each distribution, and what its code is made of."""
    found = {"callables": 0, "callables, aliases too": 0, "annotations Any": 0, "large classes": 0, "lines of raise": 0}
    names = Counter[str]()
    texts = {}
    for name in ("src", *DISTRIBUTIONS):
        source = SOURCE if name == "src" else SOURCE.parent / name / "src"
        texts[name] = [path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))]
    callables = {"Callable"} | _aliases(ast.parse(text) for name in ("src", "engines") for text in texts[name])
    for name in texts:
        found[f"lines of {name}"] = sum(len(text.splitlines()) for text in texts[name])
        for text in texts[name]:
            nodes = [*ast.walk(ast.parse(text))]
            names.update(node.name for node in nodes if isinstance(node, ast.ClassDef))
            if name == "lab":
                continue
            found["annotations Any"] += len(re.findall(r": Any\b", text))
            for node in nodes:
                if isinstance(node, ast.arguments):
                    given = [each.annotation for each in (*node.posonlyargs, *node.args, *node.kwonlyargs)]
                    found["callables"] += sum(_names(each, {"Callable"}) for each in given)
                    found["callables, aliases too"] += sum(_names(each, callables) for each in given)
                elif isinstance(node, ast.Raise) and name == "src":
                    found["lines of raise"] += (node.end_lineno or node.lineno) - node.lineno + 1
                elif isinstance(node, ast.ClassDef):
                    found["large classes"] += len(_attributes(node)) > MOST_ATTRIBUTES
    return {**found, "names of two things": sum(count > 1 for count in names.values())}


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
        **sizes(),
        **house_lines(),
    }


def steps() -> Iterator[tuple[Row, int]]:
    """Of each walk of a reused step: its calls and its changes of file."""
    from hops import GOALS, LIMITS, totals, walks

    for name, calls in walks().items():
        for what, now in totals(calls)._asdict().items():
            yield Row(f"{what}, {name}", getattr(LIMITS[name], what), getattr(GOALS[name], what)), now


def over(found: Mapping[str, int]) -> list[str]:
    """What is above its limit, and which limit is above its figure, in words."""
    grown = [
        f"{each.name}: {found[each.name]:,} is above {each.limit:,}"
        for each in (*ROWS, *HOUSES)
        if found[each.name] > each.limit
    ]
    slack = [row for row in ROWS if found[row.name] < row.limit]
    return [
        *grown,
        *(f"{each.name}: the limit {each.limit:,} is above {found[each.name]:,}; --lower" for each in slack),
    ]


def lower(found: Mapping[str, int]) -> None:
    """Write the limits that are above their figures anew, in this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    for row in (*ROWS, *HOUSES):
        if found[row.name] < row.limit:
            text = text.replace(f'Row("{row.name}", {row.limit:_},', f'Row("{row.name}", {found[row.name]:_},')
    Path(__file__).write_text(text, encoding="utf-8")


def main() -> int:
    """Print the table; with ``--check``, exit status 1 where a figure and its limit differ."""
    found, asked = figures(), sys.argv[1:]
    table = [(row, found[row.name]) for row in (*ROWS, *HOUSES)]
    print(f"{'':24}{'today':>8}{'limit':>8}{'goal':>8}{'distance':>10}")
    for row, now in table if asked else [*table, *steps()]:
        print(f"{row.name:24}{now:8,}{row.limit:8,}{row.goal:8,}{max(now - row.goal, 0) or '':>10}")
    for group in (*circles({name: imports(name) for name in modules()}), *circles(packages())):
        print("a circle: " + ", ".join(group))
    if "--lower" in asked:
        lower(found)
    faults = over(found) if "--check" in asked else []
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
