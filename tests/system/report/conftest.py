"""One browser and the pages that the tests look at with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.comparisons import comparison, pareto, save_clips, save_images

from .browser import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    from omnireuse.evaluation.report.page import render_page

    save_images(comparison(), folder)
    (folder / "page.html").write_text(render_page(comparison(), folder, pareto=pareto()), encoding="utf-8")
    return folder / "page.html"


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    from omnireuse.evaluation.report.page import render_page

    save_clips(comparison(), folder)
    (folder / "page.html").write_text(render_page(comparison(), folder), encoding="utf-8")
    return folder / "page.html"
