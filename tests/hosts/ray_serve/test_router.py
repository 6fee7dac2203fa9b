"""Three replicas of Ray Serve on this machine behind our router; each says what it served.

Run it in a venv with Ray Serve: scripts/ray_serve_venv.sh.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

pytest.importorskip("ray.serve", reason="needs ray[serve]; scripts/ray_serve_venv.sh builds a venv that has it")

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from omnireuse.integrations.ray_serve import rank

pytestmark = pytest.mark.integration

ROUTER = "omnireuse.integrations.ray_serve.PromptAffinityRouter"
NUMBERS = itertools.count()
PROMPTS = [f"a drawing of {number} foxes" for number in range(24)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(proxy_location="Disabled")
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
