"""Where a pipeline comes from: folders, hubs and functions, on which device and in which dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.errors import ConfigError
from omnireuse.hooks.denoisers import describe, device_of, dtype_of
from omnireuse.pipelines.source import Source
from reference.load import find_image_pipeline
from tests import TOP
from tests.helpers.custom import Bare, make_bare, make_whole

HERE = str(TOP / "tests" / "helpers")
FOLDER = find_image_pipeline()


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setattr("sys.path", [each for each in __import__("sys").path if each not in ("", HERE)])


@pytest.mark.parametrize(
    ("dtype", "found"),
    [(None, "float32"), ("bfloat16", "bfloat16"), (torch.bfloat16, "bfloat16"), ("float16", "float16")],
)
def test_a_folder_is_loaded_in_the_dtype_that_was_asked_for(dtype: Any, found: str) -> None:
    pipeline = Source(given=FOLDER, device="cpu", dtype=dtype).load()
    assert (device_of(pipeline), dtype_of(pipeline)) == ("cpu", found)
    assert {str(each.dtype) for each in pipeline.text_encoder.parameters()} == {f"torch.{found}"}
    assert describe(pipeline) == f"FluxPipeline on cpu in {found}"


@pytest.mark.parametrize(
    ("cuda", "mps", "asked", "expected"),
    [
        (True, False, {}, ("cuda", torch.bfloat16)),
        (True, False, {"dtype": "float32"}, ("cuda", torch.float32)),
        (True, False, {"device": "cpu"}, ("cpu", torch.float32)),
        (False, True, {}, ("mps", torch.bfloat16)),
        (False, False, {}, ("cpu", torch.float32)),
    ],
)
def test_a_gpu_is_taken_where_there_is_one_with_bfloat16(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, asked: dict[str, Any], expected: tuple[str, torch.dtype]
) -> None:
    made: dict[str, Any] = {}

    class Pipeline:
        def to(self, device: str) -> None:
            made["device"] = device

        def set_progress_bar_config(self, **_: Any) -> None:
            pass

    def from_pretrained(name: str, **given: Any) -> Pipeline:
        made.update(given)
        return Pipeline()

    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: mps)
    monkeypatch.setattr("diffusers.DiffusionPipeline.from_pretrained", from_pretrained)
    Source(given="owner/name", **asked).load()
    assert (made["device"], made.get("dtype", made.get("torch_dtype"))) == expected


def test_a_function_by_its_name_makes_the_pipeline(importable: None) -> None:
    source = Source(given="custom:make_bare")
    assert not source.is_loaded
    pipeline = source.load()
    assert type(pipeline).__name__ == "Bare"
    assert source.name(pipeline) == "Bare"
    assert dtype_of(pipeline) == "float32"
    assert dtype_of(Source(given="custom:make_whole", dtype="bfloat16").load()) == "bfloat16"
    assert dtype_of(Source(given=make_whole, dtype="bfloat16", device="cpu").load()) == "bfloat16"


def test_a_pipeline_that_does_not_move_is_told() -> None:
    with pytest.raises(ConfigError, match=r"Bare\.to\(\) does not move it; let the function that makes it choose"):
        Source(given=make_bare, dtype="bfloat16").load()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("not a pipeline", "there is no such folder"),
        ("/nowhere", "there is no such folder"),
        (HERE, "has no model_index.json; give package:function"),
    ],
)
def test_what_is_neither_folder_nor_id_is_refused_before_anything_is_loaded(given: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Source(given=given).check()


def test_a_modular_folder_says_how_to_load_it(tmp_path: Path) -> None:
    (tmp_path / "modular_model_index.json").write_text("{}", "utf-8")
    with pytest.raises(ConfigError, match=r"holds a modular pipeline.*give package:function"):
        Source(given=tmp_path).check()


@pytest.mark.parametrize("asked", [{"device": "cpu"}, {"dtype": "float32"}])
def test_a_loaded_pipeline_is_not_moved(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"the Bare is loaded already; move it with \.to\(device, dtype\)"):
        omnireuse.calibrate(Bare(), ["a", "b"], **asked)


def test_a_broken_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{", "utf-8")
    with pytest.raises(ConfigError, match=r"damaged or not whole: .*; copy or download it again"):
        Source(given=tmp_path).load()
