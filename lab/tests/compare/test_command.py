from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import omnireuse
from omnireuse.cli import main
from omnireuse.pipelines.pictures import capped_psnr
from omnireuse_lab.compare.harness import Harness
from omnireuse_lab.compare.methods import chosen_methods
from omnireuse_lab.compare.run import settings_of
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.record import read_comparison
from reference.load import SAMPLING, find_image_pipeline
from reference.pictures import read_frames

CALL = json.dumps({"height": 64, "width": 64, "max_sequence_length": 20})
PROMPT = "a large red circle in the top left on a plain gray background"


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    (tmp_path / "prompts.txt").write_text(f"\n{PROMPT}\n\n", "utf-8")
    return [
        *("compare", str(find_image_pipeline()), "--prompts", str(tmp_path / "prompts.txt"), "--steps", "6"),
        *("--guidance", "1", "--call", CALL, "--out", str(tmp_path / "out")),
    ]


def test_a_comparison_writes_record_table_and_picture(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*asked, "--only", "fewer-steps", "default-call"]) == 0
    comparison = read_comparison(tmp_path / "out" / "compare.json")
    assert comparison.complete
    (case,) = comparison.cases
    assert (case.pipeline, case.steps, case.guidance, case.prompts) == ("shapes-flux", 6, 1.0, (PROMPT,))
    assert {point.family for point in case.points} == {"baseline", "ours"}
    assert case.full.scores == {}
    page = (tmp_path / "out" / "compare.html").read_text("utf-8")
    assert "fewer uniform steps" in page
    assert page.count('<img src="data:image/png;base64,') == 2, "the worst picture of each method"
    for point in case.points:
        ((pair,), psnr) = read_frames(tmp_path / "out" / point.worst), min(point.each)
        assert pair.size == (128, 64)
        full, own = (np.asarray(pair.crop((left, 0, left + 64, 64))) / 255 for left in (0, 64))
        assert capped_psnr(own, full) == pytest.approx(psnr, abs=1)
    shown, notes = capsys.readouterr()
    assert "Loading" not in notes, "the libraries are quiet while they load"
    assert "dB above the best without a cache, 2x fewer steps" in shown
    assert "omnireuse, default by call" in shown
    assert "fewer uniform steps" in shown


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setattr("diffusers.DiffusionPipeline.from_pretrained", lambda *_: pytest.fail("work began"))
    assert main([*asked, "--out", str(tmp_path / "file")]) == 2
    assert "compare.json: cannot be written" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inner, calls = Harness.point, []

    def point(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return inner(*args)

    monkeypatch.setattr(Harness, "point", point)
    assert main([*asked, "--only", "fewer-steps"]) == 130
    comparison = read_comparison(tmp_path / "out" / "compare.json")
    assert not comparison.complete
    assert len(comparison.cases[0].points) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "interrupted: what was measured is kept in" in said
    assert "the same command goes on from there, --fresh begins anew" in said
    monkeypatch.setattr(Harness, "point", inner)
    assert main([*asked, "--only", "fewer-steps"]) == 0
    assert read_comparison(tmp_path / "out" / "compare.json").complete


def test_a_comparison_that_is_resumed_measures_nothing_twice(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.json"
    command = [*asked, "--only", "fewer-steps", "--out", str(file)]
    assert main(command) == 0
    first = read_comparison(file).cases
    monkeypatch.setattr(Harness, "measure", lambda *_, **__: pytest.fail("something was measured twice"))
    assert main(command) == 0
    assert read_comparison(file).cases == first


def test_other_methods_add_to_what_was_measured(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out" / "compare.json"
    for key in ("fewer-steps", "default-call"):
        assert main([*asked, "--only", key]) == 0
    both = {"fewer uniform steps", "omnireuse, default by call"}
    assert {point.method for point in read_comparison(file).cases[0].points} == both
    assert main([*asked, "--only", "fewer-steps", "--seed", "5"]) == 2
    assert "was begun with another seed; delete the file to begin anew (--fresh" in " ".join(
        capsys.readouterr().err.split()
    )
    assert {point.method for point in read_comparison(file).cases[0].points} == both
    assert main([*asked, "--only", "fewer-steps", "--seed", "5", "--fresh"]) == 0
    assert {point.method for point in read_comparison(file).cases[0].points} == {"fewer uniform steps"}
    file.with_suffix(".jsonl").unlink()
    assert main([*asked, "--only", "fewer-steps"]) == 2
    assert "without compare.jsonl to go on from" in " ".join(capsys.readouterr().err.split())


OWN = """
from contextlib import contextmanager
import omnireuse
from omnireuse_lab.compare.methods.base import Method, Setting

@contextmanager
def left_enabled(pipeline):
    omnireuse.enable(pipeline, computed_steps=3, tune=False)
    yield lambda: 0

@contextmanager
def failing(pipeline):
    raise ValueError("no such setting")
    yield

def grid(harness):
    yield Setting(settings={"number": 1}, call="mine(1)", enable=left_enabled)
    yield Setting(settings={"number": 2}, call="mine(2)", enable=left_enabled)

def faulty(harness):
    yield Setting(settings={}, call="faulty()", enable=failing)

MINE = Method(key="mine", name="mine", family="peer", grid=grid)
FAULTY = Method(key="faulty", name="faulty", family="peer", grid=faulty)
"""


def test_a_method_of_ones_own_is_an_object_and_need_not_disable(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_methods.py").write_text(OWN, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    command = [*asked, "--only", "default-call"]
    assert main([*command, "--method", "my_methods:MINE"]) == 0
    points = {point.call: point for point in read_comparison(tmp_path / "out" / "compare.json").cases[0].points}
    assert points["mine(1)"].computed_steps == points["mine(2)"].computed_steps == 3
    assert main([*command, "--method", "my_methods:FAULTY"]) == 3
    assert "faulty(): ValueError: no such setting" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--method", "my_methods:grid"]) == 2
    assert "must name a Method, a Forecaster or a Policy, got function" in " ".join(capsys.readouterr().err.split())


POLICY = """
from dataclasses import dataclass
import omnireuse

@dataclass(frozen=True, kw_only=True)
class EveryThird(omnireuse.Policy):
    def wants_reuse(self, state, view):
        return view.index % 3 != 0
"""


def test_a_policy_is_compared_first_and_the_page_names_what_the_time_did_not_allow(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_policy.py").write_text(POLICY, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    clock = iter([0.0, 0.0, *[61.0] * 99])
    monkeypatch.setattr("omnireuse_lab.compare.run.now", lambda: next(clock))
    command = [*asked, "--only", "speedup", "--method", "my_policy:EveryThird"]
    assert main([*command, "--minutes", "1"]) == 0
    said = capsys.readouterr()
    estimate = said.err.index("settings: 6, prompts: 1; a full run takes about")
    assert estimate < said.err.index("full runs") < said.err.index("full runs, 1 of 1")
    assert "settings that are not measured: 5" in said.out
    (case,) = read_comparison(tmp_path / "out" / "compare.json").cases
    assert [(point.method, point.computed_steps) for point in case.points] == [
        ("EveryThird() in the default's place", 3)
    ]
    assert case.missing[0] == "omnireuse.enable(pipe, speedup=2.5, tune=False)", "the middle one comes first"
    page = (tmp_path / "out" / "compare.html").read_text("utf-8")
    assert "5 settings are not measured" in page
    (left_out,) = re.findall("Left out by <code>--only</code>: (.*)[.] Without", page)
    assert "TaylorSeer" in left_out
    assert "speedup" not in left_out
    assert main(command) == 0
    (case,) = read_comparison(tmp_path / "out" / "compare.json").cases
    assert (len(case.points), case.missing) == (6, ())


def test_pictures_below_what_is_asked_for_end_with_a_status(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*asked, "--only", "default-call", "fewer-steps"]
    assert main([*command, "--at-least", "1"]) == 0
    assert main([*command, "--at-least", "99"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "nine of ten pictures must reach 99.0 dB: shapes-flux, 6 steps, no guidance: omnireuse.enable" in said
    assert "0 of 1 pictures" in said


def test_a_backend_is_compared_by_its_name(asked: list[str], tmp_path: Path) -> None:
    assert main([*asked, "--only", "tea_cache"]) == 0
    (case,) = read_comparison(tmp_path / "out" / "compare.json").cases
    assert next(point.call for point in case.points) == "omnireuse.enable(pipe, 'tea_cache', rel_l1_thresh=0.1)"
    assert all(point.error is None for point in case.points)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--prompts": "/nowhere.txt"}, "cannot be read"),
        ({"--only": "fewer-stepz"}, "did you mean 'fewer-steps'"),
        ({"--profile": "/nowhere.json"}, "cannot be read"),
    ],
)
def test_mistakes_are_told(
    asked: list[str], change: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [each for name, value in change.items() for each in (name, value)]
    assert main([*asked, *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_folder_without_a_pipeline_and_no_folder_at_all(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked[1] = str(tmp_path)
    assert main(asked) == 2
    assert "must be the folder of a diffusers pipeline" in " ".join(capsys.readouterr().err.split())
    assert main(["compare", *asked[2:4]]) == 2
    assert "MODEL, a folder or an id, or --pipeline must be given" in capsys.readouterr().err


def test_a_profile_serves_the_case_that_it_was_searched_at(
    images: Callable[..., Workload], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workload = images(guidance=6.0)
    call = {name: value for name, value in SAMPLING.items() if name != "num_inference_steps"}
    profile = omnireuse.calibrate(workload.pipeline, [PROMPT, PROMPT, PROMPT], steps=6, computed_steps=[3], **call)
    profile.save(tmp_path / "p.json")
    (method,) = chosen_methods([tmp_path / "p.json"], ["profile"])

    def found_on(workload: Workload) -> list[Any]:
        return list(settings_of([method], Harness(workload)))

    found = found_on(workload)
    assert [setting.settings for _, setting in found if not isinstance(setting, Exception)] == [
        {"profile": "p.json", "computed_steps": 3}
    ]
    assert "searched at other steps" not in caplog.text
    assert not found_on(dataclasses.replace(workload, steps=7))
    assert "p.json: searched at other steps or guidance than shapes-flux" in caplog.text
    assert not found_on(images(guidance=3.0))


def test_several_values_come_with_or_without_the_option_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, object]] = []
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one", "utf-8")
    done = SimpleNamespace(complete=True, cases=())
    monkeypatch.setattr("omnireuse_lab.compare.run.compare_pipeline", lambda *_, **given: asked.append(given) or done)
    monkeypatch.setattr("omnireuse_lab.compare.run.show", lambda *_: None)
    for steps in (["--steps", "28", "50"], ["--steps", "28", "--steps", "50"], ["--steps=28", "--steps", "50"]):
        assert main(["compare", "folder", *steps, "--only", "ours", "peer", "--prompts", str(prompts), "-q"]) == 0
    assert [(given["steps"], given["only"], given["guidance"]) for given in asked] == [
        ([28, 50], ["ours", "peer"], []),
    ] * 3
