"""The contract of a method of a comparison: a cache of another library, a strategy, a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnireuse.errors import UnsupportedModelError
from omnireuse_lab.compare.harness import Harness
from omnireuse_lab.compare.methods.base import Method, Setting
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.record import FAMILIES

__all__ = ["check_method"]


def check_method(
    method: Method,
    pipeline: Any,
    prompt: str,
    *,
    steps: int = 8,
    most: int = 2,
    calibration: Sequence[str] = (),
    **call: Any,
) -> None:
    """Run the first settings of a method on a small pipeline.

    Checked: the grid has settings or refuses the pipeline with `UnsupportedModelError`; every setting gives a finite
    picture and says what it keeps, or that it does not know; enabled again it gives the same picture; afterwards the
    pipeline gives what it gave before.

    Args:
        pipeline: makes an image or a clip from a prompt.
        most: settings to run.
        calibration: prompts for a method that calibrates itself.

    Raises:
        AssertionError: a broken promise.
        StateError: the pipeline gives another picture afterwards.
    """
    name = method.key
    assert method.family in FAMILIES, f"{name}: family must be one of {', '.join(FAMILIES)}, got {method.family!r}"
    workload = Workload(
        name="contract",
        pipeline=pipeline,
        steps=steps,
        guidance=1.0,
        prompts=(prompt,),
        seed=0,
        call=call,
        calibration=tuple(calibration),
    )
    with Harness(workload) as harness:
        try:
            settings = list(method.grid(harness))
        except UnsupportedModelError:
            return
        harness.measure_full()
        assert settings, f"{name}: the grid must give at least one setting, or raise UnsupportedModelError"
        for setting in settings[:most]:
            assert isinstance(setting, Setting), f"{name}: the grid must give settings, got {type(setting).__name__}"
            first, second = (harness.point(method, setting) for _ in range(2))
            assert first.error is None, f"{name} ({setting.call}) failed: {first.error}"
            assert first.computed_steps is not None
            assert first.computed_steps > 0, f"{name} ({setting.call}) computed nothing"
            assert first.each == second.each, f"{name} ({setting.call}) must give the same picture when enabled again"
