"""Ray Serve's default router beside `PromptAffinityRouter`: which share of prompts a replica has in its cache.

    python -m bench router [--requests 600] [--out out/bench]

Needs Ray Serve: scripts/ray_serve_venv.sh builds a venv that has it. Replicas are played: each keeps the last prompts
it saw, as many as its prompt cache would, and sleeps for its work. Prompts are drawn with Zipf's law. Both routers get
the same prompts in the same order, from as many clients at once.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

from rich.console import Console

from bench._common import new_parser, new_table, write_record
from omnireuse.errors import ConfigError

AFFINITY = "omnireuse_engines.ray_serve.PromptAffinityRouter"
ROUTERS = {"Ray's default": None, "by prompt": AFFINITY}


def draw(num_requests: int, num_prompts: int, exponent: float, seed: int) -> list[str]:
    """Prompts by Zipf's law: the k-th most frequent with weight k^-exponent."""
    weights = list(accumulate(rank**-exponent for rank in range(1, num_prompts + 1)))
    return random.Random(seed).choices([f"prompt {k}" for k in range(num_prompts)], cum_weights=weights, k=num_requests)


def deploy(app: str, router: str | None, num_replicas: int, max_ongoing: int, cached: int, seconds: float) -> Any:
    """Replicas with an empty cache each, behind the router; returns the handle."""
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from omnireuse.stores.memory import MemoryStore

    @serve.deployment(
        num_replicas=num_replicas, max_ongoing_requests=max_ongoing, ray_actor_options={"num_cpus": 0},
        **({} if router is None else {"request_router_config": RequestRouterConfig(request_router_class=router)}),
    )  # fmt: skip
    class Replica:
        def __init__(self) -> None:
            self.cache: MemoryStore[bool] = MemoryStore(max_entries=cached)

        async def __call__(self, prompt: str) -> tuple[str, bool]:
            import asyncio

            is_hit = self.cache.lookup(prompt, False)
            await asyncio.sleep(seconds)
            self.cache.put(prompt, True, 1)
            return serve.get_replica_context().replica_id.unique_id, is_hit

    return serve.run(Replica.bind(), name=app, route_prefix=None)


def measure(router: str | None, seed: int, options: argparse.Namespace, clients: int) -> dict[str, float]:
    """The hit rate, and the busiest replica's share of the requests."""
    prompts = draw(options.requests, options.prompts, options.exponent, seed)
    # A name of its own: this process keeps the router of a name, also when another one is deployed under it.
    app = f"{'default' if router is None else 'affinity'}-{clients}-{seed}"
    from ray import serve

    handle = deploy(app, router, options.replicas, options.max_ongoing, options.cached, options.seconds)
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda prompt: handle.remote(prompt=prompt).result(), prompts))
    serve.delete(app)
    served = Counter(name for name, _ in answers)
    return {"hit_rate": sum(hit for _, hit in answers) / len(answers), "busiest": max(served.values()) / len(answers)}


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``router.json`` and a table."""
    parser = new_parser("router", __doc__)
    parser.add_argument("--requests", type=int, default=600, help="of one run")
    parser.add_argument("--prompts", type=int, default=120, help="different ones")
    parser.add_argument("--exponent", type=float, default=0.9, help="of Zipf's law")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--cached", type=int, default=32, help="prompts that a replica's cache holds")
    parser.add_argument("--max-ongoing", type=int, default=2, help="requests that a replica takes at once")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 3, 6], help="requests at once")
    parser.add_argument("--seconds", type=float, default=0.02, help="that a request takes")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    os.environ.setdefault("RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S", "2")  # for both routers
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ConfigError(
            f"bench router: must have Ray Serve; scripts/ray_serve_venv.sh builds a venv ({error})"
        ) from None
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(proxy_location="Disabled")
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    table = new_table(
        f"{options.requests} requests for {options.prompts} prompts, {options.cached} kept by each replica",
        "router", "clients", "hit rate", "busiest replica's share",
    )  # fmt: skip
    try:
        for clients in options.clients:
            for name, router in ROUTERS.items():
                runs = [measure(router, seed, options, clients) for seed in range(options.seeds)]
                results.setdefault(name, {})[str(clients)] = runs
                table.add_row(name, str(clients), *(spread([run[what] for run in runs]) for what in runs[0]))
    finally:
        serve.shutdown()
        ray.shutdown()
    Console(width=110).print(table)
    wanted = {name: value for name, value in vars(options).items() if name != "out"}
    write_record({"command": "python -m bench router", "ray": ray.__version__, "options": wanted, "results": results},
                 options.out, "router")  # fmt: skip


def spread(values: list[float]) -> str:
    """The mean, and the least and the most."""
    return f"{statistics.mean(values):.3f} ({min(values):.3f}–{max(values):.3f})"
