"""What people see of a handle, a summary and a profile: short in a console, with strips and figures in a notebook."""

from __future__ import annotations

import io
import math
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec import structs

import omnireuse
from omnireuse import Profile, Spread, Steps, Summary
from omnireuse.loop.events import Decision, RequestBegan, RunEnded, Unlike
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.summary.counters import Counts
from omnireuse.summary.summary import Promise
from tests import TOP
from tests.helpers.tiny import Tiny

PROFILE = TOP / "models/shapes-flux/profiles/shapes-flux-28-unguided.json"


class Elements(HTMLParser):
    """Checks that every element is closed, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def text_of(html: str) -> str:
    parser = Elements()
    parser.feed(html)
    assert parser.open == []
    return parser.text


def summary_of(
    *reused: bool, runs: int = 1, branches: int = 1, errors: tuple[float, ...] = (), heading: float | None = None
) -> Summary:
    counts = Counts()
    for run in range(1, runs + 1):
        for step, each in enumerate(reused):
            for branch in range(branches):
                counts.take(
                    Decision(
                        run=run,
                        step=step,
                        total=len(reused),
                        branch=str(branch),
                        reused=each and not branch,
                        reason="policy" if step else "first",
                        sigma=None,
                        drift=None,
                        error=errors[step] if errors and not each else None,
                        heading=None if each else heading,
                        host_seconds=0.001,
                    )
                )
        counts.take(RunEnded(run=run, kept_bytes=2**20))
    return counts.summary("my strategy")


def test_a_summary_says_what_was_done_and_explains_its_figures() -> None:
    text = str(summary_of(False, True, False, True, errors=(0.1, 0, 0.8), heading=0.3))
    assert text.splitlines() == [
        "my strategy: 2 of 4 steps computed (2.00x fewer) in 1 run",
        "  latest run: █░█░ (█ computed, ░ forecast)",
        "  reused 2 steps: as the policy chose",
        "  computed 2 steps: 1 at the first step, 1 as the policy chose",
        "  a decision and its forecast took 1.000 ms; values kept for forecasts took 1.00 MiB at most",
        "  this budget is beyond what forecasts can do here: expect little more than 2 plain steps give, or the last "
        "output held",
    ]
    for errors, heading in [((0.1, 0, 0.6), 0.3), ((0.1, 0, 0.8), 0.5), ((0.1, 0, 0.8), None)]:
        assert not summary_of(False, True, False, errors=errors, heading=heading).is_beyond
    assert "beyond" not in str(summary_of(False, False, errors=(1.2, 1.2), heading=0.3))
    assert "none reused" in str(summary_of(False, False))


def test_a_notebook_shows_the_steps_of_the_latest_run(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, policy=Steps(steps=(0, 3))) as handle:
        assert "Nothing was decided yet" in text_of(handle._repr_html_())
        flux.run(steps=6)
        summary = handle.summary()
        assert summary.last_run == (1, 0, 0, 1, 0, 1)
        shown = text_of(handle._repr_html_())
    assert "Steps × Hold on step on FluxPipeline, enabled" in shown
    assert "3 of 6 steps computed (2.00x fewer) in 1 run" in shown
    assert "disabled" in handle._repr_html_()
    named = replace(summary, name="<script>&")._repr_html_()
    assert "<script>" not in named, "names cannot break the page"
    assert text_of(named).startswith("<script>&3 of 6")


@pytest.mark.parametrize(
    ("promise", "said"),
    [
        (None, ""),
        (
            Promise(tenth=-math.inf, expected=math.nan, prompts=0, coordinates=(1.0, 0.5)),
            "not promised: the plan was not judged on held-out prompts",
        ),
        (
            Promise(tenth=43.1, expected=50.4, prompts=8, coordinates=(1.0, 0.5)),
            "promised: nine of ten reach 43.1 db; mean 50.4 on 8 held-out prompts",
        ),
        (
            Promise(tenth=43.1, expected=50.4, prompts=8, coordinates=(1.0, 0.5), but="it rains"),
            "not promised: it rains (the profile: nine of ten reach 43.1 db; mean 50.4 on 8 held-out prompts)",
        ),
        (
            Promise(tenth=-math.inf, expected=50.4, prompts=1, coordinates=(1.0, 0.5)),
            "not promised: too few held-out prompts (mean 50.4 on 1 held-out prompt)",
        ),
    ],
)
def test_what_is_promised_is_in_both_forms(promise: Promise | None, said: str) -> None:
    summary = replace(summary_of(False, True), promise=promise)
    for shown in (str(summary).lower(), text_of(summary._repr_html_()).lower()):
        assert said in shown
        assert shown.count("promised") == (promise is not None)


@pytest.mark.parametrize(
    ("total", "noises", "said"),
    [
        (2, (1.0, 0.5), None),
        (2, (1.0, 0.5005), None),
        (None, (), None),
        (2, (None, None), None),
        (3, (1.0, 0.5, 0.2), "a run has 3 steps, the profile was measured on runs of 2 steps"),
        (2, (1.0, 0.6), "a run has other noise levels, the profile was measured on runs of 2 steps"),
    ],
)
def test_a_promise_is_for_runs_like_the_profiles(
    total: int | None, noises: tuple[float | None, ...], said: str | None
) -> None:
    levels = [NoiseLevel(sigma=noise, coordinate=noise or 0.0, sample_weight=noise) for noise in noises]
    assert Promise(tenth=43.1, expected=50.4, prompts=8, coordinates=(1.0, 0.5)).unlike(total, levels) == said


def test_what_was_unlike_ends_a_promise_until_the_next_request() -> None:
    promise, counts = Promise(tenth=43.1, expected=50.4, prompts=8, coordinates=(1.0, 0.5)), Counts()
    assert counts.summary("", promise).promise_holds
    counts.take(Unlike("it rains"))
    counts.take(Unlike("it snows"))
    assert "not promised: it rains" in str(counts.summary("", promise).promise)
    counts.take(RequestBegan())
    assert counts.summary("", promise).promise_holds


def test_runs_that_were_broken_off_are_kept_out_of_the_means(flux: Tiny) -> None:
    def stop(pipe: Any, step: int, timestep: Any, kept: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            raise KeyboardInterrupt
        return kept

    def interrupt(pipe: Any, step: int, timestep: Any, kept: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step == 2
        return kept

    with omnireuse.enable(flux.pipe, policy=Spread(num_computed=3)) as handle:
        with pytest.raises(KeyboardInterrupt):
            flux.run(callback_on_step_end=stop)
        assert str(handle.summary()).splitlines()[0].endswith(": 1 run ended before the last step; no mean includes it")
        flux.run()
        flux.run(callback_on_step_end=interrupt)
    summary = handle.summary()
    assert (summary.runs, summary.aborted, summary.broken) == (3, 2, 0)
    assert (summary.computed_steps, summary.mean_steps, summary.step_ratio) == (3.0, 6.0, 2.0)
    assert (summary.steps, summary.calls) == (12, 12)
    text = str(summary)
    assert "3 of 6 steps computed (2.00x fewer) in 1 run\n" in text
    assert "2 runs ended before the last step; no mean includes them" in text


@pytest.mark.parametrize("region", ["step", "call"])
def test_a_run_whose_last_solver_step_fails_was_broken_off(
    flux: Tiny, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = type(flux.pipe.scheduler)
    whole, places = solver.step, iter(range(6))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(places) == 5:
            raise RuntimeError("out of memory")
        return whole(*args, **kwargs)

    monkeypatch.setattr(solver, "step", failing)
    handle = omnireuse.enable(flux.pipe, policy=Spread(num_computed=3), region=region)
    with handle, pytest.raises(RuntimeError, match="out of memory"):
        flux.run()
    assert (handle.summary().runs, handle.summary().aborted) == (1, 1)


def test_a_stream_that_cannot_show_the_strip_gets_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    print(summary_of(False, True, True))
    stream.seek(0)
    assert "latest run: #.. (# computed, . forecast)" in stream.read()


def test_short_forms_fit_a_line(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, policy=Spread(num_computed=3)) as handle:
        assert repr(handle).endswith("on step: nothing decided yet>>")
        flux.run(steps=6)
        done = "<Summary of Spread × Hold on step: 3 of 6 steps computed (2.00x fewer), 1 run>"
        assert repr(handle.summary()) == done
        assert repr(handle) == f"<Handle on FluxPipeline: {done}>"
    assert repr(handle) == f"<Handle on FluxPipeline (disabled): {done}>"
    profile = Profile.load(PROFILE)
    assert repr(profile) == (
        "<Profile of FluxTransformer2DModel: 28 steps, plans for 4 or 5 or 7 or 9 or 11 or 14 computed>"
    )
    assert repr(structs.replace(profile, complete=False)).endswith("computed, search not finished>")
