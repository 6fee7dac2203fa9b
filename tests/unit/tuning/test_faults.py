"""Whatever goes wrong in measuring: the picture is as without omnireuse, and costs itself alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline

import omnireuse
from omnireuse.profiles.origin import versions
from omnireuse.tuning import recording
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import small_flux as tiny_flux

STEPS = 20


class Cancelled(KeyboardInterrupt):
    """What a user interface raises."""


def failing_at(step: int, error: BaseException) -> Any:
    """A callback that raises at the end of one step."""

    def callback(pipe: Any, now: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        if now == step:
            raise error
        return values

    return callback


@pytest.mark.parametrize(
    ("before", "error"),
    [
        (0, ValueError("wrong")),
        pytest.param(1, torch.OutOfMemoryError("full"), marks=pytest.mark.sweep),
        (2, Cancelled()),
    ],
)
def test_a_picture_that_fails_costs_itself_alone(flux: Tiny, error: BaseException, before: int) -> None:
    full = flux.run(steps=STEPS)
    with omnireuse.enable(flux.pipe) as handle:
        for seed in range(before):
            flux.run(steps=STEPS, seed=seed)
        with pytest.raises(type(error)):
            flux.run(steps=STEPS, callback_on_step_end=failing_at(7, error))
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", before)
        assert "a picture has failed" in str(handle.tuning)
        for _ in range(3 - before):
            assert torch.equal(flux.run(steps=STEPS), full)
        assert handle.tuning.state == "ready"


def test_a_trial_run_that_fails_leaves_the_picture(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    full = flux.run(steps=STEPS)
    with omnireuse.enable(flux.pipe) as handle:
        flux.run(steps=STEPS)
        with monkeypatch.context() as patched:

            def run_out(*_: object) -> None:
                raise torch.OutOfMemoryError("full")

            patched.setattr("omnireuse.tuning.trials.FitStepper.use", run_out)
            assert torch.equal(flux.run(steps=STEPS), full)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 2)
        flux.run(steps=STEPS)
        assert handle.tuning.state == "ready"


def test_a_plan_that_cannot_be_chosen_leaves_the_picture_and_ends_tuning(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("no versions")

    monkeypatch.setattr("omnireuse.profiles.profile.versions", fail)
    full = flux.run(steps=STEPS)
    with omnireuse.enable(flux.pipe) as handle:
        for _ in range(3):
            assert torch.equal(flux.run(steps=STEPS), full)
        assert (handle.tuning.state, handle.tuning.reason) == ("failed", "LookupError: no versions")
        flux.run(steps=STEPS)
        assert handle.summary().reused_calls > 0
    assert sum("LookupError: no versions" in record.getMessage() for record in caplog.records) == 1


def test_a_source_on_the_path_that_is_not_installed_notes_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("omnireuse.profiles.origin.version", lambda name: asked.append(name) or "1")
    assert versions() == {"omnireuse": omnireuse.__version__, "torch": "1", "diffusers": "1"}


def test_an_interrupt_within_a_trial_run_reaches_the_user(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with omnireuse.enable(flux.pipe) as handle:
        flux.run(steps=STEPS)

        def cancel(*_: object) -> None:
            raise Cancelled

        monkeypatch.setattr("omnireuse.tuning.trials.FitStepper.use", cancel)
        with pytest.raises(Cancelled):
            flux.run(steps=STEPS)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 2)


def test_three_failures_in_a_row_end_tuning_with_one_warning(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run_out(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("omnireuse.tuning.trials.FitStepper.use", run_out)
    full = flux.run(steps=STEPS)
    with caplog.at_level(logging.WARNING, logger="omnireuse"), omnireuse.enable(flux.pipe) as handle:
        for _ in range(3):
            assert torch.equal(flux.run(steps=STEPS), full)
        flux.run(steps=STEPS)
        assert handle.tuning.state == "failed"
        assert "OutOfMemoryError" in str(handle.tuning)
        assert not torch.equal(flux.run(steps=STEPS), full), "the untuned default serves"
    assert sum("not tuned" in record.getMessage() for record in caplog.records) == 1


def test_a_recording_that_fails_leaves_the_picture(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    full = flux.run(steps=STEPS)

    def run_out(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    with omnireuse.enable(flux.pipe) as handle:
        with monkeypatch.context() as patched:
            patched.setattr("omnireuse.tuning.recording.copied", run_out)
            assert torch.equal(flux.run(steps=STEPS), full)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 0)


def test_a_picture_that_is_not_finite_is_dropped(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe) as handle:
        flux.run(steps=STEPS, latents=torch.full((1, 16, 16), torch.nan))
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 0)
        flux.run(steps=STEPS)
        assert handle.tuning.pictures == 1


def test_more_memory_than_the_bound_is_not_taken(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_BYTES", 1000)
    with omnireuse.enable(flux.pipe) as handle:
        flux.run(steps=STEPS)
        assert handle.tuning.state == "failed"
        assert "GiB" in str(handle.tuning)


def test_large_recordings_are_kept_on_the_host(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    full = flux.run(steps=STEPS)
    monkeypatch.setattr(recording, "ON_DEVICE", 0)
    with omnireuse.enable(flux.pipe) as handle:
        for _ in range(3):
            assert torch.equal(flux.run(steps=STEPS), full)
        assert handle.tuning.state == "ready"


def test_reuse_may_end_in_the_midst_of_a_measured_picture(flux: Tiny) -> None:
    full = flux.run(steps=STEPS)

    def end(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        if step == 5:
            omnireuse.disable(pipe)
        return values

    omnireuse.enable(flux.pipe)
    assert torch.equal(flux.run(steps=STEPS, callback_on_step_end=end), full)
    assert omnireuse.handle_of(flux.pipe) is None
    assert torch.equal(flux.run(steps=STEPS), full)


def test_an_argument_that_can_be_read_once_is_not_measured(flux: Tiny) -> None:
    class Odd(FluxPipeline):  # type: ignore[misc]  # diffusers is untyped
        def __call__(self, *args: Any, extra: Iterator[int] | None = None, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    flux.pipe.__class__ = Odd
    with omnireuse.enable(flux.pipe) as handle:
        flux.run(steps=STEPS, extra=iter([1]))
        assert handle.tuning.state == "failed"
        assert "read only once" in str(handle.tuning)


def test_latents_that_a_second_call_does_not_repeat_end_tuning(flux: Tiny) -> None:
    noise = iter(range(100, 200))

    class Odd(FluxPipeline):  # type: ignore[misc]  # diffusers is untyped
        def prepare_latents(self, *args: Any, **kwargs: Any) -> Any:
            latents, ids = super().prepare_latents(*args, **kwargs)
            return latents + next(noise), ids

    flux.pipe.__class__ = Odd
    with omnireuse.enable(flux.pipe) as handle:
        for _ in range(6):
            flux.run(steps=STEPS)
        assert handle.tuning.state == "failed"
        assert "other latents" in str(handle.tuning)


def test_two_pipelines_that_share_a_denoiser_are_tuned_apart(flux: Tiny) -> None:
    twin = tiny_flux()
    shared = FluxPipeline(**{**twin.pipe.components, "transformer": flux.pipe.transformer})
    shared.set_progress_bar_config(disable=True)
    other = Tiny(shared, flux.inputs)
    full = [flux.run(steps=STEPS, seed=seed) for seed in range(3)]
    with omnireuse.enable(flux.pipe) as first, omnireuse.enable(shared, computed_steps=8) as second:
        for seed in range(3):
            assert torch.equal(flux.run(steps=STEPS, seed=seed), full[seed])
            # The plans of both lie in one file, which one of them writes at a time.
            other.run(steps=STEPS, seed=seed)
        assert first.tuning.state == "ready"
        assert second.tuning.state in ("waiting", "ready")


def test_two_threads_measure_one_after_the_other() -> None:
    pipes = [tiny_flux() for _ in range(2)]
    full = [pipe.run(steps=STEPS, seed=1) for pipe in pipes]
    made: dict[int, torch.Tensor] = {}
    handles = [omnireuse.enable(pipe.pipe) for pipe in pipes]

    def work(place: int) -> None:
        for _ in range(4):
            made[place] = pipes[place].run(steps=STEPS, seed=1)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states = sorted(handle.tuning.state for handle in handles)
    assert states in (["ready", "ready"], ["ready", "waiting"])
    assert all(not torch.equal(made[place], full[place]) for place in range(2))
    for handle in handles:
        handle.disable()
