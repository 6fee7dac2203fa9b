"""Tuning where an engine hands in a request that the call changes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import Profile
from omnireuse.errors import ConfigError, StateError
from omnireuse.pipelines.call_arguments import Calls
from omnireuse.tuning.replay import ArgumentCopy
from omnireuse_engines.settings import RequestSettings, ServerSettings
from omnireuse_engines.whole import WholeRequests
from reference.case import IMAGES

STEPS = 24


@dataclass
class Request:
    """What the engine hands in: the call uses it up."""

    generator: torch.Generator
    guidance_scale: float = 2.0
    notes: list[torch.Tensor] = field(default_factory=list)
    lock: Any = None


class Denoiser(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pace = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        noise = timestep / 1000
        return torch.sin(self.pace * latents) * (0.3 + noise) + latents.roll(1, -1) * noise**2


class EnginePipeline(torch.nn.Module):
    """A native pipeline of an engine, which calls `forward` with a request."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer, self.scheduler = Denoiser(), FlowMatchEulerDiscreteScheduler()

    @torch.no_grad()
    def forward(self, request: Request) -> list[torch.Tensor]:
        assert not request.notes, "the request was used before"
        latents = torch.randn(1, 16, 8, generator=request.generator)
        request.notes.append(latents)
        self.scheduler.set_timesteps(STEPS)
        for timestep in self.scheduler.timesteps:
            output = self.transformer(latents, timestep)
            latents = self.scheduler.step(output, timestep, latents, return_dict=False)[0]
        latents = latents + 0.01 * torch.randn(1, 16, 8, generator=request.generator)
        return [latents]


