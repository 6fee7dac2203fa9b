from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import omnireuse
from omnireuse.errors import StateError
from omnireuse.evaluation.report.results import Comparison, Sample, Variant, read_results, write_results
from reference.demo.compare import Cache, Image, Task, compare, generations, named

STEPS = 10
CACHES = (Cache(name="half", backend="half"), Cache(name="third", backend="third", options={"keep": 0.5}))
TASKS = tuple(Task(prompt=f"prompt {n}", seed=n, check=lambda image: {"bright": image.mean() > 0.5}) for n in range(3))


class FakeHandle:
    """What `enable` returns, for a "pipeline" that is a record of what is enabled on it."""

    def __init__(self, pipeline: dict[str, Any], backend: str | None) -> None:
        self.pipeline, self.computed = pipeline, {"half": 5, "third": 4, "mute": 0}[backend or "half"]
        assert pipeline["handle"] is None, "two caches at once"
        pipeline["handle"] = self
        self.events: tuple[Any, ...] = ()

    def summary(self) -> Any:
        return SimpleNamespace(computed_steps=self.computed - 0.5, kept_bytes=64 * self.computed)

    def __enter__(self) -> FakeHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipeline["handle"] = None


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def enable(pipeline: dict[str, Any], backend: str | None = None, **options: Any) -> FakeHandle:
        pipeline["enabled"].append((backend, options))
        return FakeHandle(pipeline, backend)

    monkeypatch.setattr(omnireuse, "enable", enable, raising=False)
    return {"handle": None, "enabled": [], "calls": []}


@pytest.fixture
def generate(pipeline: dict[str, Any]) -> Any:
    def run(prompt: str, steps: int, seed: int) -> Image:
        handle = pipeline["handle"]
        pipeline["calls"].append((prompt, steps, seed, None if handle is None else handle.computed))
        if handle is not None:
            handle.events = tuple(
                SimpleNamespace(
                    branch="step", step=n, reused=n >= handle.computed, reason="policy", drift=0.1, error=None
                )
                for n in range(steps if handle.computed else 0)
            )
        # A cache is off by 0.01, fewer steps by 0.1.
        off = 0.01 if handle is not None else (0.0 if steps == STEPS else 0.1)
        return np.full((16, 16, 3), 0.6 + off, np.float32)

    return run


def run(pipeline: Any, generate: Any, folder: Path, caches: Any = CACHES, **more: Any) -> Comparison:
    return compare(
        pipeline,
        TASKS,
        caches,
        generate=generate,
        num_inference_steps=STEPS,
        guidance=5.0,
        model="fake",
        folder=folder,
        **more,
    )


def test_every_variant_sees_every_task_with_its_own_noise(pipeline: Any, generate: Any, tmp_path: Path) -> None:
    made = run(pipeline, generate, tmp_path)
    assert made.complete
    assert [v.name for v in made.variants] == ["full", "half", "fewer steps (5)", "third", "fewer steps (4)"]
    assert all([(s.prompt, s.seed) for s in v.samples] == [(t.prompt, t.seed) for t in TASKS] for v in made.variants)
    assert made.highlight == "half"
    assert pipeline["handle"] is None


def test_variants_are_warmed_up_and_then_take_turns(pipeline: Any, generate: Any, tmp_path: Path) -> None:
    seen: list[str] = []
    run(pipeline, generate, tmp_path, advance=seen.append)
    turn = ["full", "half", "fewer steps (half)", "third", "fewer steps (third)"]
    assert seen == ["warm-up: full", "warm-up: half", "warm-up: third", *turn * len(TASKS)]
    assert len(seen) == generations(len(TASKS), len(CACHES)) == len(pipeline["calls"])


def test_a_floor_gets_the_steps_of_its_cache_rounded_up_and_no_cache(
    pipeline: Any, generate: Any, tmp_path: Path
) -> None:
    made = run(pipeline, generate, tmp_path)
    assert made.variants[1].computed_steps == 4.5
    assert made.variants[2].computed_steps == 5
    assert made.variants[4].computed_steps == 4
    floors = [call for call in pipeline["calls"] if call[1] < STEPS]
    assert {(steps, cached) for _, steps, _, cached in floors} == {(5, None), (4, None)}


