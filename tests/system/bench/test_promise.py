"""How often bounds hold, on made-up samples, and what of the two benchmarks can be computed without a pipeline."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bench import between, promise


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


def test_the_tenth_is_what_nine_of_ten_reach() -> None:
    assert promise.tenth_of(list(range(100))) == 10
    assert promise.tenth_of([3.0] * 7) == 3


def test_the_tables_show_each_sample_and_each_way(samples: list[dict[str, Any]]) -> None:
    record = {
        "samples": samples,
        "bounds": promise.resampled(samples, 20),
        "asked": promise.asked(samples, 20),
        "look_ms": promise.cost_of_a_look(),
    }
    target = io.StringIO()
    promise.show(record, Console(file=target, width=150))
    text = target.getvalue()
    for word in ("made up, guided", "promised", "smallest", "refused", "a thousand weights"):
        assert word in text


def test_carried_weights_are_compared_within_and_beyond_the_plans() -> None:
    rows = [
        {
            "case": "made up",
            "guided": False,
            "computed": count,
            "between": within,
            "blend": [40.0, 42.0],
            "carried": own,
        }
        for count, within, own in ((12, True, [41.0, 43.5]), (20, False, [39.0, 41.0]))
    ]
    target = io.StringIO()
    between.show(rows, Console(file=target, width=100))
    text = target.getvalue()
    assert "carried weights between plans: +1.2 dB on average, better in 1 of 1" in text
    assert "carried weights beyond plans: -1.0 dB on average, better in 0 of 1" in text
    assert "20 of 28, beyond" in text
