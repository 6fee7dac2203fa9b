"""The figures of a summary: what tuning measured is told apart from what it gained."""

from omnireuse.loop.events import Decision, RunEnded
from omnireuse.summary.counters import Counts


def add(counts: Counts, run: int, reused: tuple[bool, ...], *, reason: str = "policy", seconds: float = 0.0) -> None:
    for step, is_reused in enumerate(reused):
        counts.take(
            Decision(
                run=run,
                step=step,
                total=len(reused),
                branch="step",
                reused=is_reused,
                reason=reason,
                sigma=None,
                drift=None,
                error=None,
                host_seconds=0.0,
            )
        )
    counts.take(RunEnded(run=run, seconds=seconds))


def test_means_and_saved_time_are_of_the_runs_after_the_measured_ones() -> None:
    counts = Counts()
    for run in (1, 2, 3):
        add(counts, run, (False,) * 4, reason="measuring", seconds=9.0)
    assert str(counts.summary("default")).startswith("default: 4 of 4 steps computed (none reused) in 3 runs")
    for run in (4, 5):
        add(counts, run, (False, True, False, True), seconds=6.0)
    summary = counts.summary("default")
    assert (summary.runs, summary.measured, summary.steps) == (5, 3, 20)
    assert (summary.computed_steps, summary.step_ratio, summary.saved_seconds) == (2, 2, 12)
    first, _, second, *_ = str(summary).splitlines()
    assert first == "default: since tuning: 2 of 4 steps computed (2.00x fewer) in 2 runs, on average, about 12 s saved"
    assert second.strip() == "tuning took 3 runs in full, and trial runs beside them"


def test_runs_that_ended_early_save_nothing() -> None:
    counts = Counts()
    add(counts, 1, (False, True), seconds=6.0)
    counts.take(RunEnded(run=2, outcome="aborted", seconds=50.0))
    assert counts.summary("default").saved_seconds == 6
