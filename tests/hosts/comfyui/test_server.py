"""The workflows to drag in, and what ComfyUI's server and its frontend make of the nodes."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.hosts.comfyui.conftest import IN_COMFYUI

pytestmark = IN_COMFYUI

WORKFLOWS = Path(__file__).parents[3] / "integrations" / "comfyui" / "workflows"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SUMMARY, SIZE, SAMPLER, REUSE = "7", "5", "6", "2"
STARTS_WITHIN, RUNS_WITHIN = 400, 300
"""Seconds, on a machine that is busy."""


def graph() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WORKFLOWS / "omnireuse_api.json").read_text("utf-8"))
    return found


def asked(url: str, data: object = None) -> Any:
    body = None if data is None else json.dumps(data).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
        return json.loads(answer.read())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("server")
    log = folder / "log"
    command = [sys.executable, "-W", "ignore", "-m", "tests.hosts.comfyui.server", str(port), str(folder / "comfyui")]
    with log.open("w") as told, subprocess.Popen(command, stdout=told, stderr=told) as process:
        url, ends = f"http://127.0.0.1:{port}", time.monotonic() + STARTS_WITHIN
        try:
            while True:
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < ends, log.read_text()[-2000:]
                try:
                    asked(f"{url}/system_stats")
                    break
                except OSError:
                    time.sleep(1)
            yield url
        finally:
            process.terminate()


def test_the_workflow_runs_as_it_is_posted(server: str) -> None:
    prompt = graph()
    prompt[SIZE]["inputs"] |= {"width": 128, "height": 128}
    prompt[REUSE]["inputs"]["tune"] = False
    number = asked(f"{server}/prompt", {"prompt": prompt})["prompt_id"]
    ends = time.monotonic() + RUNS_WITHIN
    while not (found := asked(f"{server}/history/{number}")):
        assert time.monotonic() < ends
        time.sleep(1)
    assert found[number]["status"]["status_str"] == "success", found[number]["status"]
    shown = found[number]["outputs"][SUMMARY]
    assert shown["text"][0].startswith("default: 14 of 28 steps computed")
    (image,) = shown["images"]
    query = f"filename={image['filename']}&type={image['type']}&subfolder="
    with urllib.request.urlopen(f"{server}/view?{query}", timeout=60) as answer:
        assert Image.open(io.BytesIO(answer.read())).size == (720, 48)


def test_the_nodes_are_found_by_the_words_of_other_caches_and_have_a_template(server: str) -> None:
    assert "teacache" in asked(f"{server}/object_info/Omnireuse")["Omnireuse"]["search_aliases"]
    assert sorted(asked(f"{server}/workflow_templates")["omnireuse"]) == ["omnireuse", "omnireuse_api"]


@pytest.fixture(scope="module")
def page(server: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("no chromium on this machine; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1700, "height": 1000})
        opened.set_default_timeout(STARTS_WITHIN * 1000)
        opened.goto(server)
        opened.wait_for_function("!!(window.app?.graph && window.LiteGraph?.registered_node_types.OmnireuseSummary)")
        yield opened
        browser.close()


def test_the_workflow_of_the_browser_is_the_posted_one(page: Any) -> None:
    drawn = json.loads((WORKFLOWS / "omnireuse.json").read_text("utf-8"))
    page.evaluate("async (drawn) => { await window.app.loadGraphData(drawn); }", drawn)
    made = page.evaluate("async () => (await window.app.graphToPrompt()).output")
    assert {name: (each["class_type"], each["inputs"]) for name, each in made.items()} == {
        name: (each["class_type"], each["inputs"]) for name, each in graph().items()
    }


def test_the_browser_shows_text_and_picture_of_a_summary(page: Any) -> None:
    prompt = graph()
    prompt[SIZE]["inputs"] |= {"width": 128, "height": 128}
    prompt[REUSE]["inputs"]["tune"] = False
    prompt[SAMPLER]["inputs"]["seed"] = 1
    page.evaluate("async (prompt) => { await window.app.loadApiJson(prompt, 'omnireuse'); }", prompt)
    page.evaluate("async () => { await window.app.queuePrompt(0); }")
    node = f"window.app.graph.getNodeById({SUMMARY})"
    # Pictures of nodes out of sight are not loaded.
    page.evaluate(f"window.app.canvas.centerOnNode({node})")
    page.wait_for_function(f"{node}.imgs?.length === 1 && {node}.widgets?.some((each) => each.name === 'told')")
    text = page.evaluate(f"{node}.widgets.find((each) => each.name === 'told').value")
    assert text.startswith("default: 14 of 28 steps computed")
    # What is shown is no input of the next run.
    assert page.evaluate("async () => (await window.app.graphToPrompt()).output")[SUMMARY] == prompt[SUMMARY]
