"""Loops that denoise window by window: each has its own memory, or every step is computed and it is said why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import diffusers
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import EveryNth
from omnireuse.hooks.windows import Windows
from tests.helpers.tiny import Tiny, stable_diffusion, tensor, varied
from tests.models.diffusion.pipelines import video

STEPS, LENGTH = 20, 16
HOW: dict[str, dict[str, Any]] = {
    "tuned": {},
    "default": {"tune": False},
    "step": {"policy": EveryNth(every=2)},
    "call": {"policy": EveryNth(every=2), "region": "call"},
}
MOVING = "computing after a change of the window that a call is given"
PANORAMA = "computing every step of a loop of windows"


class Denoiser(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.within, self.out = torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 3, padding=1)
        varied(self)

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return sample - 2 * self.out(torch.tanh(2 * self.within(sample) + 2 * timestep))

    @contextmanager
    def cache_context(self, name: str) -> Iterator[None]:
        yield


class Averaging:
    """Averages what the denoiser returns for overlapping windows; `begins` says where they begin at each step."""

    def __init__(self, begins: Callable[[int], list[int]], *, copies: bool = False, named: bool = False) -> None:
        self.transformer, self.scheduler = Denoiser(), FlowMatchEulerDiscreteScheduler()
        self.begins, self.copies, self.named = begins, copies, named

    @torch.no_grad()
    def __call__(self, steps: int = STEPS, advance: Callable[[], object] | None = None) -> torch.Tensor:
        latents = tensor(1, 4, 4, 40, seed=0)
        self.scheduler.set_timesteps(steps)
        sigmas = self.scheduler.sigmas.tolist()
        for step, time in enumerate(self.scheduler.timesteps):
            total, count = torch.zeros_like(latents), torch.zeros_like(latents)
            for begin in self.begins(step):
                window = latents[..., begin : begin + LENGTH]
                with self.transformer.cache_context(f"window {begin}") if self.named else nullcontext():
                    output = self.transformer(window.clone() if self.copies else window, time / 1000)
                total[..., begin : begin + LENGTH] += output
                count[..., begin : begin + LENGTH] += 1
            if advance is not None:
                latents = latents + (sigmas[step + 1] - sigmas[step]) * total / count
                advance()
            else:
                latents = self.scheduler.step(total / count, time, latents, return_dict=False)[0]
        return latents


STAYING = [0, 8, 16, 24]


def turned(step: int) -> list[int]:
    return STAYING[step % 4 :] + STAYING[: step % 4]


def shifted(step: int) -> list[int]:
    return [*(begin + step % 8 for begin in (8, 16)), 0, 24]


def shifted_late(step: int) -> list[int]:
    return shifted(step // 10)


def added(step: int) -> list[int]:
    return STAYING + [4] * (step > 9)


def error(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("how", ["default", "call"])
def test_windows_that_stay_are_forecast_each_from_its_own(how: str) -> None:
    loop = Averaging(lambda _: STAYING)
    full, plain = loop(), loop(steps=STEPS // 2)
    with omnireuse.enable(loop, **HOW[how]) as handle:
        assert error(loop(), full) < error(plain, full)
        assert handle.summary().reused_calls >= 8
        assert not handle.summary().fallbacks
    if how == "call":
        with omnireuse.enable(loop, **HOW[how]) as handle:
            assert error(loop(advance=handle.advance), full) < error(plain, full)


@pytest.mark.parametrize("how", ["tuned", "step", "call"])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("begins", [turned, shifted])
def test_windows_that_move_compute_every_step_and_are_named(
    begins: Callable[[int], list[int]], copies: bool, how: str, cache: None, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Averaging(begins, copies=copies)
    full, stepped = loop(), loop(advance=lambda: None)
    with omnireuse.enable(loop, **HOW[how]) as handle:
        for _ in range(2):
            assert torch.equal(loop(), full)
        assert handle.summary().fallbacks == {MOVING: 2 * (STEPS - 1)}
        if how == "call":
            assert torch.equal(loop(advance=handle.advance), stepped)
        if how == "tuned":
            assert handle.tuning.pictures == 0
    assert caplog.text.count("calls of a step are given other windows of the latents than at the step before") <= 1


@pytest.mark.parametrize("begins", [shifted_late, added])
def test_windows_that_begin_to_move_compute_every_further_step(begins: Callable[[int], list[int]]) -> None:
    loop = Averaging(begins)
    with omnireuse.enable(loop, **HOW["call"]) as handle:
        loop()
    assert any(each.reused for each in handle.events if each.step < 10)
    assert not any(each.reused for each in handle.events if each.step > 10)
    assert handle.summary().fallbacks == {MOVING: STEPS - 10}


@pytest.mark.parametrize("begins", [lambda _: STAYING, turned, shifted])
def test_named_windows_are_forecast_each_from_its_own_wherever_they_come(begins: Callable[[int], list[int]]) -> None:
    loop = Averaging(begins, named=True)
    full, plain = loop(), loop(steps=STEPS // 2)
    with omnireuse.enable(loop, **HOW["call"]) as handle:
        assert error(loop(), full) < error(plain, full)
        assert handle.summary().reused_calls >= 18
        assert not handle.summary().fallbacks


def panorama() -> Tiny:
    class Small(diffusers.StableDiffusionPanoramaPipeline):
        def get_views(self, *_: Any, **__: Any) -> list[tuple[int, int, int, int]]:
            return [(0, 8, begin, begin + 8) for begin in (0, 4)]

    tiny = stable_diffusion()
    pipe = Small(**tiny.pipe.components, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    return Tiny(pipe, lambda **given: {**tiny.inputs(**given), "width": 16})


@pytest.mark.parametrize("how", ["tuned", "step", "call"])
def test_a_panorama_whose_windows_have_schedulers_of_their_own_is_computed(
    how: str, cache: None, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = panorama()
    full = tiny.run()
    with omnireuse.enable(tiny.pipe, **HOW[how]) as handle:
        assert torch.equal(tiny.run(), full)
        assert handle.summary().fallbacks[PANORAMA] == 1
        assert handle.summary().reused_calls == 0
    assert caplog.text.count("stepped several times at one timestep, as loops of windows do") == 1


def forcing() -> Tiny:
    made = video.PIPELINES["skyreels_v2"]()
    pipe = diffusers.SkyReelsV2DiffusionForcingPipeline(**made.pipe.components)
    pipe.set_progress_bar_config(disable=True)
    frames = {"prompt": None, "num_frames": 9, "base_num_frames": 9}
    return Tiny(pipe, lambda **given: made.inputs(**given) | frames)


@pytest.mark.parametrize(("how", "lag"), [("tuned", 0), ("default", 2), ("call", 2)])
def test_diffusion_forcing_is_computed_and_named(
    how: str, lag: int, cache: None, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = forcing()
    full = tiny.run(ar_step=lag)
    with omnireuse.enable(tiny.pipe, **HOW[how]) as handle:
        assert torch.equal(tiny.run(ar_step=lag), full)
        assert handle.summary().fallbacks == {"computing every step of frames with timesteps of their own": 1}
    assert "each frame has a timestep of its own" in caplog.text
    assert "nobody calls scheduler.step" not in caplog.text


def test_diffusion_forcing_whose_frames_share_their_timesteps_is_served_when_a_callback_says_so() -> None:
    tiny = forcing()
    full, plain = tiny.run(steps=8, ar_step=0), tiny.run(steps=4, ar_step=0)
    with omnireuse.enable(tiny.pipe, **HOW["call"]) as handle:
        served = tiny.run(steps=8, ar_step=0, callback_on_step_end=lambda *_: handle.advance() or {})
    assert error(served, full) < error(plain, full)
    assert (handle.summary().steps, handle.summary().reused_calls) == (8, 6)


# --- windows alone


def test_calls_with_equal_latents_are_branches_of_guidance_whatever_a_solver_makes_of_them() -> None:
    windows = Windows()
    for step in range(3):
        latents = tensor(1, 4, 8, seed=step)  # as unlike as those of a solver that draws all noise anew
        assert not any(windows.move(step, None, place, latents.clone(), is_again=False) for place in range(2))
    assert not windows.are_several


def test_a_branch_of_guidance_that_begins_late_is_no_window() -> None:
    windows = Windows()
    latents = [tensor(1, 4, 8, seed=place) for place in range(2)]
    for step in range(4):
        assert not any(windows.move(step, "cond", place, latents[place], is_again=False) for place in range(2))
        assert not (step > 1 and windows.move(step, "uncond", 0, latents[0], is_again=False))
    assert windows.move(4, "cond", 2, latents[0], is_again=False)


def test_a_second_step_of_one_call_at_the_time_of_the_first_is_another_window() -> None:
    windows = Windows()
    assert not windows.move(0, None, 0, tensor(1, 4, 8, seed=0), is_again=False)
    assert windows.move(1, None, 0, tensor(1, 4, 8, seed=1), is_again=True)
