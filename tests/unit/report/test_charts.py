"""Every chart that a command or a benchmark draws has a legend, and a sentence that says how to read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omnireuse_lab.record import Case, Comparison, FullRun
from omnireuse_vllm.engine_demo.record import EngineComparison, EngineRun
from omnireuse_vllm.engine_demo.timeline import timeline_figure
from omnireuse_vllm.replay.figure import hit_ratio_figure
from omnireuse_vllm.replay.generate import make_trace
from omnireuse_vllm.replay.run import replay
from reference.figures import PEERS, comparison_figure
from tests.helpers.comparisons import peers, point


def _timeline() -> Any:
    marks = [
        (0, "user 1, turn 1", "prefill", 5),
        (1, "user 1, turn 1", "encode", 1),
        (2, "user 1, turn 1", "decode", 1),
    ]
    counts = {"finish": 1, "prefill": 5, "encode": 1, "decode": 1}
    run = EngineRun(name="caches off", num_steps=3, seconds=1.0, counts=counts, marks=marks)
    return timeline_figure(EngineComparison(off=run, on=run, identical=True, largest_difference=0.0))


def _replay() -> Any:
    trace = make_trace("zipf", num_accesses=200, seed=0)
    return hit_ratio_figure("trace", replay(trace, capacities=[1000, 5000]))


CHARTS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "compare": (lambda: comparison_figure(peers()), ("omnireuse default", "other peer", "fewer steps")),
    "timeline": (_timeline, ("prefill", "decode", "encode")),
    "replay": (_replay, ("LRU",)),
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_explains_itself(name: str) -> None:
    make, expected = CHARTS[name]
    figure = make()
    _explained(figure, expected)


def _explained(figure: Any, expected: tuple[str, ...]) -> None:
    sentence = figure.get_suptitle()
    assert sentence.startswith("Each ")
    assert sentence.endswith(".")
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    assert {text.get_text() for legend in legends for text in legend.get_texts()} >= set(expected)
    # Drawn, nothing of the text lies beyond the picture.
    figure.canvas.draw()
    box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    for legend in legends:
        assert not box.overlaps(legend.get_window_extent()), "text and legend cover each other"


def test_no_two_methods_look_alike() -> None:
    points = tuple(
        point(f"peer {number}", "peer", steps, 30.0 + steps) for number in range(len(PEERS) + 3) for steps in (7, 9)
    )
    case = Case(pipeline="p", steps=28, guidance=1.0, prompts=("a", "b"), full=FullRun(), points=points)
    made = Comparison(command="c", created="now", environment={}, complete=True, cases=(case,))
    (axes,) = comparison_figure(made).axes
    looks = {(line.get_color(), str(line.get_linestyle()), str(line._unscaled_dash_pattern)) for line in axes.lines}
    assert len(looks) == len(PEERS) + 3
