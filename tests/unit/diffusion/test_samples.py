"""A batch of n is decided on, and looks, like n runs of one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import Blend, Hold, TeaCache
from omnireuse.errors import OmniReuseError
from omnireuse.hooks.regions.rows import rows_of
from omnireuse.loop.strategy import Strategy
from tests.helpers.batches import generators, threshold_between
from tests.helpers.sweep import crossed
from tests.helpers.tiny import TINY, Tiny

BATCH = 3
STEPS = 8


def arguments(tiny: Tiny, guided: bool = True) -> dict[str, Any]:
    """Three samples that differ, so that a measuring policy has a reason to treat them differently."""
    given = tiny.inputs(guided=guided, batch=BATCH)
    return {
        name: value * torch.tensor([0.2, 1.0, 4.0]).reshape(-1, *(1,) * (value.ndim - 1))
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in given.items()
    }


def row(given: dict[str, Any], index: int) -> dict[str, Any]:
    return {key: value[index : index + 1] if isinstance(value, torch.Tensor) else value for key, value in given.items()}


def run(tiny: Tiny, given: dict[str, Any], *rows: int) -> torch.Tensor:
    return tiny.run(steps=STEPS, generator=generators(*(rows or range(BATCH))), **given)


def threshold(tiny: Tiny, region: str) -> float:
    return threshold_between(tiny, region, generator=generators(*range(BATCH)), **arguments(tiny))


@pytest.mark.parametrize(("name", "region"), crossed(["flux", "stable_diffusion", "qwen_image"], ["step", "call"]))
def test_each_sample_gets_what_it_would_get_alone(name: str, region: str) -> None:
    tiny = TINY[name]()
    given = arguments(tiny)
    policy = TeaCache(rel_l1_thresh=threshold(tiny, region))
    options: dict[str, Any] = {"policy": policy, "forecaster": Blend(), "region": region}
    rows: list[int] = []
    denoiser = getattr(tiny.pipe, "transformer", None) or tiny.pipe.unet
    denoiser.register_forward_hook(lambda module, inputs, output: rows.append(output[0].shape[0]))
    with omnireuse.enable(tiny.pipe, **options) as handle:
        verified = run(tiny, given)
        rows.clear()
        together = run(tiny, given)
        torch.testing.assert_close(verified, together)
        assert handle.summary().reused_calls > 0
        assert not handle.summary().fallbacks
    assert min(rows) < max(rows), "some calls compute a part of the batch"
    computed_together = sum(rows)
    rows.clear()
    for index in range(BATCH):
        with omnireuse.enable(tiny.pipe, **options):
            alone = run(tiny, row(given, index), index)
        torch.testing.assert_close(together[index : index + 1], alone, rtol=1e-3, atol=1e-3)
    assert sum(rows) == computed_together, "nothing is computed that a run of one would not compute"


def test_the_batch_may_be_decided_on_as_a_whole(flux: Tiny) -> None:
    policy = TeaCache(rel_l1_thresh=threshold(flux, "step"))
    with omnireuse.enable(flux.pipe, Strategy(policy=policy, per_sample=False)) as handle:
        run(flux, arguments(flux))
    assert {event.sample for event in handle.events} == {None}
    assert len(handle.events) == STEPS


def test_a_schedule_decides_once_for_all_samples(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, speedup=2) as handle:
        run(flux, arguments(flux))
    assert {event.sample for event in handle.events} == {None}


@pytest.mark.parametrize("region", ["step", "call"])
def test_a_batch_that_computes_everything_is_untouched(flux: Tiny, region: str) -> None:
    given = arguments(flux)
    plain = run(flux, given)
    with omnireuse.enable(flux.pipe, policy=TeaCache(rel_l1_thresh=1e-9), region=region):
        watched = run(flux, given)
    assert torch.equal(plain, watched)


def test_what_belongs_to_a_row_is_proposed_by_lengths_and_told_by_declarations() -> None:
    rows, batch = (2, 0), 3
    per_row = torch.arange(6).reshape(3, 2)
    cut = [[4, 5], [0, 1]]
    given = {
        "tensor": per_row,
        "shared": per_row,
        "scalar": torch.tensor(7.0),
        "list": ["a", "b", "c"],
        "nested": [[1, 2, 3]],
        "record": (1.0, 2.0, 3.0),
        "mapping": {"scale": 1.0, "residuals": (per_row, per_row)},
        "layers": [per_row, per_row, per_row],
        "second": per_row.T,
        "frames": torch.arange(6),
        "none": None,
    }
    found = rows_of(given, rows, batch, {"shared": None, "second": 1, "frames": 0})
    assert found["tensor"].tolist() == cut
    assert found["shared"] is per_row
    assert found["scalar"].item() == 7.0
    assert found["list"] == ["c", "a"]
    assert found["nested"] == [[1, 2, 3]]
    assert found["record"] == (1.0, 2.0, 3.0)
    assert [part.tolist() for part in found["mapping"]["residuals"]] == [cut, cut]
    assert [part.tolist() for part in found["layers"]] == [cut, cut, cut]
    assert found["second"].T.tolist() == cut
    assert found["frames"].tolist() == [4, 5, 0, 1]
    assert found["none"] is None


# -- a call is cut only if a cut call was seen to give what the whole one gives ----------------------------------------


AS_ONE = "one decision for a whole batch"
TOKENS = 5


class Denoiser(torch.nn.Module):
    """Called by the names of `inputs`; `mix` gives what is added to its latents for a text."""

    def __init__(self, mix: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.mix = mix
        self.rows: list[int] = []
        self.scale = torch.nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor, **given: Any) -> tuple[torch.Tensor, ...]:
        self.rows.append(len(hidden_states))
        return (torch.tanh(hidden_states * self.scale + self.mix(hidden_states, **given)),)


class Loop:
    """A pipeline of one denoiser."""

    def __init__(self, mix: Callable[..., torch.Tensor]) -> None:
        self.transformer, self.scheduler = Denoiser(mix), FlowMatchEulerDiscreteScheduler()

    @torch.no_grad()
    def __call__(self, rows: tuple[int, ...], inputs: Callable[[tuple[int, ...]], dict[str, Any]]) -> torch.Tensor:
        latents = torch.cat(
            [
                torch.randn(1, TOKENS, 4, generator=torch.Generator().manual_seed(row)) * (0.2, 1.0, 4.0)[row]
                for row in rows
            ]
        )
        self.scheduler.set_timesteps(STEPS)
        for t in self.scheduler.timesteps:
            output = self.transformer(hidden_states=latents, timestep=t.expand(len(rows)), **inputs(rows))[0]
            latents = self.scheduler.step(output, t, latents)[0]
        return latents


def texts(rows: tuple[int, ...]) -> torch.Tensor:
    return torch.stack([torch.randn(TOKENS, 4, generator=torch.Generator().manual_seed(50 + row)) for row in rows])


POLICIES = [TeaCache(rel_l1_thresh=limit) for limit in (0.1, 0.2, 0.3, 0.5)]


def check(
    loop: Loop, inputs: Callable[[tuple[int, ...]], dict[str, Any]], region: str, *, as_one: bool, runs: int = 1
) -> omnireuse.Summary:
    """Each sample of a batch is what it is alone, unless the summary says that the batch is decided as one."""
    plain = loop((0, 1, 2), inputs)
    for row in range(3):
        torch.testing.assert_close(plain[row : row + 1], loop((row,), inputs))
    was_split = False
    for policy in POLICIES:
        options = {"policy": policy, "forecaster": Hold(), "region": region}
        with omnireuse.enable(loop, **options) as handle:
            for _ in range(runs):
                together = loop((0, 1, 2), inputs)
            summary = handle.summary()
        decisions = {(event.run, event.step, event.reused) for event in handle.events}
        was_split = was_split or len(decisions) > len({decision[:2] for decision in decisions})
        if summary.fallbacks.get(AS_ONE):
            continue
        for row in range(3):
            with omnireuse.enable(loop, **options):
                alone = loop((row,), inputs)
            torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-5, atol=1e-6)
    assert was_split
    assert bool(summary.fallbacks.get(AS_ONE)) == as_one
    return summary


BY_FIRST_DIMENSION = Loop(lambda hidden, text: text), lambda rows: {"text": texts(rows)}
BY_SECOND_DIMENSION = (
    # As long as there are no more rows than it gets, it takes the first ones.
    lambda: Loop(lambda hidden, text: text.transpose(0, 1)[: len(hidden)]),
    lambda rows: {"text": texts(rows).transpose(0, 1)},
)
REGIONS = pytest.mark.parametrize("region", ["step", "call"])


@REGIONS
def test_rows_in_the_first_dimension_are_cut_and_computed_whole_once(region: str) -> None:
    loop = Loop(lambda hidden, text: text)
    inputs = lambda rows: {"text": texts(rows)}  # noqa: E731  # one line, used here alone
    check(loop, inputs, region, as_one=False)
    loop.transformer.rows.clear()
    with omnireuse.enable(loop, policy=POLICIES[1], forecaster=Hold(), region=region) as handle:
        loop((0, 1, 2), inputs)
        first = sum(loop.transformer.rows)
        loop((0, 1, 2), inputs)
        second = sum(loop.transformer.rows) - first
    computed = sum(not event.reused for event in handle.events if event.run == 2)
    # The first step of a run decides for all of them where the samples are not known before.
    assert second in (computed, computed + 2)
    assert second < first < second + 3 + 1


@REGIONS
def test_rows_elsewhere_are_not_cut(region: str, caplog: pytest.LogCaptureFixture) -> None:
    loop, inputs = BY_SECOND_DIMENSION[0](), BY_SECOND_DIMENSION[1]
    with caplog.at_level(logging.WARNING, "omnireuse"):
        summary = check(loop, inputs, region, as_one=True)
    assert f"fell back to {AS_ONE} 1 time" in str(summary)
    lines = [line for line in caplog.messages if "Denoiser: the samples of a batch are computed and decided on" in line]
    assert lines
    assert "have another result" in lines[0]


@REGIONS
def test_what_was_verified_with_equal_texts_is_verified_again_with_others(region: str) -> None:
    # Any wrong cut of what is the same for all samples gives the right rows.
    loop, inputs = BY_SECOND_DIMENSION[0](), BY_SECOND_DIMENSION[1]
    same = lambda rows: inputs((0,) * len(rows))  # noqa: E731  # one line, used here alone
    options = {"policy": POLICIES[1], "forecaster": Hold(), "region": region}
    with omnireuse.enable(loop, **options) as handle:
        together = loop((0, 1, 2), same)
        assert not handle.summary().fallbacks
        loop((0, 1, 2), inputs)
        assert handle.summary().fallbacks == {AS_ONE: 1}
    for row in range(3):
        with omnireuse.enable(loop, **options):
            torch.testing.assert_close(together[row : row + 1], loop((row,), same), rtol=1e-5, atol=1e-6)


def positions(rows: tuple[int, ...]) -> dict[str, Any]:
    return {"ids": torch.arange(3.0)}


CASES: dict[str, tuple[Callable[..., torch.Tensor], Callable[[tuple[int, ...]], dict[str, Any]]]] = {
    "positions as long as the batch": (lambda hidden, ids: (ids + 1).sum() * hidden * 0.1, positions),
    "a list as long as the batch": (
        lambda hidden, scales: hidden * sum(scales),
        lambda rows: {"scales": [0.1, 0.2, 0.3]},
    ),
    "an object": (lambda hidden, state: hidden * state.scale, lambda rows: {"state": SimpleNamespace(scale=0.1)}),
}


@REGIONS
@pytest.mark.parametrize("name", ["positions as long as the batch", "a list as long as the batch", "an object"])
def test_a_call_that_cannot_be_cut_is_decided_on_as_one(name: str, region: str) -> None:
    mix, inputs = CASES[name]
    check(Loop(mix), inputs, region, as_one=True)


def test_what_a_call_writes_to_is_not_cut() -> None:
    # As a cache of keys and values: what a cut call writes would be lost.
    cache = {"last": torch.zeros(3, TOKENS, 4)}

    def mix(hidden: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
        cache["last"].copy_(hidden)
        return cache["last"] * 0.1

    loop = Loop(mix)
    with omnireuse.enable(loop, policy=POLICIES[1], forecaster=Hold(), region="call") as handle:
        loop((0, 1, 2), lambda rows: {"cache": cache})
    assert handle.summary().fallbacks == {AS_ONE: 1}


def test_a_cut_call_that_fails_later_does_not_break_the_run() -> None:
    def mix(hidden: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        if len(hidden) == 2:
            raise ValueError("two rows are not served")
        return text

    loop = Loop(mix)
    inputs = lambda rows: {"text": texts(rows)}  # noqa: E731  # one line, used here alone
    for policy in POLICIES:
        with omnireuse.enable(loop, policy=policy, forecaster=Hold(), region="call") as handle:
            loop((0, 1, 2), inputs)
        assert set(handle.summary().fallbacks) <= {AS_ONE}
    assert 2 in loop.transformer.rows


def test_the_verifying_call_leaves_the_random_state() -> None:
    # The denoiser draws a number at each call, and the verifying one counts as none.
    loop = Loop(lambda hidden, text: text + 0 * torch.randn(1))
    torch.manual_seed(0)
    with omnireuse.enable(loop, policy=POLICIES[1], forecaster=Hold(), region="call") as handle:
        loop((0, 1, 2), lambda rows: {"text": texts(rows)})
    state = torch.get_rng_state()
    computed = {event.step for event in handle.events if not event.reused}
    assert len(loop.transformer.rows) == len(computed) + 1
    torch.manual_seed(0)
    for _ in computed:
        torch.randn(1)
    assert torch.equal(state, torch.get_rng_state())


class Interleaved(Loop):
    """Guidance in one call, whose rows are the branches of the first sample, then those of the second."""

    @torch.no_grad()
    def __call__(self, rows: tuple[int, ...], inputs: Callable[[tuple[int, ...]], dict[str, Any]]) -> torch.Tensor:
        latents = torch.cat(
            [torch.randn(1, TOKENS, 4, generator=torch.Generator().manual_seed(r)) * (0.2, 1.0, 4.0)[r] for r in rows]
        )
        text = texts(rows).repeat_interleave(2, 0)
        text[1::2] = 0
        self.scheduler.set_timesteps(STEPS)
        for t in self.scheduler.timesteps:
            output = self.transformer(latents.repeat_interleave(2, 0), t.expand(2 * len(rows)), text=text)[0]
            cond, uncond = output.unflatten(0, (-1, 2)).unbind(1)
            latents = self.scheduler.step(uncond + 2 * (cond - uncond), t, latents)[0]
        return latents


def test_rows_in_another_order_than_the_samples_are_decided_on_as_one(caplog: pytest.LogCaptureFixture) -> None:
    loop = Interleaved(lambda hidden, text: text)
    with (
        caplog.at_level(logging.WARNING, "omnireuse"),
        omnireuse.enable(loop, policy=POLICIES[1], forecaster=Hold()) as handle,
    ):
        loop((0, 1, 2), texts)
    assert handle.summary().fallbacks == {AS_ONE: 1}
    assert {event.sample for event in handle.events} == {None}
    assert "its input is not the latents of the samples once for each branch" in caplog.text


def test_errors_of_the_whole_call_are_the_users() -> None:
    loop = Loop(lambda hidden, text: text)
    with omnireuse.enable(loop, policy=POLICIES[0], region="call"), pytest.raises(TypeError) as raised:
        loop((0, 1, 2), lambda rows: {"unknown": 1})
    assert not isinstance(raised.value, OmniReuseError)
