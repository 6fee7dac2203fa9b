"""The site: pages from outside of docs/, links between them, and what the page of versions claims."""

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace
from typing import Any

import pytest

from .pages import TOP


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, TOP / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site() -> Any:
    pytest.importorskip("mkdocs", reason="the site's tools are not installed: make docs")
    return load("site_pages")


@pytest.mark.parametrize(
    ("file", "page"),
    [
        ("README.md", "repository/README.md"),
        ("CHANGELOG.md", "changes.md"),
        ("docs/how-to/video.md", "how-to/video.md"),
        ("models/shapes-flux/README.md", "repository/models/shapes-flux/README.md"),
        ("examples/own_loop.py", "repository/examples/own_loop.py.md"),
        ("LICENSE", "repository/LICENSE.md"),
    ],
)
def test_each_file_has_a_page_and_each_page_its_file(site: Any, file: str, page: str) -> None:
    assert site.address(TOP / file) == page
    shown = site.source(page)
    assert shown == TOP / file or shown.with_suffix("") == TOP / file


@pytest.mark.parametrize(
    ("page", "written", "led"),
    [
        ("index.md", "[a](figures.md#x)", "[a](figures.md#x)"),
        ("changes.md", "[a](docs/figures.md#x)", "[a](figures.md#x)"),
        ("how-to/own-loop.md", "[a](../../examples/own_loop.py)", "[a](../repository/examples/own_loop.py.md)"),
        ("figures.md", "[a](../models/shapes-wan/README.md)", "[a](repository/models/shapes-wan/README.md)"),
        ("figures.md", "[a](https://example.org/a.md) [b](#c)", "[a](https://example.org/a.md) [b](#c)"),
    ],
)
def test_links_lead_to_the_page_of_the_same_file(site: Any, page: str, written: str, led: str) -> None:
    shown = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert site.on_page_markdown(written, shown, None, None) == led


def test_the_page_of_versions_names_those_that_are_pinned() -> None:
    compatibility = load("compatibility")
    rows = compatibility.rows()
    assert set(compatibility.ROWS.values()) <= set(rows)
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (TOP / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    suite = [cell.strip() for cell in rows[compatibility.ROWS["suite"]].split("|")]
    assert suite[3:6] == [pins["torch"], pins["diffusers"], pins["transformers"]]


def test_a_row_without_a_note_stays(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compatibility = load("compatibility")
    monkeypatch.setattr(compatibility, "NOTES", tmp_path / "notes.json")
    monkeypatch.setattr(compatibility, "PAGE", tmp_path / "page.md")
    (tmp_path / "notes.json").write_text('{"vllm": {"python": "3.11.7", "on": "2026-11-22", "result": "passed"}}')
    compatibility.write()
    (tmp_path / "notes.json").write_text("{}")
    compatibility.write()
    row = f"| {compatibility.ROWS['vllm']} | 3.11.7 | – | – | – | – | 2026-11-22 | passed |"
    assert row in (tmp_path / "page.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("1204 passed, 30 skipped in 300.12s (0:05:00)", "passed"),
        ("2 failed, 1202 passed, 3 warnings in 300.12s (0:05:00)", "2 of 1,204 failed"),
        ("1 failed, 9 passed, 1 error in 3.1s", "2 of 11 failed"),
        ("1 error in 0.42s", "1 of 1 failed"),
        ("............................ [ 24%]", "did not finish"),
    ],
)
def test_the_result_of_the_newest_releases_is_noted_as_it_is(tmp_path: Any, last: str, said: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"FAILED tests/a.py::test_b - 3 failed\n{last}\n", "utf-8")
    assert load("compatibility").result(log) == said


def test_cells_of_a_table_of_words_name_their_columns_and_those_of_figures_do_not(site: Any) -> None:
    def shown(cell: str) -> str:
        head, row = "<tr><th>name</th><th>use</th></tr>", f"<tr><td>a</td><td>{cell}</td></tr>"
        return str(site.on_page_content(f"<table>{head}{row}</table>", None, None, None))

    assert "data-" not in shown("1.5")
    made = shown("a sentence that is longer than a figure would ever be")
    assert made.startswith("<table data-cards>")
    assert '<td data-column="name">a</td><td data-column="use">a sentence' in made
