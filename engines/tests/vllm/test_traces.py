from __future__ import annotations

from pathlib import Path

import pytest

from omnireuse.errors import ConfigError
from omnireuse_engines.vllm.replay.generate import KINDS, make_trace
from omnireuse_engines.vllm.replay.traces import Access, read_trace, write_trace


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold at least one access"),
        (
            "key,size\na,1\nb,x\n",
            r"line 3: Expected `int`, got `str` - at `\$.size`; the columns are key, size, cost, request",
        ),
        ("key,size\n,1\n", r"line 2: .*missing required field `key`"),
        ("key,size\na,1\na,2\n", r"line 3: size must be 1 as on line 2 for 'a', got 2"),
        ("key,size\na\n", r"line 2: .*missing required field `size`"),
        ("key,size\na,1,2\n", r"line 2: must have 2 cells"),
        ("key,size,size\na,1,2\n", r"line 1: each column must be named once"),
        ("key,size,cots\na,1,2\n", r"line 2: .*unknown field `cots`"),
        ('key,size\n"a,1\n', r"line 2: must be CSV"),
        ("key,size,cost\na,1,-1\n", r"line 2: Expected `float` > 0.0 - at `\$.cost`"),
        ("key,size,cost\na,1,inf\n", r"line 2: Expected `float` < 1000000000.0"),
        ("key,size,cost\na,1,1\nb,1,\n", r"line 3: cost must be given on every line or on none"),
        ('{"key": "a", "size": 1}\n{"key": "b", "size": true}', r"line 2: Expected `int`, got `bool` - at `\$.size`"),
        ('{"key": "a", "size": 1}\n{"key": "b"', r"line 2: Input data was truncated"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_made_trace_is_read_back_as_it_was(tmp_path: Path, kind: str, name: str) -> None:
    made = make_trace(kind, num_accesses=400, seed=7)
    write_trace(made, tmp_path / "new" / name)
    assert read_trace(tmp_path / "new" / name) == made
    assert made == make_trace(kind, num_accesses=400, seed=7) != make_trace(kind, num_accesses=400, seed=8)
    assert len(made) == 400
