"""What scripts write and hold is current: pages from declarations and records, and how much the main parts import."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest

from tests import TOP


@pytest.mark.parametrize("name", ["concepts", "figures", "hops", "models"])
def test_a_script_finds_nothing_to_change(name: str) -> None:
    command = [sys.executable, "-W", "ignore", str(TOP / "scripts" / f"{name}.py"), "--check"]
    with_top = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TOP), os.environ.get("PYTHONPATH", "")))}
    ran = subprocess.run(command, cwd=TOP, env=with_top, capture_output=True, encoding="utf-8")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_figure_above_its_limit_is_told() -> None:
    script = runpy.run_path(str(TOP / "scripts" / "concepts.py"))
    assert {"omnireuse.policies.base", "omnireuse.errors"} <= script["closure"]("omnireuse.loop.events")
    today = script["figures"]()
    told = script["over"]({**today, "circles of files": 99, "hooks": 9_999})
    assert [each for each in told if each.startswith("hooks: 9,999 is above")], "the lines of a house"
    assert [each for each in told if each.startswith("circles of files: 99 is above")]
    assert [each for each in script["over"]({**today, "lines of src": 9}) if "is above 9; --lower" in each]
