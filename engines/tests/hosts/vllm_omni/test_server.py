"""vllm-omni's own HTTP server with ``--cache-backend omnireuse``: what clients and operators get of it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.tests.dashboards import asked_in
from engines.tests.hosts.serving import Server, documented, grown, keeps_no_more, picture, running_server, serve_clients
from engines.tests.hosts.vllm_omni.conftest import IN_VLLM_OMNI
from engines.tests.hosts.vllm_omni.server import environment, serving

pytestmark = IN_VLLM_OMNI

IMAGES, CHAT = "/v1/images/generations", "/v1/chat/completions"
NOISE = 2
"""Steps of 255 by which a picture may differ from its solo run: batches add up in another order."""
REQUESTS = int(os.environ.get("REQUESTS", "60"))
"""Of all clients together."""
SETTINGS: tuple[object, ...] = (None, "on", "off", {"speedup": 3}, {"computed_steps": 9}, {"tolerance": 0.2})
WRONG: tuple[tuple[object, str], ...] = (
    ({"sped": 2}, "did you mean 'speedup'"),
    ({"quality": 40}, "a quality can only be promised by a profile"),
    ({"computed_steps": 25}, "computed_steps must be at most the 24 steps of the run"),
)


@pytest.fixture(scope="module")
def server(tiny_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In step mode."""
    with started(tiny_qwen, tmp_path_factory.mktemp("server"), "--step-execution", "--max-num-seqs", "4") as server:
        yield server


