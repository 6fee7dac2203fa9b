"""Three replicas of Ray Serve on this machine behind our router; each says what it served.

Run it in a venv with Ray Serve: scripts/ray_serve_venv.sh.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="needs ray[serve]; scripts/ray_serve_venv.sh builds a venv that has it")

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from omnireuse.errors import ConfigError
from omnireuse_engines.ray_serve import rank
from tests import TOP

pytestmark = pytest.mark.integration


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


ROUTER = "omnireuse_engines.ray_serve.PromptAffinityRouter"
NUMBERS = itertools.count()
PORT = free_port()
PROMPTS = [f"a drawing of {number} foxes" for number in range(24)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": PORT})
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(autouse=True)
def applications(cluster: None) -> Iterator[None]:
    yield
    for name in serve.status().applications:
        serve.delete(name)


@serve.deployment
class Replica:
    """Says which one it is; on request it holds on, or dies."""

    async def __call__(self, prompt: str | None = None, seconds: float = 0.0) -> str:
        import asyncio

        await asyncio.sleep(seconds)
        return serve.get_replica_context().replica_id.unique_id

    async def nested(self, request: dict[str, object]) -> str:
        return serve.get_replica_context().replica_id.unique_id

    async def die(self, prompt: str) -> None:
        os._exit(1)


def deploy(max_ongoing: int = 100, **kwargs: object) -> object:
    config = RequestRouterConfig(request_router_class=ROUTER, request_router_kwargs=kwargs)
    deployment = Replica.options(
        num_replicas=3, max_ongoing_requests=max_ongoing, request_router_config=config,
        ray_actor_options={"num_cpus": 0}, health_check_period_s=1, health_check_timeout_s=2,
    )  # fmt: skip
    # A name of its own: Ray keeps the router of a name, with its first arguments, for as long as the process lives.
    return serve.run(deployment.bind(), name=f"test{next(NUMBERS)}", route_prefix=None)


def homes(handle: object) -> dict[str, str]:
    return {prompt: handle.remote(prompt=prompt).result(timeout_s=60) for prompt in PROMPTS}


def test_equal_prompts_go_to_one_replica_and_different_ones_spread() -> None:
    handle = deploy()
    first = homes(handle)
    assert homes(handle) == first
    served = Counter(first.values())
    assert len(served) == 3
    assert first == {prompt: rank(f'"{prompt}"', served)[0] for prompt in PROMPTS}
    assert handle.nested.remote({"prompt": PROMPTS[0]}).result(timeout_s=60) == first[PROMPTS[0]]


def test_a_request_without_a_prompt_is_served() -> None:
    handle = deploy()
    assert handle.remote().result(timeout_s=60)
    assert handle.nested.remote({"text": "x"}).result(timeout_s=60)


def test_another_name_of_the_argument() -> None:
    handle = deploy(argument="caption")
    first = {n: handle.nested.remote({"caption": f"{n}"}).result(timeout_s=60) for n in range(12)}
    assert len(set(first.values())) > 1
    assert first == {n: handle.nested.remote({"caption": f"{n}"}).result(timeout_s=60) for n in range(12)}


def test_a_full_replica_is_passed_over_for_the_prompts_next_one() -> None:
    handle = deploy(max_ongoing=1)
    order = rank(f'"{PROMPTS[0]}"', set(homes(handle).values()))
    held = handle.remote(prompt=PROMPTS[0], seconds=5.0)
    time.sleep(1.0)
    assert handle.remote(prompt=PROMPTS[0]).result(timeout_s=60) == order[1]
    assert held.result(timeout_s=60) == order[0]


def test_the_prompts_of_a_dead_replica_go_to_their_next_one_and_others_stay() -> None:
    handle = deploy()
    before = homes(handle)
    by_home = defaultdict(list)
    for prompt, home in before.items():
        by_home[home].append(prompt)
    dead = before[PROMPTS[0]]
    with pytest.raises(Exception, match=r"died|Died|crashed|exit"):
        handle.die.remote(prompt=PROMPTS[0]).result(timeout_s=60)
    alive = set(by_home) - {dead}
    for prompt in PROMPTS:
        home = handle.remote(prompt=prompt).result(timeout_s=60)
        if prompt not in by_home[dead]:
            # Its replacement may be there by now, and first for some prompts.
            assert home == before[prompt] or home not in by_home
        else:
            assert home in alive or home not in by_home


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Pictures:
    """Fails as a pipeline and omnireuse do."""

    async def __call__(self, prompt: str, wrong: str | None = None, seconds: float = 0.0) -> object:
        import asyncio

        await asyncio.sleep(seconds)
        if wrong is not None:
            raise {"setting": ConfigError, "value": ValueError, "device": RuntimeError}[wrong]("no such thing")
        return SimpleNamespace(width=64)


def documented_door() -> Any:
    """The class `Door` of docs/serving.md, with the imports before it."""
    text = (TOP / "docs" / "serving.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(import asyncio\n.*?)```", text, re.DOTALL)
    given = "asyncio|omnireuse.errors|ray|ray.exceptions|ray.serve.exceptions|starlette.responses"
    imports = re.findall(rf"^(?:import|from) (?:{given})(?: import .*)?$", code, re.MULTILINE)
    door = re.search(r"@serve\.deployment[^\n]*\nclass Door:.*?(?=\n\n\n)", code, re.DOTALL)
    assert door is not None
    names: dict[str, Any] = {"__name__": "__main__"}  # Ray sends what it cannot import
    exec("\n".join([*imports, door[0]]), names)
    return names["Door"].options(ray_actor_options={"num_cpus": 0})


def post(body: str) -> tuple[int, str]:
    """Status and text of the answer to a client."""
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/door", body.encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_documented_door_answers_wrong_settings_as_the_clients_error_over_http() -> None:
    serve.run(documented_door().bind(Pictures.bind(), seconds=5), name="door", route_prefix="/door")
    assert post('{"prompt": "a fox"}') == (200, '{"width":64}')
    for asked, said in (
        ({"prompt": "a fox", "wrong": "setting"}, "no such thing"),
        ({"prompt": "a fox", "wrong": "value"}, "no such thing"),
        ({"prompt": "a fox", "speedup": 2}, "unexpected keyword argument 'speedup'"),
        ({}, "missing 1 required positional argument: 'prompt'"),
        (["a fox"], "must be a JSON object"),
    ):
        status, text = post(json.dumps(asked))
        assert status == 400, (asked, text)
        assert said in text
    assert post("no JSON")[0] == 400
    assert post('{"prompt": "a fox", "seconds": 30}')[0] == 504
    assert post('{"prompt": "a fox", "wrong": "device"}')[0] == 500
    assert post('{"prompt": "a fox"}') == (200, '{"width":64}')
