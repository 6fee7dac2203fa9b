"""What modules import, read from the source so that nothing has to run, and what packages offer.

`lint-imports` holds the layers (pyproject.toml).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

from tests import TOP

SOURCE = TOP / "src" / "omnireuse"
FOLDERS = {"omnireuse_lab": "lab", "omnireuse_vllm": "vllm"}
"""Package of each further distribution -> its folder."""

#: What must work where torch is not installed.
WITHOUT_TORCH = (
    "errors",
    "policies",
    "loop.events",
    "summary.summary",
    "diffusion.data",
    "named.options",
    "core.encoder_cache_manager",
    "cli",
)


#: All that each further distribution takes from the package.
TAKEN = {
    "omnireuse_lab": {
        "omnireuse",
        "omnireuse.base.extras",
        "omnireuse.base.lazy",
        "omnireuse.base.records",
        "omnireuse.base.registry",
        "omnireuse.base.terminal",
        "omnireuse.cli.options",
        "omnireuse.cli.program",
        "omnireuse.errors",
        "omnireuse.forecasters.base",  # peers: sums and memories of past outputs
        "omnireuse.hooks.denoisers",
        "omnireuse.hooks.regions.stack",  # peers that stand around blocks: a block and its arguments
        "omnireuse.models",  # … and the declaration of a model's blocks
        "omnireuse.pipelines",
    },
    "omnireuse_vllm": {
        "omnireuse.base.lazy",
        "omnireuse.base.records",
        "omnireuse.base.validation",
        "omnireuse.base.terminal",
        "omnireuse.cli.options",
        "omnireuse.core.prefix_cache",  # the engine of the demonstration
        "omnireuse.engines.host",  # which releases of vLLM were tested
        "omnireuse.errors",
        "omnireuse.stores.disk",
        "omnireuse.stores.memory",
        "omnireuse.stores.redis",
        "omnireuse.stores.tier",
        "omnireuse.stores.trees",
    },
}


@cache
def modules(source: Path = SOURCE) -> dict[str, ast.Module]:
    """Dotted name within a package -> its syntax tree; the package itself is ""."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _runtime_nodes(tree: ast.AST, *, into_functions: bool) -> list[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING`` and, unless asked for, inside functions."""
    nodes, left = [], [tree]
    while left:
        node = left.pop()
        nodes.append(node)
        for child in ast.iter_child_nodes(node):
            if _is_type_checking(node) and child in node.body:  # type: ignore[attr-defined]
                continue
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not into_functions:
                continue
            left.append(child)
    return nodes


def imports(name: str, *, into_functions: bool = True) -> set[str]:
    """Absolute names of the modules that a module imports; ``from a import b`` imports a.b where that is a module."""
    return imports_of(modules()[name], name, into_functions=into_functions)


def imports_of(tree: ast.AST, name: str, *, into_functions: bool = True) -> set[str]:
    """As `imports`, for the tree of a module of any package."""
    found: set[str] = set()
    for node in _runtime_nodes(tree, into_functions=into_functions):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute here"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole.removeprefix("omnireuse.") in modules() else node.module)
    return found


def own_imports(name: str, *, into_functions: bool = True) -> set[str]:
    """The modules of this package that a module imports."""
    inside = {
        found.removeprefix("omnireuse").removeprefix(".")
        for found in imports(name, into_functions=into_functions)
        if found == "omnireuse" or found.startswith("omnireuse.")
    }
    return (inside & modules().keys()) - {"", name}


def belongs(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


LAZY = sorted(name for name in modules() if name and "base.lazy" in own_imports(name))


@pytest.mark.parametrize("name", LAZY)
def test_lazy_packages_offer_what_they_list(name: str) -> None:
    package = import_module(f"omnireuse.{name}")
    for each in package.__all__:
        value = getattr(package, each)
        if isinstance(value, (type, FunctionType)):
            assert getattr(import_module(value.__module__), each) is value
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match=f"module 'omnireuse.{name}' has no attribute 'TeeCache'"):
        package.TeeCache  # noqa: B018 - the access is what is tested


@pytest.mark.parametrize("name", LAZY)
def test_importing_a_lazy_package_is_light(name: str) -> None:
    heavy = {"torch", "diffusers", "transformers", "numpy"}
    code = f"import sys, omnireuse.{name}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SPECIFIED = {
    "teacache.config": {"TeaCacheConfig"},
    "teacache.backend": {"TeaCacheBackend"},
    "teacache.hook": {"apply_teacache_hook"},
    "teacache.extractors": {"CacheContext", "get_extractor", "register_extractor"},
    "teacache.state": {"TeaCacheState"},
    "magcache.config": {"MagCacheConfig"},
    "magcache.backend": {"MagCacheBackend"},
    "magcache.hook": {"apply_mag_cache_hook"},
    "magcache.state": {"MagCacheState"},
    "magcache.strategy": {"published_ratios"},
}


