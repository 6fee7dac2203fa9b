"""The timed part of `bench encoder_cache`, for any Python: vLLM's manager takes part where vllm can be imported.

Prints JSON. Needs neither torch nor anything else that vLLM's venv lacks.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from omnireuse.core.encoder_cache_manager import EncoderCacheManager
from omnireuse_engines.vllm import EncoderKey, Outcome, SharedEncoderCacheManager
from omnireuse_engines.vllm.vllm_manager import VllmEncoderCacheManager

try:
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager as VllmOwn
except ImportError:
    VllmOwn = None

SIZE, PER_REQUEST, ALIVE = 576, 4, 64
VLLM = "vLLM 0.33 EncoderCacheManager"


class Feature:
    """An item of a request, as vLLM describes it. Like the identifier, the key is made once for each item."""

    __slots__ = ("identifier", "key")

    def __init__(self, identifier: str) -> None:
        self.identifier, self.key = identifier, EncoderKey(content=identifier)


class Request:
    """What every manager asks of a request."""

    __slots__ = ("mm_features", "request_id")

    def __init__(self, request_id: str, mm_features: list[Feature]) -> None:
        self.request_id, self.mm_features = request_id, mm_features

    def get_num_encoder_embeds(self, input_id: int) -> int:
        """Size of an input."""
        return SIZE

    get_num_encoder_tokens = get_num_encoder_embeds


def make_requests(num_accesses: int, num_entries: int, seed: int) -> list[Request]:
    """First every one of `num_entries` items once, then popular ones (exponent 0.9) among twice as many."""
    rng = random.Random(seed)
    features = [Feature(f"{rng.getrandbits(128):032x}") for _ in range(2 * num_entries)]
    weights = list(accumulate(rank**-0.9 for rank in range(1, len(features) + 1)))
    order = [*features[:num_entries], *rng.choices(features, cum_weights=weights, k=num_accesses)]
    return [Request(f"r{k}", order[k : k + PER_REQUEST]) for k in range(0, len(order) - PER_REQUEST + 1, PER_REQUEST)]


Serve = Callable[[Any, Request], None]


def serve_vllm(manager: Any, request: Request) -> None:
    """One scheduling pass that plans every input of the request."""
    for i in range(PER_REQUEST):
        if not manager.check_and_update_cache(request, i):
            if not manager.can_allocate(request, i, 1 << 40, 0):
                raise SystemExit("the trace does not fit")
            manager.allocate(request, i)
    manager.get_freed_mm_hashes()


def serve_shared(manager: SharedEncoderCacheManager, request: Request) -> None:
    """Hold or plan every input, commit what was planned."""
    for i, feature in enumerate(request.mm_features):
        lease = manager.reserve(feature.key, request.request_id, i, SIZE)
        if lease is None:
            raise SystemExit("the trace does not fit")
        if lease.outcome is Outcome.RESERVED:
            manager.commit(lease)
    manager.drain_evicted()


def serve_plain(manager: EncoderCacheManager, request: Request) -> None:
    """Allocate every input; nothing is shared, so nothing is ever there."""
    for i in range(PER_REQUEST):
        if not manager.has_cache(request, i) and manager.can_allocate(request, i):
            manager.allocate(request, i)
    manager.get_freed_ids()


def free_vllm(manager: Any, request: Request) -> None:
    """Free input by input, as the scheduler does when their tokens are in the KV cache."""
    for i in range(PER_REQUEST):
        manager.free_encoder_input(request, i)


def free_shared(manager: SharedEncoderCacheManager, request: Request) -> None:
    """Release input by input."""
    for i in range(PER_REQUEST):
        manager.release(request.request_id, i)


def managers() -> dict[str, tuple[Callable[[int], Any], Serve, Serve]]:
    """Name → how to make it, serve a request, free a request."""
    own = {} if VllmOwn is None else {VLLM: (VllmOwn, serve_vllm, free_vllm)}
    return {
        **own,
        "VllmEncoderCacheManager": (VllmEncoderCacheManager, serve_vllm, free_vllm),
        "SharedEncoderCacheManager": (SharedEncoderCacheManager, serve_shared, free_shared),
        "EncoderCacheManager": (EncoderCacheManager, serve_plain, free_vllm),
    }


def run(manager: Any, serve: Serve, free: Serve, requests: Sequence[Request], alive: deque[Request], most: int) -> None:
    """Serve all; `most` requests live at a time."""
    for request in requests:
        serve(manager, request)
        alive.append(request)
        if len(alive) > most:
            free(manager, alive.popleft())


def seconds_an_access(name: str, requests: Sequence[Request], num_entries: int) -> float:
    """Fill a manager, then time the rest of the trace."""
    make, serve, free = managers()[name]
    # Without sharing only what lives is held, so that many must live.
    most = num_entries // PER_REQUEST if make is EncoderCacheManager else min(ALIVE, num_entries // PER_REQUEST // 2)
    manager, alive, num_fill = make(SIZE * (num_entries + PER_REQUEST)), deque[Request](), num_entries // PER_REQUEST
    run(manager, serve, free, requests[:num_fill], alive, most)
    timed = requests[num_fill:]
    gc.collect()
    start = time.process_time()  # so that other work on the machine does not count
    run(manager, serve, free, timed, alive, most)
    return (time.process_time() - start) / (len(timed) * PER_REQUEST)


def bytes_an_entry(name: str, requests: Sequence[Request], num_entries: int) -> float:
    """What a full manager holds beside the identifiers and requests, which the engine has anyway."""
    make, serve, free = managers()[name]
    most = num_entries // PER_REQUEST if make is EncoderCacheManager else ALIVE
    tracemalloc.start()
    manager, alive = make(SIZE * (num_entries + PER_REQUEST)), deque[Request]()
    run(manager, serve, free, requests[: num_entries // PER_REQUEST], alive, most)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / num_entries


def main(options: dict[str, Any]) -> dict[str, Any]:
    """Time every manager in turn, several rounds; then by number of entries; then weigh them."""
    seconds: dict[str, list[float]] = {name: [] for name in managers()}
    requests = make_requests(options["operations"], options["entries"], seed=0)
    gc.freeze()
    for _ in range(options["repeats"]):
        for name in seconds:
            seconds[name].append(seconds_an_access(name, requests, options["entries"]))
    held = {name: bytes_an_entry(name, requests, options["entries"]) for name in seconds}
    by_entries: dict[str, dict[int, float]] = {name: {} for name in seconds}
    for num_entries in options["scales"]:
        requests = make_requests(options["scale_operations"], num_entries, seed=1)
        gc.freeze()
        for name in seconds:
            rounds = 2 if num_entries < 10**6 else 1
            by_entries[name][num_entries] = min(seconds_an_access(name, requests, num_entries) for _ in range(rounds))
        gc.unfreeze()
    return {"python": sys.version.split()[0], "seconds": seconds, "bytes": held, "by_entries": by_entries}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
