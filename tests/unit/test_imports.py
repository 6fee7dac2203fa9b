"""What importing costs, and what packages offer. `lint-imports` holds the layers (pyproject.toml)."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import FunctionType

import pytest

import omnireuse
from tests import TOP

HEAVY = ("diffusers", "torch", "transformers")
SOURCE = TOP / "src" / "omnireuse"
LAZY = sorted(
    ".".join(path.parent.relative_to(SOURCE.parent).parts)
    for path in SOURCE.rglob("*/__init__.py")
    if "omnireuse.base.lazy" in path.read_text(encoding="utf-8")
)
WITHOUT_TORCH = (
    "omnireuse",
    "omnireuse.errors",
    "omnireuse.policies",
    "omnireuse.loop.events",
    "omnireuse.summary.summary",
    "omnireuse.diffusion.data",
    "omnireuse.named.options",
    "omnireuse.core.encoder_cache_manager",
    "omnireuse.cli",
    *LAZY,
)
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


def offers_what_it_lists(name: str, but: tuple[str, ...] = ()) -> None:
    package = import_module(name)
    assert [each for each in package.__all__ if each not in but and not hasattr(package, each)] == []
    assert dir(package) == package.__all__
    with pytest.raises(AttributeError, match="no attribute 'enabel'"):
        package.enabel  # noqa: B018 - the access is what is tested


def said(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    return done.stdout.strip()


def test_bookkeeping_needs_no_torch_and_importing_a_package_is_light() -> None:
    imports = "; ".join(f"import {name}" for name in WITHOUT_TORCH)
    assert said(f"import sys; {imports}; print(sorted({set(HEAVY)} & set(sys.modules)))") == "[]"


@pytest.mark.parametrize("name", LAZY)
def test_lazy_packages_offer_what_they_list(name: str) -> None:
    package = import_module(name)
    for each in package.__all__:
        value = getattr(package, each)
        if isinstance(value, (type, FunctionType)):
            assert getattr(import_module(value.__module__), each) is value
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'TeeCache'"):
        package.TeeCache  # noqa: B018 - the access is what is tested


def test_the_specified_modules_and_names_exist() -> None:
    cache = import_module("omnireuse.diffusion.cache")
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
    for name, offered in SPECIFIED.items():
        module, package = (import_module(f"{cache.__name__}.{each}") for each in (name, name.partition(".")[0]))
        assert set(module.__all__) >= offered
        assert [each for each in module.__all__ if getattr(module, each) is not getattr(package, each)] == []


def test_the_package_offers_what_it_lists() -> None:
    offers_what_it_lists("omnireuse")


def test_help_begins_with_the_calls_that_a_user_needs() -> None:
    first = said("import pydoc, omnireuse; print(pydoc.plain(pydoc.render_doc(omnireuse)))").splitlines()[:28]
    for call in ("omnireuse.enable(pipe)", "handle.summary()", "handle.disable()", "omnireuse.calibrate(pipe,"):
        assert any(call in line for line in first), first


def test_errors_are_there_after_the_import_of_the_package() -> None:
    assert set(omnireuse.errors.__all__) <= set(dir(omnireuse.errors))
