"""How the plots of the documentation look."""

from __future__ import annotations

import colorsys

import pytest

from omnireuse_lab.record import read_comparison
from reference.figures import BASELINES, MARKERS, OURS, PEERS, comparison_figure
from tests import TOP

RECORD = TOP / "bench" / "results" / "compare_faces.json"


@pytest.mark.parametrize("colour", [*PEERS, *BASELINES])
def test_nothing_but_omnireuse_is_green(colour: str) -> None:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, _, saturation = colorsys.rgb_to_hls(red, green, blue)
    assert saturation < 0.2 or not 75 / 360 < hue < 190 / 360


def test_omnireuse_has_one_green_and_its_methods_differ_in_markers() -> None:
    comparison = read_comparison(RECORD)
    ours = {point.method for case in comparison.cases for point in case.points if point.family == "ours"}
    for panel in comparison_figure(comparison).axes:
        lines = [line for line in panel.lines if line.get_color() == OURS]
        assert 1 < len(lines) <= len(ours) <= len(MARKERS)
        assert len({line.get_marker() for line in lines}) == len(lines)
