"""SGLang's own HTTP server with ``OMNIREUSE_SGLANG``: what clients and operators get of it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engines.tests.dashboards import asked_in
from engines.tests.hosts.serving import Server, documented, grown, keeps_no_more, picture, running_server, serve_clients
from engines.tests.hosts.sglang import beside
from engines.tests.hosts.sglang.conftest import IN_SGLANG, SHAPES_FLUX

pytestmark = IN_SGLANG

IMAGES = "/v1/images/generations"
REQUESTS = int(os.environ.get("REQUESTS", "40"))
"""Of all clients together."""
KINDS: tuple[tuple[int, int, object], ...] = (
    (0, 20, None),
    (1, 12, "off"),
    (2, 12, {"speedup": 3}),
    (1, 20, {"computed_steps": 6}),
    (0, 20, {"tolerance": 0.2}),
)
"""Seed, steps and what is asked for."""
WRONG: tuple[tuple[object, str], ...] = (
    ({"sped": 2}, "did you mean 'speedup'"),
    ("half", 'must be "on", "off" or a mapping'),
    ({"quality": 40}, "can only be promised by a profile"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    site = folder / "site"
    site.mkdir()
    environment = {"PYTHONPATH": f"{beside.announce(site)}:src:engines/src:.", "OMNIREUSE_SGLANG": '{"speedup": 2}'}
    environment |= {"OMNIREUSE_TUNE": "0", "OMNIREUSE_OFF": str(folder / "off")}
    command = ["-m", "sglang.multimodal_gen.runtime.entrypoints.cli.main", "serve", "--model-path", str(SHAPES_FLUX)]
    command += ["--model-id", "FLUX.1-dev", "--backend", "sglang", "--port", "{port}", "--host", "127.0.0.1"]
    command += ["--dit-precision", "fp32", "--vae-precision", "fp32", "--text-encoder-precisions", "fp32", "fp32"]
    command += ["--warmup-mode", "off", "--enable-metrics", "--num-gpus", "1"]
    with running_server(command, environment, folder / "log") as server:
        yield server


def body(seed: int = 0, steps: int = 24, *, reuse: object = None, **further: Any) -> dict[str, Any]:
    asked = {} if reuse is None else {"diffusers_kwargs": {"omnireuse": reuse}}
    prompt = {"prompt": f"a large {('red', 'green', 'blue')[seed % 3]} circle", "negative_prompt": "", "seed": seed}
    sizes = {"size": "64x64", "num_inference_steps": steps, "true_cfg_scale": 6.0, "generator_device": "cpu"}
    return {**prompt, **sizes, "response_format": "b64_json", **asked, **further}


def ask(server: Server, request: dict[str, Any]) -> np.ndarray[Any, Any]:
    status, answer = server.post(IMAGES, request)
    assert status == 200, answer
    return picture(answer["data"][0]["b64_json"])


def test_each_documented_request_reaches_the_plugin(server: Server) -> None:
    requests = documented("sglang")
    assert [path for path, _ in requests] == [IMAGES]
    for _, example in requests:
        before = server.samples("omnireuse_")
        ask(server, {**body(), **example})
        assert grown(server, before)['omnireuse_request_steps_total{action="computed",target="speedup"}'] == 8


@pytest.mark.parametrize(("reuse", "message"), WRONG)
def test_wrong_settings_are_answered_with_400_and_the_sentence(server: Server, reuse: object, message: str) -> None:
    status, answer = server.post(IMAGES, body(reuse=reuse))
    assert (status, message in answer["detail"]) == (400, True), answer


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
    on = ask(server, body())
    switch.touch()
    try:
        before = server.samples("omnireuse_")
        off = ask(server, body(reuse={"speedup": 3}))
        assert grown(server, before) == {
            'omnireuse_requests_total{target="off"}': 1,
            'omnireuse_request_steps_total{action="computed",target="off"}': 24,
        }
    finally:
        switch.unlink()
    assert np.array_equal(off, ask(server, body(reuse="off")))
    assert np.array_equal(on, ask(server, body()))


def test_the_dashboard_asks_for_metrics_that_the_server_exposes(server: Server) -> None:
    ask(server, body())
    exposed = {name.partition("{")[0] for name in server.samples("omnireuse_")}
    asked = asked_in("sglang-dashboard.json")
    assert asked <= exposed


def test_many_clients_at_once_get_their_solo_pictures_and_leave_nothing(server: Server) -> None:
    alone = [ask(server, body(seed, steps, reuse=reuse)) for seed, steps, reuse in KINDS]
    before = kept(server)

    def good(chance: random.Random) -> None:
        place = chance.randrange(len(KINDS))
        seed, steps, reuse = KINDS[place]
        assert np.array_equal(ask(server, body(seed, steps, reuse=reuse)), alone[place]), KINDS[place]

    def wrong(chance: random.Random) -> tuple[dict[str, Any], str]:
        reuse, message = chance.choice(WRONG)
        return body(reuse=reuse), message

    serve_clients(server, IMAGES, REQUESTS, good=good, wrong=wrong, left=body(1, 24))
    assert keeps_no_more(lambda: kept(server), before), (before, kept(server))


def kept(server: Server) -> dict[str, float]:
    """Runs with reuse and bytes of tensors in the server's worker, right after a request without reuse."""
    ask(server, body(0, beside.COUNTED, reuse="off"))
    return server.samples("test_")
