"""What reuse reads back from the device in SGLang's denoising loop: a schedule nothing, a measured step one number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from omnireuse.engines.sglang.native import predicted_noise
from tests.hosts.sglang.conftest import IN_SGLANG, Server
from tests.hosts.sglang.test_tuning import tuning

pytestmark = IN_SGLANG

__all__ = ["tuning"]

READING = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero"}
"""Operations whose result is the host's."""
COPYING = {"tolist", "numpy", "cpu"}
"""Methods that copy to the host. They are seen on the CPU, too, where nothing is copied."""


class Reads:
    """Counts what each step reads, in reuse alone: the branches of guidance are SGLang's, and it may read."""

    def __init__(self) -> None:
        self.by_step: list[int] = []
        self.is_ours = False

    def note(self, is_read: bool) -> None:
        if is_read and self.is_ours:
            self.by_step[-1] += 1


class Operations(TorchDispatchMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads.note(func.overloadpacket.__name__ in READING)
        return func(*args, **(kwargs or {}))


class Methods(TorchFunctionMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        to_host = name == "to" and any(
            isinstance(each, str) and each == "cpu" for each in (*args[1:], *kwargs.values())
        )
        self.reads.note(name in COPYING or to_host)
        return func(*args, **kwargs)


@pytest.fixture
def reads(native: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    from sglang.multimodal_gen.runtime.pipelines_core.stages.denoising import DenoisingStage

    found, inside = Reads(), DenoisingStage._predict_noise_with_cfg.__wrapped__

    def branches(*args: Any, **kwargs: Any) -> Any:
        found.is_ours = False
        try:
            return inside(*args, **kwargs)
        finally:
            found.is_ours = True

    def step(stage: Any, **kwargs: Any) -> Any:
        found.by_step.append(0)
        found.is_ours = True
        try:
            return predicted_noise(branches, stage, **kwargs)
        finally:
            found.is_ours = False

    monkeypatch.setattr(DenoisingStage, "_predict_noise_with_cfg", step)
    # On the CPU alone, errors of forecasts are read back.
    monkeypatch.setattr("omnireuse.loop.branch_state.measures_errors", lambda strategy, _: strategy.policy.needs_error)
    with Operations(found), Methods(found):
        yield found


def steps_of(server: Server, reuse: object) -> tuple[float, float]:
    """Computed and reused steps of a request."""
    from sglang.multimodal_gen.runtime.utils.perf_logger import RequestMetrics

    request = server.request(reuse=reuse)
    request.metrics = metrics = RequestMetrics("a")
    server.pipeline.forward(request, server.args)
    figures = metrics.to_dict()
    assert "omnireuse_failures" not in figures
    return figures["omnireuse_steps_computed"], figures["omnireuse_steps_reused"]


@pytest.mark.parametrize(("reuse", "computed"), [("on", 14), ({"speedup": 3}, 9)])
def test_a_schedule_reads_nothing(native: Server, reads: Reads, reuse: object, computed: int) -> None:
    assert steps_of(native, reuse) == (computed, 28 - computed)
    assert reads.by_step == 28 * [0]


def test_a_tolerance_reads_once_at_a_computed_step(native: Server, reads: Reads) -> None:
    computed, reused = steps_of(native, {"tolerance": 0.2})
    assert reused > 0
    assert 0 < sum(reads.by_step) <= computed
    assert max(reads.by_step) == 1


def test_a_tuned_plan_reads_nothing(native: Server, tuning: Path, request: pytest.FixtureRequest) -> None:
    for seed in (1, 2, 3):
        native.pipeline.forward(native.request(reuse="on", seed=seed), native.args)
    reads = request.getfixturevalue("reads")
    assert steps_of(native, "on") == (14, 14)
    assert reads.by_step == 28 * [0]