class EngineCalls(Calls):
    def arguments(self, pipeline: Any, args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
        return {"guidance_scale": args[0].guidance_scale}

    def untunable(self, args: tuple[Any, ...], kwargs: Any) -> str | None:
        return "of another kind" if args[0].guidance_scale == 0 else None


@pytest.fixture(autouse=True)
def _tunes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    yield
    # An engine's pipeline lives as long as its process, and reuse on it.
    while Server.pipelines:
        omnireuse.disable(Server.pipelines.pop())


def request(seed: int, **fields: Any) -> Request:
    return Request(torch.Generator().manual_seed(seed), **fields)


class Server:
    """One pipeline with its requests, one after the other."""

    pipelines: ClassVar[list[EnginePipeline]] = []

    def __init__(self, **options: Any) -> None:
        self.pipeline = EnginePipeline()
        self.pipelines.append(self.pipeline)
        self.whole = WholeRequests(ServerSettings(options, place="--cache-config"), EngineCalls())

    def serve(self, given: Request, asked: object = None) -> tuple[torch.Tensor, dict[str, float]]:
        wanted = RequestSettings.of({} if asked is None else {"omnireuse": asked})
        self.whole.begin(self.pipeline, wanted)
        (result,) = self.pipeline.forward(given)
        return result, {name.removeprefix("omnireuse_"): each for name, each in self.whole.figures().items()}


def test_the_first_requests_are_bit_equal_and_later_ones_repeat() -> None:
    server, plain = Server(), EnginePipeline()
    for seed in range(3):
        given, twin = request(seed), request(seed)
        result, figures = server.serve(given)
        assert torch.equal(result, plain(twin)[0])
        # Trial runs have changed neither the request nor its generator.
        assert len(given.notes) == 1
        assert torch.equal(given.generator.get_state(), twin.generator.get_state())
        assert (figures["pictures_measured"], figures["tuned"], figures["steps_reused"]) == (seed + 1, seed == 2, 0)
    first, figures = server.serve(request(4))
    assert (figures["tuned"], figures["steps_reused"]) == (1, STEPS // 2)
    server.serve(request(5))
    assert torch.equal(server.serve(request(4))[0], first)
    server.whole.end()
    assert torch.equal(server.pipeline.forward(request(4))[0], plain(request(4))[0])


def test_requests_that_ask_for_something_else_are_not_measured_and_lose_nothing() -> None:
    server, plain = Server(), EnginePipeline()
    states = []
    for seed in range(3):
        _, figures = server.serve(request(9), {"speedup": 3})
        assert figures == {"strategy": "3x fewer steps", "steps_computed": 8, "steps_reused": 16}
        assert torch.equal(server.serve(request(9), "off")[0], plain(request(9))[0])
        states.append(server.serve(request(seed))[1]["pictures_measured"])
    assert states == [1, 2, 3]
    assert server.serve(request(4))[1]["tuned"] == 1


def test_reuse_that_somebody_else_has_disabled_takes_no_calls() -> None:
    server, plain = Server(tune=False), EnginePipeline()
    server.serve(request(0))
    omnireuse.disable(server.pipeline)
    with omnireuse.enable(server.pipeline, computed_steps=6, tune=False) as handle:
        server.pipeline.forward(request(1))
        assert (handle.summary().runs, handle.summary().computed_calls) == (1, 6)
    assert torch.equal(server.pipeline.forward(request(1))[0], plain(request(1))[0])


def test_a_request_that_is_not_to_be_measured_follows_the_untuned_default() -> None:
    server = Server()
    server.serve(request(0))
    _, figures = server.serve(request(1, guidance_scale=0.0))
    assert figures == {"strategy": "default", "steps_computed": 12, "steps_reused": 12}
    assert server.serve(request(1))[1]["pictures_measured"] == 2


def test_a_request_that_cannot_be_copied_leaves_the_pipeline_untuned(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    result, figures = server.serve(request(0, lock=threading.Lock()))
    assert (figures["tuned"], figures["steps_reused"]) == (0, 12)
    assert result.isfinite().all()
    assert "a call cannot be made again: an argument of Request cannot be copied" in caplog.text


@pytest.mark.parametrize(
    ("options", "tuned"), [({"tune": False}, None), ({"tune": 2}, [1, 2, 2]), ({"speedup": 2}, [1, 2, 3])]
)
def test_a_server_says_how_many_pictures_are_measured(options: dict[str, Any], tuned: list[int] | None) -> None:
    server = Server(**options)
    figures = [server.serve(request(seed))[1] for seed in range(3)]
    if tuned is None:
        assert [each["steps_reused"] for each in figures] == [12, 12, 12]
    else:
        assert [each["pictures_measured"] for each in figures] == tuned


@pytest.mark.parametrize("fixed", [{"tolerance": 0.1}, {"backend": "easy_cache"}])
def test_what_has_chosen_a_plan_is_not_tuned(fixed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="leave one of the two out"):
        ServerSettings({**fixed, "tune": True}, place="--cache-config")
    assert ServerSettings(fixed, place="--cache-config").tune is False


def test_a_snapshot_is_what_the_argument_was() -> None:
    given = request(3)
    given.notes.append(torch.ones(2))
    snapshot = ArgumentCopy(given)
    given.notes[0].zero_()
    given.notes.append(torch.zeros(1))
    one, other = snapshot.restored(), snapshot.restored()
    one.notes[0].add_(5)
    assert torch.equal(other.notes[0], torch.ones(2))
    assert (len(other.notes), other.generator) == (1, given.generator)
    assert snapshot.generators == [given.generator]
    with pytest.raises(StateError, match="an argument of Request cannot be copied"):
        ArgumentCopy(request(0, lock=threading.Lock()))


def test_a_request_with_a_target_of_its_own_is_no_news_of_tuning(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    with caplog.at_level(logging.INFO, "omnireuse"):
        for seed in range(2):
            server.serve(request(seed))
            server.serve(request(seed), {"speedup": 3})
    assert "tune=False" not in caplog.text
    assert caplog.text.count("measuring: 1 of 3 pictures") == 1


def test_each_request_of_an_engine_is_promised_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = IMAGES.load()
    pipeline.set_progress_bar_config(disable=True)
    profile = Profile.load(IMAGES.find(None) / "profiles" / "shapes-flux-28-guided.json")
    whole = WholeRequests(ServerSettings({"profile": profile}, place="--cache-config"))
    promised = []
    for steps, scale in ((2, 6.0), (28, 6.0), (28, 3.0), (28, 6.0), (2, 6.0)):
        whole.begin(pipeline, RequestSettings())
        IMAGES.generate(pipeline, ["a red circle"], [1], num_inference_steps=steps, true_cfg_scale=scale)
        promised.append("omnireuse_expected_psnr_db" in whole.figures())
    whole.end()
    assert promised == [False, True, False, True, False]
    assert caplog.text.count("a run has 2 steps") == 1
    assert caplog.text.count("the profile was not calibrated for this guidance") == 1
