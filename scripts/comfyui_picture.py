"""Make docs/images/comfyui.png: the committed workflow in ComfyUI's own page, after its picture.

    scripts/comfyui_venv.sh /tmp/comfyui -k workflow     # once
    export PYTHONPATH=. OMNIREUSE_SHAPES_FLUX=models/faces OMNIREUSE_CACHE_DIR=/tmp/plans
    COMFYUI=/tmp/comfyui/ComfyUI /tmp/comfyui/bin/python -m engines.tests.hosts.comfyui.server 8188 /tmp/folder &
    /tmp/comfyui/bin/python scripts/comfyui_picture.py http://127.0.0.1:8188

The faces of this repository are the checkpoint; their autoencoder makes pictures of half the size that ComfyUI assumes.
Eight pictures are made: three in full, and five with reuse. Needs Chromium.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

TOP = Path(__file__).parents[1]
WORKFLOW = TOP / "integrations" / "comfyui" / "workflows" / "omnireuse.json"
TARGET = TOP / "docs" / "images" / "comfyui.png"
PROMPT = "a smiling person with tan skin, an afro and a red shirt on a teal background"
PICTURES = 8
SIZE = {"width": 1500, "height": 800}
SET = """async ([graph, prompt]) => {
    await window.app.loadGraphData(graph);
    const node = (kind) => window.app.graph._nodes.find((each) => each.type === kind);
    const set = (of, name, value) => { of.widgets.find((each) => each.name === name).value = value; };
    set(node("CLIPTextEncode"), "text", prompt);
    for (const side of ["width", "height"]) set(node("EmptyLatentImage"), side, 128);
    set(node("KSampler"), "cfg", 3);
    window.app.canvas.centerOnNode(node("OmnireuseSummary"));
}"""
DONE = """async () => {
    const queue = await (await fetch("/queue")).json();
    const kinds = ["OmnireuseSummary", "SaveImage"];
    return !queue.queue_running.length && !queue.queue_pending.length
        && kinds.every((kind) => window.app.graph._nodes.find((each) => each.type === kind).imgs);
}"""
FIT = """async () => {
    const nodes = window.app.graph._nodes, canvas = window.app.canvas;
    const least = (side) => Math.min(...nodes.map((each) => each.pos[side])) - (side ? 60 : 30);
    const most = (side) => Math.max(...nodes.map((each) => each.pos[side] + each.size[side])) + 30;
    const [left, top] = [least(0), least(1)];
    const { clientWidth: wide, clientHeight: high } = canvas.canvas;
    canvas.ds.scale = Math.min((wide - 90) / (most(0) - left), (high - 130) / (most(1) - top));
    canvas.ds.offset = [80 / canvas.ds.scale - left, 90 / canvas.ds.scale - top];
    canvas.setDirty(true, true);
    await window.app.extensionManager.setting.set("Comfy.Minimap.Visible", false);
    await window.app.extensionManager.setting.set("Comfy.Graph.CanvasInfo", false);
}"""


def main(url: str) -> None:
    """Load the workflow, queue it, wait until the last picture is there, and write the page as a picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(120_000)
        page.goto(url)
        page.wait_for_function("!!(window.app?.graph && window.LiteGraph?.registered_node_types.OmnireuseSummary)")
        page.evaluate(SET, [json.loads(WORKFLOW.read_text("utf-8")), PROMPT])
        for seed in range(PICTURES):
            page.evaluate(
                """async (seed) => {
                    const sampler = window.app.graph._nodes.find((each) => each.type === "KSampler");
                    sampler.widgets.find((each) => each.name === "seed").value = seed;
                    await window.app.queuePrompt(0);
                }""",
                seed,
            )
        while not page.evaluate(DONE):  # `wait_for_function` takes an unresolved promise for true
            page.wait_for_timeout(500)
        page.keyboard.press("Escape")  # the templates, which a first visit shows
        page.evaluate(FIT)
        page.wait_for_timeout(7000)
        held = page.screenshot()
        browser.close()
    Image.open(io.BytesIO(held)).convert("P", palette=Image.Palette.ADAPTIVE, colors=255).save(TARGET, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
