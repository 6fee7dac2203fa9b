"""The prefix cache behind vllm-omni's interface beside vllm-omni's own manager, which then runs in its eager mode.

Both see the same steps of a played batch through vllm-omni's own view of it. An *update* is a step in which requests
compute tokens and nobody asks for the outputs, a *merge* one in which each starts on a prefix hit, computes one token
and is asked for. A figure is everything that the engine calls in the step.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

BLOCK = 16


def is_importable() -> bool:
    """Whether vllm-omni is there."""
    return importlib.util.find_spec("vllm_omni") is not None


def managers() -> dict[str, Callable[[Any, Any], Any]]:
    """What makes each manager from a configuration and a view."""
    from engines.tests.hosts.operators import define_operators

    define_operators()
    from vllm_omni.core.prefix_cache.manager import OmniPrefixCacheManager as Theirs

    from omnireuse.core.prefix_cache import OmniPrefixCacheManager as Ours

    return {"omnireuse": Ours, "vllm-omni": lambda config, view: Theirs(config, view, eager=True)}


class Played:
    """A manager and the engine around it: requests on scattered blocks, of four sets that take turns."""

    def __init__(self, make: Callable[[Any, Any], Any], num_requests: int, num_blocks_each: int, num_sets: int = 4):
        from vllm_omni.core.prefix_cache.group_view import FullAttentionGroupView
        from vllm_omni.core.prefix_cache.interface import PrefixCacheConfig

        num_blocks = num_sets * num_requests * num_blocks_each
        order = list(range(num_blocks))
        random.Random(0).shuffle(order)
        self.places = torch.tensor(order).view(num_sets, num_requests, num_blocks_each)
        self.num_requests, self.turn, self.gone = num_requests, 0, []
        self.table = torch.zeros(num_requests, num_blocks_each, dtype=torch.int32)
        self.batch = SimpleNamespace(
            block_table=[SimpleNamespace(block_table=SimpleNamespace(cpu=self.table))],
            num_computed_tokens_cpu=[0] * num_requests,
        )
        tokens = num_requests * num_blocks_each * BLOCK
        config = PrefixCacheConfig(num_blocks=num_blocks, block_size=BLOCK, staging_capacity_tokens=tokens)
        self.manager = make(config, FullAttentionGroupView(self.batch, BLOCK))

    def step(self, place: torch.Tensor, num_cached: int, num_tokens: int) -> Any:
        """The scheduler's output for new requests on these blocks; each has rows cached and computes some."""
        self.turn += 1
        names = [f"r{self.turn}.{index}" for index in range(self.num_requests)]
        self.table.copy_(place)
        self.batch.req_ids = names
        self.batch.req_id_to_index = {name: index for index, name in enumerate(names)}
        self.batch.num_computed_tokens_cpu = [num_cached] * self.num_requests
        blocks = place.tolist()
        new = [
            SimpleNamespace(req_id=name, num_computed_tokens=num_cached, block_ids=(ids,))
            for name, ids in zip(names, blocks, strict=True)
        ]
        finished, self.gone = set(self.gone), names
        return SimpleNamespace(
            scheduled_new_reqs=new, finished_req_ids=finished, num_scheduled_tokens=dict.fromkeys(names, num_tokens)
        )

    def run(self, output: Any, hidden: torch.Tensor, *, asked: bool) -> Any:
        """All calls of a step."""
        self.manager.new_step_starts(output)
        number = self.manager.save_outputs(hidden, None, num_tokens_unpadded=len(hidden), num_tokens_padded=len(hidden))
        if not asked:
            return self.manager.discard_step(number)
        return self.manager.materialize(number, self.batch.req_ids).hidden_states


def seconds_of(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """Processor seconds of all threads, seconds by the clock, and the result."""
    start, clock = time.process_time(), time.perf_counter()
    result = function()
    return time.process_time() - start, time.perf_counter() - clock, result


def rounds(width: int, num_requests: int, tokens: int, repeats: int) -> Iterator[dict[str, dict[str, list[float]]]]:
    """By part of the step and manager its seconds, round by round; the managers take turns to be first."""
    engines = {n: Played(make, num_requests, tokens // BLOCK + 1) for n, make in managers().items()}
    hidden = torch.randn(num_requests * tokens, width).bfloat16()
    for number in range(-4, repeats):  # the first rounds touch every page
        spent: dict[str, dict[str, list[float]]] = {"update": {}, "merge": {}}
        merged = {}
        for name in sorted(engines, reverse=number % 2 == 0):
            engine = engines[name]
            place = engine.places[number % 4]
            output = engine.step(place, 0, tokens)
            *spent["update"][name], _ = seconds_of(lambda e=engine, o=output: e.run(o, hidden, asked=False))
            output = engine.step(place, tokens, 1)
            new = hidden[:num_requests]
            *spent["merge"][name], merged[name] = seconds_of(lambda e=engine, o=output, h=new: e.run(o, h, asked=True))
            first = next(iter(merged[name].values()))
            assert torch.equal(first, torch.cat([hidden[:tokens], hidden[:1]]))
        if number >= 0:
            yield spent
    for engine in engines.values():
        engine.manager.shutdown()
