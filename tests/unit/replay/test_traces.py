from __future__ import annotations

from pathlib import Path

import pytest

from omnireuse.errors import ConfigError, UnknownNameError
from reference.replay.generate import KINDS, make_trace
from reference.replay.traces import Access, read_trace, requests_of, write_trace


def read(folder: Path, text: str) -> list[Access]:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return read_trace(path)


def test_csv_and_json_lines_say_the_same(tmp_path: Path) -> None:
    wanted = [Access(key="a cat, asleep", size=576, cost=0.25, request="r1"), Access(key="b", size=16, cost=1.0)]
    csv = 'key,size,cost,request\n"a cat, asleep",576,0.25,r1\n\nb,16,1,\n'
    jsonl = '{"key": "a cat, asleep", "size": 576, "cost": 0.25, "request": "r1"}\n\n{"key":"b","size":16,"cost":1.0}'
    assert read(tmp_path, csv) == read(tmp_path, jsonl) == wanted
    assert read(tmp_path, "\ufeff" + csv.replace("\n", "\r\n")) == wanted


def test_only_key_and_size_are_needed(tmp_path: Path) -> None:
    assert read(tmp_path, "size,key\n3,a\n") == [Access(key="a", size=3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold at least one access"),
        ("key,size\n", "must hold at least one access"),
        ("key,size\na,1\nb,x\n", r"line 3, column size: must be an int ≥ 1, got 'x'"),
        ("key,size\na,0\n", r"line 2, column size: must be an int ≥ 1, got '0'"),
        ("key,size\na,1.5\n", r"line 2, column size: must be an int"),
        ("key,size\na,\n", r"line 2, column size: must be an int ≥ 1, got None"),
        ("key,size\n,1\n", r"line 2, column key: must be a text that is not empty"),
        ("key,size\na,1\na,2\n", r"line 3, column size: must be 1 as on line 2 for 'a', got 2"),
        ("key,size\na\n", r"line 2, column size: must have 2 cells"),
        ("key,size\na,1,2\n", r"line 2, column 3: must have 2 cells"),
        ("key\na\n", r"line 1, column size: must be in the header"),
        ("key,key,size\n", r"line 1, column key: must be named once"),
        ('key,size\n"a,1\n', r"line 2: must be CSV"),
        ("key,size,cost\na,1,-1\n", r"line 2, column cost: must be a finite number of seconds > 0, got '-1'"),
        ("key,size,cost\na,1,nan\n", r"line 2, column cost: must be a finite"),
        ("key,size,cost\na,1,1\nb,1,\n", r"line 3, column cost: must be given on every line or on none"),
        ('{"key": "a", "size": 1}\n{"key": "b", "size": true}', r"line 2, column size: must be an int ≥ 1, got True"),
        ('{"key": 5, "size": 1}', r"line 1, column key: must be a text"),
        ('{"key": "a", "size": 1, "request": 2}', r"line 1, column request: must be a text"),
        ('{"key": "a", "size": 1}\n{"key": "b"', r"line 2, column 12: must be JSON"),
        ('{"key": "a", "size": 1}\n[1]', r"line 2, column 1: must be a JSON object"),
    ],
)
def test_a_bad_line_is_named_with_its_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["key,sise\na,1\n", '{"key": "a", "sise": 1}'])
def test_a_misspelt_column_gets_the_nearest(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnknownNameError, match=r"'sise'; did you mean 'size'.*line 1"):
        read(tmp_path, text)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.csv: must be a readable file, got No such file"):
        read_trace(tmp_path / "nowhere.csv")
    with pytest.raises(ConfigError, match="must be a readable file"):
        read_trace(tmp_path)
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ConfigError, match="must be UTF-8"):
        read_trace(tmp_path / "picture")


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_made_trace_is_read_back_as_it_was(tmp_path: Path, kind: str, name: str) -> None:
    made = make_trace(kind, num_accesses=400, seed=7)
    write_trace(made, tmp_path / "new" / name)
    assert read_trace(tmp_path / "new" / name) == made
    assert made == make_trace(kind, num_accesses=400, seed=7) != make_trace(kind, num_accesses=400, seed=8)
    assert len(made) == 400


def test_each_kind_has_its_character() -> None:
    zipf, scan, talks = (make_trace(kind, num_accesses=3000, size=256) for kind in ("zipf", "scan", "multi-turn"))
    assert {access.size for access in zipf + scan + talks} == {256}
    once = [access for access in scan if access.key.startswith("once")]
    assert len(once) == len({access.key for access in once}) == 1000
    counts = [sum(access.key == f"item {k}" for access in zipf) for k in (0, 9)]
    assert counts[0] > 3 * counts[1]
    seen: dict[str, list[str]] = {}
    for turn in list(requests_of(talks))[:-1]:
        talk = turn[0].key.rsplit(" image ")[0]
        keys = [access.key for access in turn]
        assert keys[: len(seen.get(talk, []))] == seen.get(talk, [])  # all of the conversation again, then what is new
        seen[talk] = keys


def test_mistakes_in_what_to_make_are_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'zipf'"):
        make_trace("zip", num_accesses=3)
    with pytest.raises(ConfigError, match="num_accesses must be ≥ 1, got 0"):
        make_trace("zipf", num_accesses=0)
    with pytest.raises(ConfigError, match="size must be ≥ 1, got 0"):
        make_trace("zipf", num_accesses=1, size=0)
