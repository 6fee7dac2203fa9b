"""No test reaches into the private state of the package: it asks what a user could ask."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torch

from tests import TOP

ALLOWED = {
    "_CACHE_MISS": "specified",
    "_MAX_PENDING_EVENTS": "takes too long to reach",
    "_MAX_PENDING_FREED": "takes too long to reach",
    "_entries": "every key that the manager behind vLLM's scheduler knows, which vLLM never asks for",
    "_node": "which of two ways to notice a change is taken; both answer the same questions",
    "_num_open": "that nothing is left listening to PyTorch, which cannot be seen from outside",
}
"""Private name -> why tests may use it."""


def is_private(name: str) -> bool:
    """`_name`; neither `__name__` nor a hook such as `_repr_html_`, which others call."""
    return name.startswith("_") and not name.endswith("_")


def defined(tree: ast.AST) -> Iterator[str]:
    """The private names that a module gives to functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each attribute of another object, of each import and of each name in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # setattr, monkeypatch
            yield node.lineno, node.value.rpartition(".")[2]


def trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((TOP / folder).rglob("*.py")):
            yield path.relative_to(TOP), ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_no_test_uses_a_private_name_of_the_package() -> None:
    private = {name for _, tree in trees("src", "reference", "bench") for name in defined(tree) if is_private(name)}
    private -= set(dir(torch.nn.Module()))  # PyTorch's
    found = []
    for path, tree in trees("tests"):
        own = set(defined(tree))
        found += [f"{path}:{line}: {name}" for line, name in used(tree) if name in private - own - ALLOWED.keys()]
    assert not found, "\n".join(["ask a public question instead:", *found])
