from __future__ import annotations

import io

from reference.figures import comparison_figure, save_figure
from tests.helpers.comparisons import peers


def test_the_same_figure_gives_the_same_bytes() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    for target in (first, second):
        save_figure(comparison_figure(peers()), target)
    assert first.getvalue() == second.getvalue()
