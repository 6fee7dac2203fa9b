from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from omnireuse.cli import main
from omnireuse.errors import ConfigError
from omnireuse.lab.record import write_comparison
from omnireuse.lab.report.page import rebuild
from tests.helpers import comparisons as make
from tests.helpers.comparisons import gallery, save_images


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    save_images(gallery(), tmp_path)
    write_comparison(gallery(), tmp_path / "report.json")
    return tmp_path / "report.json"


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    write_comparison(make.peers(), tmp_path / "compare.json")
    return tmp_path / "compare.json"


@pytest.mark.parametrize("kind", ["demo", "peers"])
def test_a_page_is_named_as_its_file_and_lies_beside_it(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    page = rebuild([path])
    assert page == path.with_suffix(".html")
    assert ("What each cache gives" in page.read_text()) == (kind == "peers")


@pytest.mark.parametrize("turned", [False, True])
def test_both_together_make_one_page_where_it_is_asked_for(
    turned: bool, demo: Path, peers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(demo), str(peers)]
    page = demo.parent / "new" / "page.html"
    assert main(["report", *(files[::-1] if turned else files), "--out", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    text = page.read_text()
    assert "Beside other caches" in text
    assert "Every run of this prompt" in text
    other = rebuild([demo, peers], demo.parent / "all")
    assert other == demo.parent / "all" / "report.html"
    assert "Beside other caches" in other.read_text()


def test_two_with_pictures_are_refused(demo: Path) -> None:
    with pytest.raises(ConfigError, match="only one of the files can hold pictures"):
        rebuild([demo, demo])


@pytest.mark.parametrize("kind", ["demo", "peers"])
def test_a_file_that_was_cut_off_is_refused_wherever_it_was_cut(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 3, len(whole) // 40):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="not a whole comparison"):
            rebuild([path])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "null",
        '{"format": 2}',
        '{"kind": "comparison"}',
        '{"format": 2, "kind": "comparison"}',
        "[" * 100_000,
    ],
)
def test_a_foreign_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"other\.json"):
        rebuild([path])
    path.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(ConfigError, match=r"other\.json: not a whole comparison"):
        rebuild([path])


def leaves(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a JSON document are, of a list only the first and the last."""
    if isinstance(document, dict):
        return [found for key, value in document.items() for found in leaves(value, (*at, key))]
    if isinstance(document, list) and document:
        ends = {0, len(document) - 1}
        return [found for index in sorted(ends) for found in leaves(document[index], (*at, index))]
    return [at]


@pytest.mark.parametrize("value", [None, 0, -1, "nan", 1e300])
def test_a_damaged_value_is_refused_or_shown_but_never_a_surprise(value: Any, peers: Path) -> None:
    case = make.peers().cases[0]
    write_comparison(replace(make.peers(), cases=(replace(case, points=case.points[-2:]),)), peers)
    whole = json.loads(peers.read_text())
    refused = 0
    for *path, last in leaves(whole):
        document = json.loads(json.dumps(whole))
        owner = document
        for key in path:
            owner = owner[key]
        owner[last] = value
        peers.write_text(json.dumps(document))
        try:
            rebuild([peers])
        except ConfigError:
            refused += 1
    assert refused


def test_a_damaged_picture_is_refused_by_its_name(demo: Path) -> None:
    picture = demo.parent / "images" / "2-1.png"
    whole = picture.read_bytes()
    for broken in (b"", b"hello", whole[: len(whole) // 2], whole[:40] + bytes(40) + whole[80:]):
        picture.write_bytes(broken)
        with pytest.raises(ConfigError, match=r"2-1\.png"):
            rebuild([demo])