@pytest.mark.parametrize("name", SPECIFIED)
def test_the_specified_modules_exist(name: str) -> None:
    module = import_module(f"omnireuse.diffusion.cache.{name}")
    package, _, path = name.partition(".")
    whole = import_module(f"omnireuse.diffusion.cache.{package}")
    assert getattr(whole, path) is module
    assert set(module.__all__) >= SPECIFIED[name]
    assert [each for each in module.__all__ if getattr(module, each) is not getattr(whole, each)] == []


def test_the_specified_names_come_from_the_specified_package() -> None:
    from omnireuse.diffusion import cache

    assert cache.__all__ == [
        "CacheBackend",
        "CacheContext",
        "PromptEmbedCache",
        "TeaCacheBackend",
        "TeaCacheConfig",
        "apply_teacache_hook",
        "install_prompt_embed_cache",
        "resolve_prompt_embed_cache_config",
        "uninstall_prompt_embed_cache",
    ]


def test_the_package_offers_what_it_lists() -> None:
    import omnireuse

    assert [name for name in omnireuse.__all__ if not hasattr(omnireuse, name)] == []
    assert dir(omnireuse) == omnireuse.__all__
    with pytest.raises(AttributeError, match="no attribute 'enabel'"):
        omnireuse.enabel  # noqa: B018 - the access is what is tested


def test_help_begins_with_the_calls_that_a_user_needs() -> None:
    code = "import pydoc, omnireuse; print(pydoc.plain(pydoc.render_doc(omnireuse)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first = done.stdout.splitlines()[:28]
    for call in ("omnireuse.enable(pipe)", "handle.summary()", "handle.disable()", "omnireuse.calibrate(pipe,"):
        assert any(call in line for line in first), done.stdout[:3000]
    assert max(map(len, first)) <= 80


def test_errors_are_there_after_the_import_of_the_package() -> None:
    code = (
        "import sys, omnireuse; print(omnireuse.errors.OmniReuseError.__name__, 'torch' in sys.modules, "
        "sorted(set(omnireuse.errors.__all__) - {name for name in dir(omnireuse.errors) if name.endswith('Error')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "OmniReuseError False []"


@pytest.mark.parametrize("prefix", WITHOUT_TORCH)
def test_bookkeeping_does_not_import_torch(prefix: str) -> None:
    found = [name for name in modules() if belongs(name, prefix)]
    assert found, f"{prefix} does not exist"
    seen: set[str] = set()
    left = list(found)
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        heavy = {"torch", "diffusers", "transformers"} & {
            m.partition(".")[0] for m in imports(name, into_functions=False)
        }
        assert not heavy, f"{prefix} reaches {name}, which imports {', '.join(sorted(heavy))}"
        # A module runs the __init__ of every package above it.
        parents = [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 1)]
        left += [*own_imports(name, into_functions=False), *(parent for parent in parents if parent in modules())]


def test_importing_the_package_is_light() -> None:
    code = "import sys, omnireuse; print(sorted({'torch', 'diffusers', 'transformers', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_knows_nothing_of_what_is_around_it() -> None:
    roots = {each.partition(".")[0] for name, tree in modules().items() for each in every_import(tree, name)}
    assert not roots & {"bench", "examples", "reference", "scripts", "tests", *FOLDERS}


def every_import(tree: ast.AST, name: str) -> set[str]:
    """Imports for type checkers and those in functions included; so are modules that only a text names."""
    nodes = ast.walk(tree)
    named = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    typed = [child for node in ast.walk(tree) if _is_type_checking(node) for child in node.body]  # type: ignore[attr-defined]
    return (
        imports_of(tree, name)
        | {each for child in typed for each in imports_of(child, name)}
        | {each for each in named if each.partition(".")[0] in FOLDERS and "." in each}
    )


@pytest.mark.parametrize("package", FOLDERS)
def test_another_distribution_takes_what_it_says_and_no_more(package: str) -> None:
    trees = modules(TOP / FOLDERS[package] / "src" / package)
    taken = {each for name in trees for each in every_import(trees[name], name)}
    assert {each for each in taken if each.partition(".")[0] == "omnireuse"} == TAKEN[package]
    around = {"bench", "examples", "reference", "scripts", "tests", *FOLDERS} - {package}
    assert not {each.partition(".")[0] for each in taken} & around


@pytest.mark.parametrize("name", FOLDERS)
def test_another_distribution_offers_what_it_lists(name: str) -> None:
    package = import_module(name)
    needs_vllm = {"EncoderOutputConnector"}
    assert [each for each in package.__all__ if each not in needs_vllm and not hasattr(package, each)] == []
    assert dir(package) == package.__all__
