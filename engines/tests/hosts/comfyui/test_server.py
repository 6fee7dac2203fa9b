"""The workflows to drag in, and what ComfyUI's server and its frontend make of the nodes."""

from __future__ import annotations

import io
import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from engines.tests.hosts.comfyui.conftest import IN_COMFYUI
from engines.tests.hosts.serving import Server, running_server
from tests import TOP

pytestmark = IN_COMFYUI

NODES = TOP / "integrations" / "comfyui"
POSTED, DRAWN = NODES / "api" / "omnireuse.json", NODES / "workflows" / "omnireuse.json"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SUMMARY, SIZE, SAMPLER, REUSE = "7", "5", "6", "2"
STARTS_WITHIN, RUNS_WITHIN = 400, 300
"""Seconds, on a machine that is busy."""


def graph() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(POSTED.read_text("utf-8"))
    return found


def small_graph() -> dict[str, Any]:
    """The workflow with a small picture, which reuses from the first one on."""
    prompt = graph()
    prompt[SIZE]["inputs"] |= {"width": 128, "height": 128}
    prompt[REUSE]["inputs"]["tune"] = False
    return prompt


def queued(server: Server, prompt: dict[str, Any]) -> str:
    """The number of an item that the server's queue has taken."""
    status, answer = server.post("/prompt", {"prompt": prompt})
    assert status == 200, answer
    return str(answer["prompt_id"])


def done(server: Server, number: str) -> dict[str, Any]:
    """What the server tells of an item of the queue, once it has ended."""
    ends = time.monotonic() + RUNS_WITHIN
    while not (found := json.loads(server.get(f"/history/{number}"))):
        assert time.monotonic() < ends
        time.sleep(1)
    item: dict[str, Any] = found[number]
    return item


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    command = ["-m", "engines.tests.hosts.comfyui.server", "{port}", str(folder / "comfyui")]
    with running_server(command, {}, folder / "log", "/system_stats") as server:
        yield server


def test_the_workflow_runs_as_it_is_posted(server: Server) -> None:
    item = done(server, queued(server, small_graph()))
    assert item["status"]["status_str"] == "success", item["status"]
    shown = item["outputs"][SUMMARY]
    assert shown["text"][0].startswith("default: 14 of 28 steps computed")
    (image,) = shown["images"]
    view = f"{server.url}/view?filename={image['filename']}&type={image['type']}&subfolder="
    with urllib.request.urlopen(view, timeout=60) as answer:
        assert Image.open(io.BytesIO(answer.read())).size == (720, 48)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"speedup": 0.5}, "speedup must be a number from 1 to 20, or 0 to leave it out"),
        ({"speedup": float("nan")}, "speedup must be a number from 1 to 20"),
        ({"tolerance": 2.0}, "bigger than max of 0.99"),
    ],
)
def test_wrong_numbers_are_refused_before_anything_runs(server: Server, inputs: dict[str, float], message: str) -> None:
    prompt = graph()
    prompt[REUSE]["inputs"] |= inputs
    status, answer = server.post("/prompt", {"prompt": prompt})
    assert status == 400
    (error,) = answer["node_errors"][REUSE]["errors"]
    assert message in str(error)
    assert error["extra_info"]["input_name"] == next(iter(inputs))


def test_an_item_that_fails_leaves_those_before_and_behind_it(server: Server) -> None:
    """Wrong only once it runs, and in the queue between two that are right."""
    numbers = []
    for percents in ({}, {"start_percent": 0.9, "end_percent": 0.2}, {}):
        prompt = small_graph()
        prompt[REUSE]["inputs"] |= percents
        prompt[SAMPLER]["inputs"]["seed"] = 5 + len(numbers)
        numbers.append(queued(server, prompt))
    first, wrong, last = (done(server, number) for number in numbers)
    assert "start_percent must be at least 0 and below end_percent" in str(wrong["status"]["messages"])
    for item in (first, last):
        assert item["status"]["status_str"] == "success"
        assert item["outputs"][SUMMARY]["text"][0].startswith("default: 14 of 28 steps computed (2.00x fewer) in 1 run")


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("no chromium on this machine; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1700, "height": 1000})
        opened.set_default_timeout(STARTS_WITHIN * 1000)
        opened.goto(server.url)
        opened.wait_for_function("!!(window.app?.graph && window.LiteGraph?.registered_node_types.OmnireuseSummary)")
        yield opened
        browser.close()


def test_the_workflow_of_the_browser_is_the_posted_one(page: Any) -> None:
    drawn = json.loads(DRAWN.read_text("utf-8"))
    page.evaluate("async (drawn) => { await window.app.loadGraphData(drawn); }", drawn)
    made = page.evaluate("async () => (await window.app.graphToPrompt()).output")
    assert {name: (each["class_type"], each["inputs"]) for name, each in made.items()} == {
        name: (each["class_type"], each["inputs"]) for name, each in graph().items()
    }
