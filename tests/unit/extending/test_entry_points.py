"""Another package adds a policy, a forecaster, an adapter and a command, found by their names."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from omnireuse.base.registry import Registry
from omnireuse.errors import ConfigError, StateError

MODULE = '''
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse import Forecaster, Memory, Policy, StepView
from omnireuse.models import BLOCK_STACKS


@dataclass(frozen=True, kw_only=True)
class Thirds(Policy):
    """Compute every third step."""

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return view.index % 3 != 0


class _First(Memory):
    """Holds the first value for ever."""

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None

    @property
    def primed(self) -> bool:
        return self.value is not None

    def observe(self, at: float, value: torch.Tensor) -> None:
        self.value = value

    def predict(self, at: float) -> torch.Tensor:
        assert self.value is not None
        return self.value


@dataclass(frozen=True)
class Last(Forecaster):
    def start(self, branch: int = 0) -> Memory:
        return _First()


adapter = replace(BLOCK_STACKS["FluxTransformer2DModel"], model="MyFlux")


def greet(name: str = "you") -> int:
    """Greet somebody."""
    return len(name)
'''

POINTS = """
[omnireuse.policies]
thirds = reuse_plugin:Thirds
missing = reuse_plugin:NotThere

[omnireuse.forecasters]
last = reuse_plugin:Last

[omnireuse.adapters]
MyFlux = reuse_plugin:adapter

[omnireuse.commands]
greet = reuse_plugin:greet
"""

USE = """
import logging
import sys

from omnireuse import EveryNth
from omnireuse.cli import main
from omnireuse.models import block_stack_for
from omnireuse.forecasters import FORECASTERS
from omnireuse.arguments.targets import strategy_of
from omnireuse.errors import OmniReuseError, UnknownNameError
from omnireuse.testing import check_forecaster, check_policy

assert "reuse_plugin" not in sys.modules, "a plugin is loaded when its name is asked for"
strategy = strategy_of("thirds", "last")
check_policy(strategy.policy)
check_forecaster(strategy.forecaster)
assert block_stack_for("MyFlux").model == "MyFlux"
assert "last" in set(FORECASTERS)
try:
    strategy_of("third")
except UnknownNameError as error:
    assert "did you mean 'thirds'?" in str(error), error
try:
    strategy_of("missing")
except OmniReuseError as error:
    assert "omnireuse.policies" in str(error) and "reuse-plugin" in str(error), error
else:
    raise AssertionError("a plugin that cannot be loaded is named")
assert main(["greet", "--name", "Ada"]) == 3
print("found")
"""


def test_what_another_package_adds_is_found_by_name_and_keeps_the_contracts(tmp_path: Path) -> None:
    info = tmp_path / "reuse_plugin-1.0.dist-info"
    info.mkdir()
    (tmp_path / "reuse_plugin.py").write_text(MODULE, "utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reuse-plugin\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(POINTS, "utf-8")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + textwrap.dedent(USE)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "found\n"


def test_the_packages_own_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value, dist = "mine", "somewhere:else", None

        def load(self) -> int:
            raise ImportError("not there")

    monkeypatch.setattr("omnireuse.base.registry.entry_points", lambda group: [Point()])
    registry = Registry("omnireuse.policies", {"own": 1})
    assert (list(registry), len(registry), registry["own"]) == (["own", "mine"], 2, 1)
    assert "mine" in registry
    with pytest.raises(KeyError):
        registry["other"]
    with pytest.raises(StateError, match=r"'mine' of the entry points 'omnireuse.policies' cannot be loaded"):
        registry["mine"]


def test_a_value_is_added_for_this_process_and_replaces_none_of_the_packages_own() -> None:
    registry = Registry("omnireuse.policies", {"own": 1})
    registry["mine"] = 2
    registry["mine"] = 3
    assert (registry["mine"], registry["own"], set(registry) >= {"mine", "own"}) == (3, 1, True)
    with pytest.raises(ConfigError, match=r"'own' is one of omnireuse's own 'omnireuse.policies'"):
        registry["own"] = 4
