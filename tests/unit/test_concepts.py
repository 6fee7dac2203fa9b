from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from typing import Any

import pytest

from tests import TOP


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(TOP / "scripts" / "concepts.py"))


def test_no_part_imports_more_than_it_may(script: dict[str, Any]) -> None:
    found = script["figures"]()
    assert script["over"](found) == []
    assert script["over"]({**found, "circles of files": 99})[0].startswith("circles of files: 99 is above")


def test_a_reused_step_passes_few_files() -> None:
    command = [sys.executable, "-W", "ignore", str(TOP / "scripts" / "hops.py"), "--check"]
    with_top = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TOP), os.environ.get("PYTHONPATH", "")))}
    ran = subprocess.run(command, cwd=TOP, env=with_top, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len(re.findall(r"step \d+ passes \d+ files", ran.stdout)) == 2


def test_a_closure_goes_through_what_is_imported(script: dict[str, Any]) -> None:
    found = script["closure"]("omnireuse.loop.events")
    assert {"omnireuse.loop.events", "omnireuse.policies.base", "omnireuse.errors"} <= found
