"""What goes wrong around a search is said at once, and what was found is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import omnireuse
from omnireuse import Profile
from omnireuse.calibration.runs import PromptRuns
from omnireuse.cli import main
from omnireuse.errors import ConfigError
from reference.load import find_image_pipeline
from tests.helpers.prompted import Prompted
from tests.unit.calibration.test_profile_file import PROFILE

PROMPTS = ["a circle", "a square", "a cross"]


def arguments(tmp_path: Path, out: Path) -> list[str]:
    prompts = tmp_path / "prompts.txt"
    if not prompts.exists():
        prompts.write_text("\n".join(PROMPTS), "utf-8")
    return ["calibrate", str(find_image_pipeline()), "--prompts", str(prompts), "--out", str(out)]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"one prompt\n", b"\xff\xfe\x00\n"])
def test_a_file_without_prompts_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (tmp_path / "prompts.txt").write_bytes(content)
    monkeypatch.setattr("diffusers.DiffusionPipeline.from_pretrained", lambda *_: pytest.fail("work began"))
    assert main(arguments(tmp_path, tmp_path / "profile.json")) == 2
    assert "prompts.txt" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setattr("diffusers.DiffusionPipeline.from_pretrained", lambda *_: pytest.fail("work began"))
    assert main(arguments(tmp_path, tmp_path / "file" / "profile.json")) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_prompts_that_are_no_texts_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least two texts"):
        omnireuse.calibrate(Prompted(), ["a circle", None, "a cross"], steps=4)  # type: ignore[list-item]


def test_the_command_says_where_an_interrupted_search_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = replace(PROFILE, complete=False, plans={3: replace(PROFILE.plans[3], held_out=())})
    monkeypatch.setattr("omnireuse.calibration.calibrate.calibrate", lambda *_, **__: partial)
    assert main(arguments(tmp_path, tmp_path / "profile.json")) == 130
    assert Profile.load(tmp_path / "profile.json") == partial
    said = capsys.readouterr().out
    assert "interrupted; what was found so far, 1 plan, is in" in said
    assert str(tmp_path / "profile.json") in said
    assert "not judged" in said


def test_an_interrupt_before_anything_was_found_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Prompted()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PromptRuns, "again", interrupt)
    with pytest.raises(KeyboardInterrupt):
        omnireuse.calibrate(pipeline, PROMPTS, steps=5)
    omnireuse.enable(pipeline).disable()