def test_caches_that_compute_as_many_steps_share_a_run_of_fewer(pipeline: Any, generate: Any, tmp_path: Path) -> None:
    twice = (CACHES[0], Cache(name="half again", backend="half"), CACHES[1])
    seen: list[str] = []
    made = run(pipeline, generate, tmp_path, caches=twice, advance=seen.append)
    names = ["full", "half", "fewer steps (5)", "half again", "third", "fewer steps (4)"]
    assert [variant.name for variant in made.variants] == names
    again = made.variants[3]
    assert made.floor(again) == made.floor(made.variants[1]) == made.variants[2]
    assert made.gain(again) == pytest.approx(20.0, abs=0.02)
    assert made.gain(made.variants[2]) is None, "only caches are compared with it"
    assert made.variants[2].settings["call"] == "pipeline(prompt, num_inference_steps=5)"
    assert [steps for _, steps, _, cached in pipeline["calls"] if cached is None and steps < STEPS] == [5, 4] * 3
    assert len(seen) == generations(len(TASKS), len(twice)), "the bar still comes to its end"
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        Path(sample.image).name for variant in made.variants for sample in variant.samples
    }


def test_runs_of_fewer_steps_that_differ_by_prompt_name_the_range() -> None:
    def variant(name: str, *steps: float, floor_of: str | None = None) -> Variant:
        role = "cache" if floor_of is None else "floor"
        samples = tuple(
            Sample(prompt="p", seed=n, image="i.png", seconds=(1.0,), computed_steps=count, psnr=30.0, ssim=0.9)
            for n, count in enumerate(steps)
        )
        return Variant(name=name, role=role, floor_of=floor_of, settings={}, samples=samples)

    made = named(
        [
            variant("a", 4.5, 7.0),
            variant("fewer steps (a)", 5.0, 7.0, floor_of="a"),
            variant("b", 7.0, 5.0),
            variant("fewer steps (b)", 7.0, 5.0, floor_of="b"),
            variant("c", 5.0, 6.5),
            variant("fewer steps (c)", 5.0, 7.0, floor_of="c"),
        ]
    )
    assert [each.name for each in made] == ["a", "fewer steps (5–7)", "b", "fewer steps (5–7, as b)", "c"]
    assert made[1].settings == {
        "call": "pipeline(prompt, num_inference_steps=n)",
        "n": "5–7, as many as a computed for the prompt, rounded up",
    }


def test_quality_is_against_the_full_image_of_the_same_prompt(pipeline: Any, generate: Any, tmp_path: Path) -> None:
    made = run(pipeline, generate, tmp_path)
    assert made.reference.psnr == float("inf")
    assert made.variants[1].psnr == pytest.approx(40.0, abs=0.01)
    assert made.variants[2].psnr == pytest.approx(20.0, abs=0.01)
    assert made.gain(made.highlighted) == pytest.approx(20.0, abs=0.02)


def test_decisions_checks_images_and_options_are_kept(pipeline: Any, generate: Any, tmp_path: Path) -> None:
    made = run(pipeline, generate, tmp_path)
    sample = made.variants[3].samples[1]
    assert [mark.reused for mark in sample.marks] == [False] * 4 + [True] * 6
    assert sample.attributes == {"bright": True}
    assert (sample.retained_bytes, made.reference.samples[1].retained_bytes) == (64 * 4, None)
    assert (tmp_path / sample.image).is_file()
    assert ("third", {"keep": 0.5}) in pipeline["enabled"]
    assert made.variants[3].settings["call"] == "omnireuse.enable(pipeline, 'third', keep=0.5)"
    write_results(made, tmp_path / "results.json")
    assert read_results(tmp_path / "results.json") == made
    json.loads((tmp_path / "results.json").read_text())


def interrupting(generate: Any, after: int) -> Any:
    calls: Iterator[int] = iter(range(1000))

    def run(prompt: str, steps: int, seed: int) -> Image:
        if next(calls) == after:
            raise KeyboardInterrupt
        return generate(prompt, steps, seed)

    return run


def test_an_interrupt_keeps_the_finished_tasks(pipeline: Any, generate: Any, tmp_path: Path) -> None:
    # 3 warm-ups and two tasks of 5 variants, then the interrupt falls on the second variant of the third.
    made = run(pipeline, interrupting(generate, 3 + 2 * 5 + 1), tmp_path)
    assert not made.complete
    assert made.prompts == ("prompt 0", "prompt 1")
    assert pipeline["handle"] is None, "the cache must be off again"


def test_an_interrupt_before_anything_is_finished_passes(pipeline: Any, generate: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(pipeline, interrupting(generate, 4), tmp_path)


def test_a_cache_that_decides_nothing_is_an_error(pipeline: Any, generate: Any, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"enable\(pipeline, 'mute'\): no step was decided"):
        run(pipeline, generate, tmp_path, caches=(Cache(name="mute", backend="mute"),))
