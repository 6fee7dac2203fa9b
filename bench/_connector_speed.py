"""The timed part of `bench encoder_connector`, for a Python that can import vllm. Prints JSON."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config.ec_transfer import ECTransferConfig
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.multimodal.inputs import MultiModalKwargsItem
from vllm.platforms import current_platform

EXAMPLE, OURS = "ECExampleConnector", "EncoderOutputConnector"


class Request:
    """What connectors ask of a request: its one item."""

    def __init__(self, identifier: str, num_embeds: int) -> None:
        self.request_id, self._num_embeds = f"r {identifier}", num_embeds
        place = SimpleNamespace(offset=0, length=num_embeds)
        data = MultiModalKwargsItem.dummy()
        self.mm_features = [SimpleNamespace(identifier=identifier, mm_position=place, modality="image", data=data)]

    def get_num_encoder_embeds(self, index: int) -> int:
        """Size of the item."""
        return self._num_embeds


class Instance:
    """Both halves of a connector in one process, as in an engine with one worker."""

    def __init__(self, name: str, extra: dict[str, Any]) -> None:
        transfer = ECTransferConfig(
            ec_connector=name, ec_role="ec_both", ec_connector_extra_config=extra,
            ec_connector_module_path="omnireuse_engines.vllm",
        )  # fmt: skip
        config = SimpleNamespace(
            ec_transfer_config=transfer, device_config=SimpleNamespace(device_type="cpu"),
            parallel_config=SimpleNamespace(rank=0, world_size=1, distributed_executor_backend="uni"),
            model_config=SimpleNamespace(is_encoder_decoder=False, dtype=torch.bfloat16),
        )  # fmt: skip
        self.scheduler = ECConnectorFactory.create_connector(config, ECConnectorRole.SCHEDULER)
        self.worker = ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)

    def schedule(self, request: Request) -> bool:
        """Plan a step for one item and hand the plan to the worker; True if the item is encoded."""
        identifier = request.mm_features[0].identifier
        while not self.scheduler.ensure_cache_available(request, 0):
            time.sleep(0.0005)
        is_encoded = not self.scheduler.has_cache_item(identifier)
        self.scheduler.update_state_after_alloc(request, 0)
        inputs = {request.request_id: [0]} if is_encoded else {}
        self.worker.bind_connector_metadata(
            self.scheduler.build_connector_meta(
                SimpleNamespace(
                    scheduled_encoder_inputs=inputs, free_encoder_mm_hashes=[identifier], total_num_scheduled_tokens=1
                )
            )
        )
        return is_encoded

    def end_step(self) -> None:
        """Report what was kept."""
        report = self.worker.build_connector_worker_meta()
        self.scheduler.update_connector_output(SimpleNamespace(ec_connector_worker_meta=report))


def idle(name: str, extra: dict[str, Any], num_steps: int = 2000) -> float:
    """Seconds that a connector takes of a step without any item."""
    instance, cache = Instance(name, extra), dict[str, torch.Tensor]()
    nothing = SimpleNamespace(scheduled_encoder_inputs={}, free_encoder_mm_hashes=[], total_num_scheduled_tokens=1)
    start = time.perf_counter()
    for _ in range(num_steps):
        instance.worker.bind_connector_metadata(instance.scheduler.build_connector_meta(nothing))
        instance.worker.start_save_caches(encoder_cache=cache)
        instance.worker.start_load_caches(cache)
        instance.worker.get_finished(set())
        instance.end_step()
        instance.scheduler.get_ec_connector_stats()
        instance.worker.clear_connector_metadata()
    return (time.perf_counter() - start) / num_steps


def seconds(call: Callable[[], Any]) -> float:
    """Time one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def one_round(name: str, extra: dict[str, Any], outputs: dict[str, torch.Tensor], *, reopen: bool) -> dict[str, float]:
    """Seconds an item: what a step waits for in a save and a load, and the whole way out and in."""
    num_embeds = next(iter(outputs.values())).shape[0]
    instance, cache = Instance(name, extra), dict(outputs)
    start, save = time.perf_counter(), 0.0
    for identifier in outputs:
        assert instance.schedule(Request(identifier, num_embeds))
        instance.worker.start_load_caches(cache)
        save += seconds(lambda: instance.worker.save_caches(cache, identifier))  # noqa: B023 - called at once
        instance.end_step()
    if reopen:
        instance.worker.shutdown()
    out = time.perf_counter() - start
    if reopen:
        instance.scheduler.shutdown()
        instance = Instance(name, extra)
    start, load = time.perf_counter(), 0.0
    for identifier, output in outputs.items():
        found: dict[str, torch.Tensor] = {}
        assert not instance.schedule(Request(identifier, num_embeds))
        load += seconds(lambda: instance.worker.start_load_caches(found))  # noqa: B023 - called at once
        assert torch.equal(found[identifier], output)
        instance.end_step()
    back = time.perf_counter() - start
    instance.worker.shutdown()
    instance.scheduler.shutdown()
    times = {"step waits, save": save, "save, whole": out, "step waits, load": load, "load, whole": back}
    return {what: value / len(outputs) for what, value in times.items()}


def main(options: dict[str, Any]) -> dict[str, Any]:
    """Every place in turn, several rounds."""
    current_platform.device_type = "cpu"  # the example connector asks vLLM's platform, which names no device here
    result: dict[str, Any] = {"python": sys.version.split()[0], "seconds": {}, "idle_seconds": {}}
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        disk = {"disk": folder, "disk_bytes": 1 << 30, "weights": "0" * 64}
        for place, name, extra in (("example", EXAMPLE, {"shared_storage_path": folder}), ("ours", OURS, disk)):
            result["idle_seconds"][place] = [idle(name, extra) for _ in range(options["rounds"])]
    for num_embeds in options["embeds"]:
        outputs = {f"item {k}": torch.randn(num_embeds, options["width"]).bfloat16() for k in range(options["items"])}
        for _ in range(options["rounds"]):
            with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
                Path(folder, "example").mkdir()
                weights = {"weights": uuid.uuid4().hex, "fetch_seconds": 60.0}
                disk = {"disk": f"{folder}/ours", "disk_bytes": 1 << 36, "host_bytes": 0, **weights}
                places = {
                    "example, disk": (EXAMPLE, {"shared_storage_path": f"{folder}/example"}, True),
                    "ours, disk": (OURS, disk, True),
                    "ours, host": (OURS, {}, False),
                }
                if options["redis"]:
                    places["ours, Redis"] = (OURS, {"redis": options["redis"], "host_bytes": 0, **weights}, True)
                for place, (name, extra, reopen) in places.items():
                    times = one_round(name, extra, outputs, reopen=reopen)
                    for what, value in times.items():
                        series = result["seconds"].setdefault(str(num_embeds), {}).setdefault(place, {})
                        series.setdefault(what, []).append(value)
    return result


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps(main(json.loads(sys.argv[1]))))