@pytest.fixture(scope="module")
def of_whole_requests(tiny_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In request mode, with caches of prompts and modulation."""
    with started(
        tiny_qwen, tmp_path_factory.mktemp("whole"), "--cache-config", '{{"prompt_cache": 8, "modulation": true}}'
    ) as server:
        yield server


@contextmanager
def started(model: Path, folder: Path, *options: str) -> Iterator[Server]:
    (folder / "site").mkdir()
    with running_server(
        serving(model, "--port", "{port}", *options),
        environment(folder / "site") | {"OMNIREUSE_OFF": str(folder / "off")},
        folder / "log",
    ) as server:
        yield server


def body(which: int = 0, steps: int = 24, *, reuse: object = None, **further: Any) -> dict[str, Any]:
    """Of the images API."""
    asked = {} if reuse is None else {"extra_params": {"omnireuse": reuse}}
    sizes = {"size": "64x64", "num_inference_steps": steps, "true_cfg_scale": 4.0}
    prompt = {"prompt": f"a {('red', 'green', 'blue')[which % 3]} square", "negative_prompt": "blurry", "seed": which}
    return {**prompt, **sizes, "response_format": "b64_json", **asked, **further}


def chat_body(which: int = 0, steps: int = 24, **further: Any) -> dict[str, Any]:
    of_images = body(which, steps)
    kept = {name: of_images[name] for name in ("negative_prompt", "seed", "num_inference_steps", "true_cfg_scale")}
    return {
        "messages": [{"role": "user", "content": of_images["prompt"]}],
        "height": 64,
        "width": 64,
        **kept,
        **further,
    }


def figures(answer: dict[str, Any]) -> dict[str, float]:
    """What every response says of its steps."""
    if "data" in answer:
        durations = answer["metrics"]["stage_durations"]
    else:
        durations = answer["choices"][0]["message"]["content"][0]["stage_durations"]
    return {name.removeprefix("omnireuse_"): each for name, each in durations.items() if name.startswith("omnireuse_")}


def drawn(answer: dict[str, Any]) -> np.ndarray[Any, Any]:
    if "data" in answer:
        return picture(answer["data"][0]["b64_json"])
    return picture(answer["choices"][0]["message"]["content"][0]["image_url"]["url"])


def ask(server: Server, request: dict[str, Any], path: str = IMAGES) -> dict[str, Any]:
    status, answer = server.post(path, request)
    assert status == 200, answer
    return dict(answer)


def test_each_documented_request_reaches_the_plugin(server: Server) -> None:
    requests = documented("vllm-omni")
    assert [path for path, _ in requests] == [IMAGES, CHAT]
    for path, example in requests:
        size = {"size": "64x64"} if path == IMAGES else {"height": 64, "width": 64}
        answer = ask(server, {**example, **size, "num_inference_steps": 24, "seed": 1}, path)
        assert figures(answer) == {"steps_computed": 8, "steps_reused": 16}, path


def test_images_and_chat_make_the_same_picture(server: Server) -> None:
    for reuse in ("off", {"speedup": 3}):
        of_images = ask(server, body(reuse=reuse))
        of_chat = ask(server, chat_body(extra_args={"omnireuse": reuse}), CHAT)
        assert np.array_equal(drawn(of_images), drawn(of_chat))
        assert figures(of_images) == figures(of_chat)


@pytest.mark.parametrize(("reuse", "message"), WRONG)
def test_wrong_settings_are_answered_with_400_and_the_sentence(server: Server, reuse: object, message: str) -> None:
    for path, request in (
        (IMAGES, body(reuse=reuse)),
        (CHAT, chat_body(extra_args={"omnireuse": reuse})),
    ):
        status, answer = server.post(path, request)
        assert (status, message in str(answer).replace("\\", "")) == (400, True), (path, answer)


def test_the_server_counts_steps_among_its_own_metrics(server: Server) -> None:
    before = server.samples("omnireuse_")
    for reuse in (None, {"speedup": 3}, {"speedup": 3.01}, "off"):
        ask(server, body(reuse=reuse))
    assert grown(server, before) == {
        'omnireuse_requests_total{target="server"}': 1,
        'omnireuse_requests_total{target="speedup"}': 2,
        'omnireuse_requests_total{target="off"}': 1,
        'omnireuse_request_steps_total{action="computed",target="server"}': 12,
        'omnireuse_request_steps_total{action="reused",target="server"}': 12,
        'omnireuse_request_steps_total{action="computed",target="speedup"}': 16,
        'omnireuse_request_steps_total{action="reused",target="speedup"}': 32,
        'omnireuse_request_steps_total{action="computed",target="off"}': 24,
    }


def test_a_file_switches_reuse_off_from_the_next_request_on(server: Server) -> None:
    switch = server.log.parent / "off"
    switch.touch()
    try:
        before = server.samples("omnireuse_")
        answer = ask(server, body(reuse={"speedup": 3}))
        assert figures(answer)["steps_reused"] == 0
        assert grown(server, before)['omnireuse_requests_total{target="off"}'] == 1
    finally:
        switch.unlink()
    assert figures(ask(server, body()))["steps_reused"] == 12


def test_the_dashboard_asks_for_metrics_that_the_server_exposes(of_whole_requests: Server) -> None:
    ask(of_whole_requests, body())
    exposed = {name.partition("{")[0] for name in of_whole_requests.samples("omnireuse_")}
    asked = asked_in("vllm-omni-dashboard.json")
    assert asked <= exposed


def test_many_clients_at_once_get_their_solo_pictures_and_leave_nothing(server: Server) -> None:
    kinds = [(which, steps, reuse) for which, steps in ((0, 24), (1, 30), (2, 12)) for reuse in SETTINGS]
    solo = random.Random(0).sample(kinds, 6)
    alone = [ask(server, body(which, steps, reuse=reuse)) for which, steps, reuse in solo]
    before, beside = kept(server), []

    def good(chance: random.Random) -> None:
        if chance.random() < 0.2:
            beside.append(server.samples("test_"))
        place = chance.randrange(len(solo))
        which, steps, reuse = solo[place]
        answer = ask(server, body(which, steps, reuse=reuse))
        assert np.abs(drawn(answer) - drawn(alone[place])).max() <= NOISE, solo[place]
        assert figures(answer) == figures(alone[place])

    def wrong(chance: random.Random) -> tuple[dict[str, Any], str]:
        reuse, message = chance.choice(WRONG)
        return body(reuse=reuse), message

    serve_clients(server, IMAGES, REQUESTS, good=good, wrong=wrong, left=body(1, 60))
    assert max(sample["test_live_generations"] for sample in beside) > before["test_live_generations"]
    assert max(sample["test_request_states"] for sample in beside) > before["test_request_states"]
    assert keeps_no_more(lambda: kept(server), before), (before, kept(server))
    assert list(server.samples("vllm_omni:num_requests_running").values()) == [0]


def kept(server: Server) -> dict[str, float]:
    """States of requests, runs with reuse, and bytes of tensors in the server's process, after a request that computes
    every step: the engine tells its worker of a finished request with the next wave."""
    ask(server, body(0, 4, reuse="off"))
    return server.samples("test_")


def test_off_is_told_from_a_server_without_the_plugin_in_both_modes(server: Server, of_whole_requests: Server) -> None:
    before = of_whole_requests.samples("omnireuse_")
    for each in (server, of_whole_requests):
        answer = ask(each, body(reuse="off", return_stage_metrics=True))
        assert figures(answer) == {"steps_computed": 24, "steps_reused": 0}
        assert answer["metrics"]["omnireuse_strategy"] == "off"
    assert grown(of_whole_requests, before)['omnireuse_requests_total{target="off"}'] == 1


def test_encodes_of_prompts_are_announced_and_counted_where_they_are_cached(
    server: Server, of_whole_requests: Server
) -> None:
    assert of_whole_requests.said().count("omnireuse keeps the embeddings of 8 prompts") == 1
    before = of_whole_requests.samples("omnireuse_")
    for seed in range(3):  # a prompt and a negative prompt, encoded once
        answer = ask(of_whole_requests, body(1, seed=seed, return_stage_metrics=True))
        assert not [name for name in {**figures(answer), **answer["metrics"]} if "prompts" in name]
    encodes = grown(of_whole_requests, before)
    assert encodes['omnireuse_prompts_total{action="reused"}'] >= 4
    assert 1 <= encodes['omnireuse_prompts_total{action="computed"}'] <= 2
    assert not server.samples("omnireuse_prompts_total")
