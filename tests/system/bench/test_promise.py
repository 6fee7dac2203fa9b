"""How often bounds hold, on made-up samples, and what of the two benchmarks can be computed without a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import promise


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    generator = np.random.default_rng(0)
    return [
        {"case": "made up", "guided": True, "computed": count, "psnr": generator.normal(mean, 4, 300).tolist()}
        for count, mean in ((14, 50), (9, 40))
    ]


def test_the_promise_holds_and_the_bound_of_a_mean_does_not(samples: list[dict[str, Any]]) -> None:
    rows = {(row["size"], row["way"]): row for row in promise.resampled(samples, 200)}
    assert (3, "promised") not in rows
    for size in (5, 8, 24, 48):
        assert rows[size, "promised"]["holds"] >= 0.9
        assert rows[size, "promised"]["worst"] <= rows[size, "promised"]["holds"]
        assert rows[size, "promised"]["below"] > 0
    assert rows[8, "mean, 95 %"]["holds"] < 0.3
    assert rows[8, "promised"]["below"] > rows[48, "promised"]["below"]


def test_a_choice_by_quality_holds_or_is_refused(samples: list[dict[str, Any]]) -> None:
    for row in promise.asked(samples, 100):
        assert row["holds"] >= 0.9
        assert 0 < row["refused"] < 1
