"""One browser and the pages that the tests look at with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from lab.tests.comparisons import gallery, peers, save_clips, save_images
from omnireuse_lab.report.page import write_page
from reference.demo.page import write_demo_page

from .window import CHROMIUM, Window


@pytest.fixture(scope="package")  # no longer: its event loop would stand in the way of tests that run one of their own
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def window(chromium: Browser) -> Iterator[Window]:
    opened = Window(chromium)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    save_images(gallery(), folder)
    return write_demo_page(gallery(), folder, folder / "page.html")


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    save_clips(gallery(), folder)
    return write_demo_page(gallery(), folder, folder / "page.html")


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(peers(), tmp_path_factory.mktemp("methods") / "page.html")
