from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from omnireuse.errors import ConfigError
from omnireuse.evaluation.report.results import Comparison, Mark, Sample, Variant, read_results, write_results
from tests.helpers.comparisons import comparison


def test_round_trip_keeps_everything_also_what_json_has_no_word_for(tmp_path: Path) -> None:
    made = comparison()
    assert any(sample.psnr == math.inf for sample in made.reference.samples)
    write_results(made, tmp_path / "r.json")
    assert read_results(tmp_path / "r.json") == made


def test_the_file_is_strict_json(tmp_path: Path) -> None:
    write_results(comparison(), tmp_path / "r.json")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)


def test_nan_survives(tmp_path: Path) -> None:
    made = comparison()
    variant = made.variants[1]
    broken = replace(variant, samples=(replace(variant.samples[0], psnr=math.nan), *variant.samples[1:]))
    write_results(replace(made, variants=(made.reference, broken), highlight=broken.name), tmp_path / "r.json")
    assert math.isnan(read_results(tmp_path / "r.json").variants[1].samples[0].psnr)


def test_speedup_is_the_median_over_the_prompts() -> None:
    made = comparison()
    slow_once = replace(
        made.variants[1],
        samples=tuple(
            replace(sample, seconds=(seconds,))
            for sample, seconds in zip(made.variants[1].samples, (0.5, 100.0, 0.25), strict=True)
        ),
    )
    full = replace(made.reference, samples=tuple(replace(s, seconds=(1.0,)) for s in made.reference.samples))
    other = replace(made, variants=(full, slow_once), highlight="full")
    assert other.speedups(slow_once) == (2.0, 0.01, 4.0)
    assert other.speedup(slow_once) == 2.0


def test_seconds_of_a_prompt_are_the_median_of_its_repeats() -> None:
    made = comparison().reference
    assert replace(made, samples=(replace(made.samples[0], seconds=(3.0, 1.0, 2.0)),)).seconds == (2.0,)


def test_accuracy_counts_attributes_and_is_none_where_nothing_checks() -> None:
    made = comparison().reference
    first, second = ({"shape": True, "colour": False}, {"shape": True, "colour": True})
    checked = replace(
        made, samples=(replace(made.samples[0], attributes=first), replace(made.samples[1], attributes=second))
    )
    assert checked.accuracy == 0.75
    assert replace(made, samples=(replace(made.samples[0], attributes=None),)).accuracy is None


def test_a_floor_is_found_by_its_cache() -> None:
    made = comparison()
    cache = next(variant for variant in made.variants if variant.role == "cache")
    floor = made.floor(cache)
    assert floor is not None
    assert floor.floor_of == cache.name
    assert made.floor(made.reference) is None


def test_gain_is_what_a_cache_adds_to_taking_fewer_steps() -> None:
    made = comparison()
    cache = made.highlighted
    assert made.gain(cache) == pytest.approx(44.0 - 34.0)
    assert made.gain(made.reference) is None
    identical = replace(cache, samples=tuple(replace(sample, psnr=math.inf) for sample in cache.samples))
    variants = tuple(identical if variant.name == cache.name else variant for variant in made.variants)
    assert replace(made, variants=variants).gain(identical) == pytest.approx(100.0 - 35.0)


def _mark() -> Mark:
    return Mark(branch="step", step=0, reused=False, reason="first")


def _sample(prompt: str = "a", seed: int = 0) -> Sample:
    return Sample(
        prompt=prompt,
        seed=seed,
        image="a.png",
        seconds=(1.0,),
        computed_steps=1.0,
        psnr=1.0,
        ssim=1.0,
        marks=(_mark(),),
    )


def _variant(name: str = "full", role: str = "reference", *samples: Sample) -> Variant:
    return Variant(name=name, role=role, settings={}, samples=samples or (_sample(),))


def test_a_role_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match=r"role='best'.*role must be"):
        _variant("full", "best")


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ((), "begin with the reference"),
        ((_variant("a", "cache"),), "begin with the reference"),
        ((_variant(), _variant()), "differ in name"),
        ((_variant("full of it"),), "highlight must name"),
        ((_variant(), _variant("b", "cache", _sample("other"))), "same prompts and seeds"),
        ((_variant(), _variant("b", "cache", _sample("a", 1))), "same prompts and seeds"),
    ],
)
def test_variants_that_cannot_be_compared_are_refused(variants: tuple[Variant, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Comparison(
            title="t",
            model="m",
            steps=1,
            guidance=1.0,
            created="",
            environment={},
            complete=True,
            highlight="full",
            variants=variants,
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(format=99), "format must be 1, got 99"),
        (lambda document: document.update(steps="many"), r"results\.steps must be a int, got 'many'"),
        (lambda document: document.pop("title"), r"differ in \['title'\]"),
        (
            lambda document: document["variants"][1]["samples"][0].update(psnr="good"),
            r"variants\[1\]\.samples\[0\]\.psnr",
        ),
        (lambda document: document["variants"][0].update(role="none"), "role must be"),
        (lambda document: document.update(steps=2), "must fit a run of 2 steps"),
        (lambda document: document.update(steps=0), "steps must be at least 1"),
        (
            lambda document: document["variants"][1]["samples"][0].update(image="../a.png"),
            "image must lie in the folder",
        ),
        (lambda document: document["variants"][1]["samples"][0].update(seconds=[]), "seconds must be above 0"),
        (lambda document: document["variants"][1]["samples"][0].update(computed_steps="nan"), "must fit a run"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "r.json"
    write_results(comparison(), path)
    document = json.loads(path.read_text())
    change(document)  # type: ignore[operator]
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=message) as caught:
        read_results(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_and_what_is_no_json_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_results(tmp_path / "absent.json")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ConfigError, match="not JSON"):
        read_results(tmp_path / "text")
