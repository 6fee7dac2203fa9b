"""What the plugins of vllm-omni and SGLang add to a request that asks for no reuse.

    scripts/vllm_omni_venv.sh VENV && PYTHONPATH=. VENV/bin/python -W ignore -m bench idle
    scripts/sglang_venv.sh VENV && PYTHONPATH=. VENV/bin/python -W ignore -m bench idle

Counts how often each hook runs in one request to a tiny model in the real engine. Each hook is then timed with the
arguments of that request around an original that does nothing, so that only the hook's own work is read. The processor
time of the request itself is given beside it; on a model of practical size it is thousands of times as large.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from omnireuse.errors import StateError

RESULTS = Path(__file__).parent / "results" / "idle.json"
STEPS, CALLS, REPEATS = 28, 2000, 15


def nothing(*_: Any, **__: Any) -> None:
    """Stands for the engine's own function."""


class Hook:
    """One hook: how often it ran, and the arguments of its last call.

    Args:
        around: makes the hooked function from an original.
    """

    def __init__(self, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.around = around
        self.count = 0
        self.last: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def seen(self, *args: Any, **kwargs: Any) -> None:
        """Remember a call."""
        self.count += 1
        self.last = (args, kwargs)

    def microseconds(self) -> list[float]:
        """Time of one call beyond that of an empty function, in each repeat."""
        args, kwargs = self.last
        hooked = self.around(nothing)
        pairs = zip(
            timeit.repeat(lambda: hooked(*args, **kwargs), number=CALLS, repeat=REPEATS, timer=time.process_time),
            timeit.repeat(lambda: nothing(*args, **kwargs), number=CALLS, repeat=REPEATS, timer=time.process_time),
            strict=True,
        )
        return [1e6 * (with_hook - without) / CALLS for with_hook, without in pairs]


def in_vllm_omni() -> dict[str, dict[str, Any]]:
    """Figures by mode, in vllm-omni's engine without a cache backend."""
    from engines.tests.hosts.vllm_omni import conftest, cpu_platform, tiny_qwen
    from omnireuse_engines.vllm_omni.hooks import SEAMS

    for name, value in conftest.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    cpu_platform.install(Path(tempfile.mkdtemp()))
    model = tiny_qwen.save(Path(tempfile.mkdtemp()))
    found = {}
    for mode, stepwise in (("request mode", False), ("step mode", True)):
        options = {"enforce_eager": True, "max_num_seqs": 1, "step_execution": stepwise}
        with conftest.running_engine(model, **options) as engine:
            serve = functools.partial(conftest.run, engine) if stepwise else engine.add_req_and_wait_for_response
            serve(conftest.make_request(0, STEPS))
            hooks = {path: Hook(wrap) for _, path, wrap in SEAMS}
            put_back = [_count(module, path, hooks[path]) for module, path, _ in SEAMS]
            began = time.process_time()
            serve(conftest.make_request(0, STEPS))
            took = time.process_time() - began
            for each in put_back:
                each()
            found[f"vllm-omni, {mode}"] = figures(hooks, took)
    return found


def _count(module: str, path: str, hook: Hook) -> Callable[[], None]:
    """Count the calls of a wrapped function; returns what ends the counting."""
    *outer, name = path.split(".")
    owner: Any = functools.reduce(getattr, outer, import_module(module))
    wrapped = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        hook.seen(*args, **kwargs)
        return wrapped(*args, **kwargs)

    setattr(owner, name, call)
    return lambda: setattr(owner, name, wrapped)


def in_sglang() -> dict[str, dict[str, Any]]:
    """Figures by backend, in SGLang's pipelines without OMNIREUSE_SGLANG."""
    from engines.tests.hosts.sglang import conftest
    from omnireuse_engines.sglang import hooks as plugin

    conftest.prepare()
    hooks, counted = {}, []
    for target, kind, hook in plugin.SEAMS:
        counter = hooks[".".join(target.split(".")[-2:])] = Hook(functools.partial(_hooked, hook, kind))
        counted.append((target, kind, _counted(hook, counter, kind)))
    plugin.SEAMS = tuple(counted)
    found = {}
    for name, server in conftest.load_servers().items():
        if not found:
            import_module("sglang.multimodal_gen.runtime.platforms.plugins").apply_plugin_hooks()
        server.pipeline.forward(server.request(0, STEPS), server.args)
        for counter in hooks.values():
            counter.count = 0
        request = server.request(0, STEPS)
        began = time.process_time()
        result = server.pipeline.forward(request, server.args)
        result.metrics.to_dict()
        found[f"SGLang, {name}"] = figures(hooks, time.process_time() - began)
    return found


def _hooked(hook: Callable[..., Any], kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """What SGLang makes of a hook, without SGLang's own share of the time."""
    return functools.partial(hook, original) if kind == "AROUND" else hook


def _counted(hook: Callable[..., Any], counter: Hook, kind: str) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(*args: Any, **kwargs: Any) -> Any:
        counter.seen(*(args[1:] if kind == "AROUND" else args), **kwargs)
        return hook(*args, **kwargs)

    return call


def figures(hooks: dict[str, Hook], seconds: float) -> dict[str, Any]:
    """Calls and microseconds of each hook that ran, and the sum over the request."""
    ran = {name: (hook.count, hook.microseconds()) for name, hook in hooks.items() if hook.count}
    sums = [sum(count * times[each] for count, times in ran.values()) for each in range(REPEATS)]
    cuts = statistics.quantiles(sums, n=4)
    return {
        "hooks": {name: {"calls": count, "us": statistics.median(times)} for name, (count, times) in ran.items()},
        "calls": sum(count for count, _ in ran.values()),
        "us": statistics.median(sums),
        "quartiles": [cuts[0], cuts[2]],
        "request_ms": 1e3 * seconds,
    }


def main(argv: list[str]) -> None:
    """Measure the engine that is installed, print its rows and keep them."""
    argparse.ArgumentParser(prog="python -m bench idle", description=__doc__).parse_args(argv)
    hosts = {"vllm_omni": in_vllm_omni, "sglang": in_sglang}
    present = [measure for name, measure in hosts.items() if importlib.util.find_spec(name) is not None]
    if not present:
        raise StateError(
            "bench idle: neither vllm-omni nor SGLang is installed; scripts/vllm_omni_venv.sh and "
            "scripts/sglang_venv.sh build environments that have them"
        )
    found = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    found.pop("run", None)
    for measure in present:
        found |= measure()
    RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    for name, row in found.items():
        low, high = row["quartiles"]
        print(
            f"{name}: {row['calls']} hook calls in {STEPS} steps, {row['us']:.1f} us (quartiles {low:.1f} to "
            f"{high:.1f}) beside {row['request_ms']:.0f} ms"
        )
