"""Which module may import which, and what each may import at all: read from the source, so that nothing has to run."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from importlib import import_module

import pytest

from tests import TOP

SOURCE = TOP / "src" / "omnireuse"

#: Layers from the bottom up. A module belongs to the longest name that it begins with and may import its own layer and
#: those below it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "extras", "hub", "lazy", "loading", "records", "registry", "terminal"),
    (
        "diffusion.reuse.policy",
        "diffusion.reuse.events",
        "diffusion.reuse.validation",
        "diffusion.reuse.summary",
        "diffusion.reuse.present",
        "diffusion.reuse.agreement",
    ),
    (
        "diffusion.reuse.policies",
        "diffusion.reuse.noise",
        "diffusion.reuse.schedulers",
        "diffusion.reuse.signals",
        "diffusion.reuse.forecasters",
    ),
    (
        "diffusion.reuse.strategy",
        "diffusion.reuse.deciding",
        "diffusion.reuse.generation",
        "diffusion.reuse.branch_state",
        "diffusion.reuse.batch",
    ),
    ("diffusion.reuse.runtime", "diffusion.reuse", "diffusion.snapshot"),
    ("diffusion.adapters",),
    (
        "evaluation.metrics",
        "pipelines.call",
        "pipelines.pictures",
        "diffusion.targets",
        "diffusion.calibration.branches",
        "diffusion.calibration.candidate",
        "diffusion.calibration.card",
        "diffusion.calibration.conditions",
        "diffusion.calibration.coverage",
        "diffusion.calibration.distances",
        "diffusion.calibration.fit",
        "diffusion.calibration.holding",
        "diffusion.calibration.hooks",
        "diffusion.calibration.mag_cache",
        "diffusion.calibration.measurements",
        "diffusion.calibration.observer",
        "diffusion.calibration.origin",
        "diffusion.calibration.path",
        "diffusion.calibration.plan",
        "diffusion.calibration.planner",
        "diffusion.calibration.profile",
        "diffusion.calibration.profile_html",
        "diffusion.calibration.sharing",
        "diffusion.calibration.solver",
        "diffusion.calibration.tea_cache",
        "diffusion.data",
    ),
    ("diffusion.tuning", "diffusion.handle"),
    ("diffusion.cache", "diffusion.prompts", "diffusion.pipelines", "diffusion"),
    ("pipelines",),
    ("diffusion.calibration", "diffusion.tuning.ahead"),
    ("evaluation",),
    ("integrations",),
    ("testing",),
    ("cli", "__main__"),
)
#: `core` is a world of its own: the engine side knows nothing of denoising, nor denoising of it, but for the stores.
CORE, STORES = "core", "core.stores"
#: What uses both sides: the contracts, and an engine's caches inside that engine.
ENGINE_TOOLS = ("testing", "integrations.vllm")

#: What must work where torch is not installed.
WITHOUT_TORCH = (
    "errors",
    "diffusion.reuse.policy",
    "diffusion.reuse.policies",
    "diffusion.reuse.events",
    "diffusion.reuse.summary",
    "diffusion.data",
    "core.encoder_cache_manager",
    "core.shared_encoder_cache",
    "evaluation.report",
    "cli",
)


@cache
def modules() -> dict[str, ast.Module]:
    """Dotted name within the package -> its syntax tree; the package itself is ""."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
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
    found: set[str] = set()
    for node in _runtime_nodes(modules()[name], into_functions=into_functions):
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


def layer_of(name: str) -> int:
    matches = [(len(prefix), index) for index, layer in enumerate(LAYERS) for prefix in layer if belongs(name, prefix)]
    assert matches, f"{name} has no place in LAYERS; give it one"
    return max(matches)[1]


denoising = [name for name in modules() if name and not belongs(name, CORE)]


@pytest.mark.parametrize("name", denoising)
def test_imports_point_down(name: str) -> None:
    allowed = layer_of(name)
    for other in own_imports(name):
        if belongs(other, CORE):
            is_tool = any(belongs(name, tool) for tool in ENGINE_TOOLS)
            assert is_tool or belongs(other, STORES), f"{name} imports {other}: of core, only its stores are shared"
        else:
            assert layer_of(other) <= allowed, f"{name} imports {other}, which is above it"


@pytest.mark.parametrize("name", [name for name in modules() if belongs(name, CORE)])
def test_the_engine_side_stands_alone(name: str) -> None:
    for other in own_imports(name):
        assert belongs(other, CORE) or other in ("errors", "registry"), f"{name} imports {other}"


def test_no_import_cycles() -> None:
    graph = {name: own_imports(name, into_functions=False) for name in modules()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def _defined(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    # What a lazy package imports for type checkers alone counts: `test_lazy_packages_offer_what_they_list` tries it.
    lazy = [child for node in tree.body if isinstance(node, ast.If) and _is_type_checking(node) for child in node.body]
    for node in [*tree.body, *lazy]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


@pytest.mark.parametrize("name", sorted(modules().keys() - {""}))
def test_listed_names_exist_once(name: str) -> None:
    # Their order is held by ruff (RUF022). The package itself is lazy: see below.
    tree = modules()[name]
    for node in tree.body:
        targets = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
        if "__all__" in targets and isinstance(node, ast.Assign):
            listed = ast.literal_eval(node.value)
            assert len(set(listed)) == len(listed), f"{name}.__all__ names something twice"
            assert set(listed) <= _defined(tree), f"{name}.__all__ names what is not there"


LAZY = sorted(name for name in modules() if name and "lazy" in own_imports(name))


def test_the_specified_packages_are_lazy() -> None:
    assert LAZY == ["diffusion.cache", "diffusion.cache.magcache", "diffusion.cache.teacache", "testing"]


@pytest.mark.parametrize("name", LAZY)
def test_lazy_packages_offer_what_they_list(name: str) -> None:
    package = import_module(f"omnireuse.{name}")
    assert package.__doc__
    for each in package.__all__:
        value = getattr(package, each)
        assert value.__doc__, f"{name}.{each} is documented"
        assert getattr(import_module(value.__module__), each) is value
    assert dir(package) == package.__all__
    with pytest.raises(AttributeError, match=f"module 'omnireuse.{name}' has no attribute 'TeeCache'"):
        package.TeeCache  # noqa: B018 - the access is what is tested


@pytest.mark.parametrize("name", LAZY)
def test_importing_a_lazy_package_is_light(name: str) -> None:
    heavy = {"torch", "diffusers", "transformers", "numpy"}
    code = f"import sys, omnireuse.{name}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "name",
    [
        *(f"teacache.{each}" for each in ("config", "backend", "hook", "extractors", "state")),
        *(f"magcache.{each}" for each in ("config", "backend", "hook", "state", "strategy")),
    ],
)
def test_the_specified_modules_exist(name: str) -> None:
    module = import_module(f"omnireuse.diffusion.cache.{name}")
    for each in module.__all__:
        assert getattr(module, each) is not None


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

    for name in omnireuse.__all__:
        assert getattr(omnireuse, name) is not None
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


@pytest.mark.parametrize("name", modules())
def test_the_package_knows_nothing_of_the_repository_around_it(name: str) -> None:
    roots = {each.partition(".")[0] for each in imports(name)}
    assert not roots & {"bench", "examples", "reference", "scripts", "tests"}
