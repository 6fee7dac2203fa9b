from __future__ import annotations

import ast
import importlib
import inspect
import runpy
from pathlib import Path
from typing import Any

import diffusers
import pytest
from packaging.version import Version

from omnireuse.hooks.denoisers import DENOISERS
from omnireuse.models import BLOCK_STACKS, UNSUPPORTED
from tests import TOP

NEWEST = "0.42"
# Parts of a denoiser, networks beside one, and one that fills in the tokens of a codebook.
NO_DENOISERS = {
    "DualTransformer2DModel",
    "MiniMaxMusic3RVQDepthDecoder",
    "MotionAdapter",
    "T5FilmDecoder",
    "Transformer2DModel",
    "TransformerTemporalModel",
    "UVit2DModel",
}

newest = pytest.mark.skipif(
    Version(diffusers.__version__) < Version(NEWEST), reason=f"the page speaks of diffusers {NEWEST}"
)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(TOP / "scripts" / "models.py"))


def test_the_page_says_what_is_declared(script: dict[str, Any]) -> None:
    assert (TOP / "docs" / "models.md").read_text(encoding="utf-8") == script["page"](), "run: python scripts/models.py"
    assert len(script["pipelines"](script["TRIED"])) > 30


@newest
def test_every_family_of_pipelines_is_tried_or_said_not_to_be(script: dict[str, Any]) -> None:
    tried = set(script["pipelines"](script["TRIED"]))
    families: dict[str, set[str]] = {}
    package = Path(inspect.getfile(diffusers)).parent / "pipelines"
    for path in package.glob("*/pipeline_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and "Pipeline" in node.name and denoises(node):
                families.setdefault(path.parent.name, set()).add(node.name)
    without = {name for name, kinds in families.items() if name != "deprecated" and not kinds & tried}
    assert without == set(script["UNTRIED"])


def denoises(pipeline: ast.ClassDef) -> bool:
    """Whether its constructor takes a denoiser and a scheduler."""
    for node in pipeline.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            taken = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
            return bool(taken & set(DENOISERS)) and any("scheduler" in name for name in taken)
    return False


@newest
def test_every_denoiser_is_declared_refused_or_said_to_be_neither(script: dict[str, Any]) -> None:
    modules = [importlib.import_module(f"diffusers.models.{name}") for name in ("transformers", "unets")]
    every = {name for module in modules for name in dir(module) if inspect.isclass(getattr(module, name))}
    assert every - set(BLOCK_STACKS) - set(UNSUPPORTED) - NO_DENOISERS == set(script["UNDECLARED"])
