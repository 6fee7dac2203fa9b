"""Records in files: strict when read, whole or not at all when written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from omnireuse.base.records import AnyFloat, Record, as_text, read_record, write_text
from omnireuse.errors import ConfigError

HEAD = {"format": 2}


class Part(Record, frozen=True, kw_only=True):
    numbers: tuple[int, ...]
    decibels: AnyFloat = 0.0

    def __post_init__(self) -> None:
        if not self.numbers:
            raise ConfigError("Part(numbers=()): numbers must not be empty")


class Whole(Record, frozen=True, kw_only=True):
    name: str
    share: float
    parts: Mapping[int, Part]
    note: str | None = None


WHOLE = Whole(name='a "b" [ 1, 2 ]\n', share=0.5, parts={3: Part(numbers=(1, 2), decibels=math.inf)})


def upgrade(document: dict[str, Any]) -> None:
    if document.get("format") == 1:
        document.update(format=2, name=document.pop("title"))


def read(path: Path) -> Whole:
    return read_record(Whole, path, HEAD, what="example", remedy="make it again", upgrade=upgrade)


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "a.json", as_text(WHOLE, HEAD))
    assert read(tmp_path / "new" / "a.json") == WHOLE
    text = (tmp_path / "new" / "a.json").read_text("utf-8")
    assert '"numbers": [1, 2]' in text
    assert json.loads(text)["format"] == 2
    assert read_back(tmp_path, decibels=-math.inf) == -math.inf
    assert math.isnan(read_back(tmp_path, decibels=math.nan))
    assert read_back(tmp_path, decibels=4.5) == 4.5


def read_back(folder: Path, decibels: float) -> float:
    changed = structs.replace(WHOLE, parts={3: Part(numbers=(1,), decibels=decibels)})
    write_text(folder / "a.json", as_text(changed, HEAD))
    # What was read can be written again.
    assert as_text(read(folder / "a.json"), HEAD) == (folder / "a.json").read_text("utf-8")
    return read(folder / "a.json").parts[3].decibels


def test_an_older_format_is_read(tmp_path: Path) -> None:
    document = json.loads(as_text(WHOLE, HEAD))
    document.update(format=1, title=document.pop("name"))
    (tmp_path / "a.json").write_text(json.dumps(document), "utf-8")
    assert read(tmp_path / "a.json") == WHOLE


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 7}, "format of a example must be 2, got 7; make it again"),
        ({"format": 1}, "not a whole example .'title'.; make it again"),
        ({"name": 7}, r"Expected `str`, got `int` - at `\$.name`"),
        ({"share": True}, r"Expected `float`, got `bool` - at `\$.share`"),
        ({"share": "inf"}, r"Expected `float`, got `str` - at `\$.share`"),
        ({"other": 1}, "unknown field `other`"),
        ({"parts": {"3": {}}}, "missing required field `numbers`"),
        ({"parts": {"3": {"numbers": []}}}, "numbers must not be empty"),
        ({"parts": {"3": {"numbers": [1], "decibels": "1"}}}, "Expected a number, 'inf', '-inf' or 'nan', got '1'"),
        ({"parts": {"x": {"numbers": [1]}}}, r"Expected `int`, got `str` - at `key` in `\$.parts`"),
        ({"share": math.nan}, "malformed"),
    ],
)
def test_what_does_not_belong_is_refused_and_named(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**json.loads(as_text(WHOLE, HEAD)), **change}), "utf-8")
    with pytest.raises(ConfigError, match=complaint) as refused:
        read(tmp_path / "a.json")
    assert "a.json" in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "\xff", "[" * 100_000])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"a.json: not a whole example.*; make it again"):
        read(tmp_path / "a.json")
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        read(tmp_path / "b.json")


def test_a_value_that_could_not_be_read_is_not_written() -> None:
    with pytest.raises(ValueError, match="Expected `float`"):
        as_text(structs.replace(WHOLE, share=math.inf), HEAD)
    with pytest.raises(ValueError, match="Expected `str`"):
        as_text(structs.replace(WHOLE, name=3), HEAD)
