from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnireuse.cli import main
from omnireuse_engines.vllm.replay.generate import make_trace
from omnireuse_engines.vllm.replay.oracles import interval_bound, lru_hits
from omnireuse_engines.vllm.replay.run import BOUND, LRU, OURS, manager_hits, replay
from omnireuse_engines.vllm.replay.traces import Access, write_trace

SIZES = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 5, "f": 2, "g": 4, "h": 1}


@st.composite
def traces(draw: st.DrawFn, *, is_equal: bool, max_size: int = 60) -> list[Access]:
    """Accesses of a few items, some of them gathered in requests."""
    keys = draw(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=max_size))
    requests = draw(st.lists(st.sampled_from([None, "r", "s"]), min_size=len(keys), max_size=len(keys)))
    return [
        Access(key=key, size=3 if is_equal else SIZES[key], request=request)
        for key, request in zip(keys, requests, strict=True)
    ]


@given(traces(is_equal=False), st.integers(1, 20))
def test_the_cache_does_not_beat_the_interval_bound(trace: list[Access], capacity: int) -> None:
    bound = interval_bound(trace, capacity, [1.0] * len(trace))
    assert sum(manager_hits(trace, capacity)[0]) <= bound + 1e-9


@given(traces(is_equal=False))
def test_where_everything_fits_each_item_misses_once(trace: list[Access]) -> None:
    hits, num_refused = manager_hits(trace, sum(SIZES.values()))
    assert (hits, num_refused) == (lru_hits(trace, sum(SIZES.values())), 0)
    assert len(hits) - sum(hits) == len({access.key for access in trace})


def test_frequency_outlives_a_scan() -> None:
    trace = make_trace("scan", num_accesses=3000, seed=1, size=256)
    assert sum(manager_hits(trace, 256 * 30)[0]) > sum(lru_hits(trace, 256 * 30))


def test_a_small_replay_by_hand() -> None:
    trace = [Access(key=key, size=1, cost=cost) for key, cost in (("a", 1.0), ("b", 2.0), ("a", 1.0), ("b", 2.0))]
    scores = {(score.policy, score.capacity): score for score in replay(trace, capacities=[2, 1])}
    assert list(scores) == [(policy, capacity) for capacity in (1, 2) for policy in (OURS, LRU, BOUND)]
    assert [(s.hit_ratio, s.saved) for s in scores.values()][3:] == [(0.5, 0.5)] * 3
    assert [(s.hit_ratio, s.saved) for s in scores.values()][:2] == [(0.0, 0.0)] * 2
    # Cost differs, so what could be saved is bounded by room and time: 3 of the 4 that both stays take, the dear first.
    assert (scores[BOUND, 1].hit_ratio, scores[BOUND, 1].saved) == (0.25, pytest.approx((2 + 0.5) / 6))


# --- the command


def test_the_command_makes_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out"
    assert main(["replay", str(trace), "--make", "multi-turn", "--accesses", "300", "--seed", "5"]) == 0
    assert "300 accesses" in capsys.readouterr().out
    assert main(["replay", str(trace), "--capacity", "20000,5000", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    for words in ("hit ratio", "share of encode time saved", "5,000", "20,000", OURS, "PFOO-L"):
        assert words in shown
    record = json.loads((out / "replay.json").read_text("utf-8"))
    assert record["accesses"] == 300
    assert len(record["scores"]) == 2 * 3
    assert (out / "hit_ratio.png").read_bytes().startswith(b"\x89PNG")


def test_beside_the_product_alone_the_figures_are_written_and_the_plot_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("matplotlib", "omnireuse_lab", "vllm"):
        monkeypatch.setitem(sys.modules, module, None)
    trace = tmp_path / "trace.csv"
    write_trace(make_trace("zipf", num_accesses=100, seed=0), trace)
    assert main(["replay", str(trace), "--out", str(tmp_path / "out")]) == 0
    assert "no hit_ratio.png, as matplotlib is not installed" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["replay.json"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seed", "1"], "replay(--seed 1): --seed must come with --make, got no --make"),
        (
            ["--make", "zipf", "--out", "o"],
            "replay(--out o): --out must not come with --make, which replays nothing, got",
        ),
        (["--make", "zip"], "unknown kind of trace 'zip'; did you mean 'zipf'?"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "trace.csv"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
