"""The file of a profile: whole or not at all, and read back only when whole."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from omnireuse import Profile
from omnireuse.base.records import check_writable
from omnireuse.cli.calibrate import profile_table
from omnireuse.errors import ConfigError, StateError
from omnireuse.profiles.measurements import Measurements, TeaCacheFit
from omnireuse.profiles.origin import Origin
from omnireuse.profiles.profile import Plan
from tests import TOP

MEASURED = Measurements(
    tea_cache=TeaCacheFit(coefficients=(1.0, 0.0, -2.5e-5, 3.0, 0.0), pairs=40, r2=0.9, r2_held_out=None),
    mag_ratios=((1.0, 0.98), (1.0, 0.97)),
    unmeasured={},
)
PLAN = Plan(steps=(0, 2, 7), forecaster="blend", psnr=31.5, held_out=(30.0, 33.0, 31.0, 32.0, 34.0))
PROFILE = Profile(
    model="FluxTransformer2DModel",
    config_digest="0123456789abcdef",
    scheduler="FlowMatchEulerDiscreteScheduler",
    num_inference_steps=8,
    call={"true_cfg_scale": "6.0", "sizes": "[64, 64]"},
    prompts_digest="fedcba9876543210",
    num_prompts=(4, 3),
    seed=0,
    created="2026-01-01",
    versions={"omnireuse": "0.1.0"},
    cost_in_runs=19.5,
    complete=True,
    plans={3: PLAN, 5: replace(PLAN, steps=(0, 1, 2, 4, 7))},
    coordinates=(1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1),
    measured=MEASURED,
    dtype="float32",
    origin=Origin(holding="plain tensors"),
)


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / "new" / "profile.json")
    assert Profile.load(tmp_path / "new" / "profile.json") == PROFILE
    text = (tmp_path / "new" / "profile.json").read_text("utf-8")
    assert '"steps": [0, 2, 7]' in text, "a list takes one line, so that a person can read the file"
    assert '"sizes": "[64, 64]"' in text
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["profile.json"]


@pytest.mark.parametrize("number", [5, 6])
def test_figures_that_nothing_reads_are_left_out_of_older_files(tmp_path: Path, number: int) -> None:
    record = json.loads(PROFILE.as_text())
    record["format"] = number
    record["measured"] |= {"quantity": "x0", "changes": {"latents": [None, 0.5]}, "forecast_errors": {"0": {}}}
    (tmp_path / "profile.json").write_text(json.dumps(record), "utf-8")
    assert Profile.load(tmp_path / "profile.json") == PROFILE
    record["measured"] = None
    (tmp_path / "profile.json").write_text(json.dumps(record), "utf-8")
    assert Profile.load(tmp_path / "profile.json") == replace(PROFILE, measured=None)


COMMITTED = sorted((TOP / "models").glob("*/profiles/*.json"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_the_committed_profiles_have_a_ratio_for_each_step(path: Path) -> None:
    assert json.loads(path.read_text(encoding="utf-8"))["format"] == 6
    profile = Profile.load(path)
    assert profile.measured is not None
    assert profile.measured.mag_ratios is not None
    for branch in profile.measured.mag_ratios:
        assert len(branch) == profile.num_inference_steps
        assert branch[0] == 1.0


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda record: record.pop("seed"), "missing required field `seed`"),
        (lambda record: record.update(sede=1), "unknown field `sede`"),
        (lambda record: record.update(num_inference_steps="8"), r"Expected `int`, got `str` - at `\$.num_inference_st"),
        (lambda record: record.update(complete=1), r"Expected `bool`, got `int` - at `\$.complete`"),
        (lambda record: record.update(num_prompts=[4]), r"Expected `array` of length 2, got 1 - at `\$.num_prompts`"),
        (lambda record: record["plans"]["3"].update(steps=[0, "2"]), r"got `str` - at `\$.plans\[...\].steps\[1\]`"),
        (lambda record: record["plans"]["3"].update(steps=[0, True]), r"got `bool` - at `\$.plans\[...\].steps\[1\]`"),
        (lambda record: record["plans"]["3"].update(psnr="nan"), r"got `str` - at `\$.plans\[...\].psnr`"),
        (lambda record: record["plans"]["3"].update(psnr=float("nan")), "malformed"),
        (lambda record: record["plans"].update(x=record["plans"]["3"]), r"at `key` in `\$.plans`"),
        (lambda record: record.update(plans=[]), r"Expected `object`, got `array` - at `\$.plans`"),
        (lambda record: record.update(format=5, measured=[]), "measured"),
        (lambda record: record.update(format=5, measured={}), "missing required field `tea_cache`"),
        (lambda record: record.pop("dtype"), "missing required field `dtype`.*; calibrate anew"),
        (lambda record: record.pop("origin"), "missing required field `origin`.*; calibrate anew"),
        *(
            (lambda record, n=n: record.update(format=n), f"format of a profile must be 6, got {n}; calibrate anew")
            for n in (2, 3, 4, 7)
        ),
    ],
)
def test_a_value_that_does_not_belong_is_named(tmp_path: Path, spoil: Any, complaint: str) -> None:
    record = json.loads(PROFILE.as_text())
    spoil(record)
    (tmp_path / "profile.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(ConfigError, match=complaint):
        Profile.load(tmp_path / "profile.json")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a whole profile"):
        Profile.load(tmp_path / "profile.json")


@pytest.mark.parametrize("name", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "profile.json"
    PROFILE.save(path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if name == "write":
        monkeypatch.setattr(Path, "open", full)
    elif name == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StateError, match=r"No space left on device.*untouched"):
        replace(PROFILE, seed=1).save(path)
    monkeypatch.undo()
    assert Profile.load(path) == PROFILE
    assert [each.name for each in tmp_path.iterdir()] == ["profile.json"]


def test_a_place_where_nothing_can_be_written_is_found_out_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    for place in (tmp_path / "file" / "profile.json", tmp_path, Path("/proc/profile.json")):
        with pytest.raises(ConfigError, match="cannot be written"):
            check_writable(place)
    with pytest.raises(StateError, match="nothing was left there"):
        PROFILE.save(tmp_path / "file" / "profile.json")
    check_writable(tmp_path / "new" / "profile.json")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_plan_that_was_not_judged_promises_nothing() -> None:
    unjudged = replace(PROFILE, plans={3: replace(PLAN, held_out=()), 5: PLAN})
    assert unjudged.best(quality=1) == PLAN
    assert unjudged.best().held_out == ()


@pytest.mark.parametrize("held_out", [(), (30.0,), (30.0, 33.0, 31.0, 32.0)])
def test_a_quality_takes_five_held_out_prompts(held_out: tuple[float, ...]) -> None:
    few = replace(PROFILE, plans={3: replace(PLAN, held_out=held_out)})
    with pytest.raises(
        ConfigError, match=f"at least 5 held-out prompts, and this profile was judged on {len(held_out)}"
    ):
        few.best(quality=1)
    shown = Console(width=200)
    with shown.capture() as capture:
        shown.print(profile_table(few))
    assert capture.get().splitlines()[-1].split()[4 + (not held_out)] == "none"
