"""The scheduler's half of the connector: places of outputs, reads ahead, and evictions of the host tier."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from omnireuse.errors import ConfigError
from omnireuse.stores.tier import TieredStore
from omnireuse_engines.vllm.host_tier import HostTier
from omnireuse_engines.vllm.interface import new_weights_epoch
from omnireuse_engines.vllm.options import ConnectorOptions
from omnireuse_engines.vllm.plans import Item, StepPlan, StepReport
from omnireuse_engines.vllm.reads import Reads

__all__ = ["SchedulerHalf"]


class SchedulerHalf:
    """Decide for all workers of an engine. An output counts as present only once it was read and checked.

    vLLM does not encode what the connector has, and cannot turn back later. So an output of disk or Redis is read in
    this process, by threads, while its request waits; what is missing, broken or late is encoded. The output itself
    goes to the workers with the step's plan. An output of the host tier is present once all workers have said so.

    Args:
        outer: tiers to read; None for none.
        namespace: names the outputs there, beside the digest of the weights.
        produces, consumes: the instance's role.
        can_encode: tells whether vLLM has what it takes to encode a feature.
    """

    def __init__(
        self,
        options: ConnectorOptions,
        outer: TieredStore | None,
        namespace: str,
        *,
        produces: bool,
        consumes: bool,
        can_encode: Callable[[Any], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._produces, self._consumes, self._can_encode = produces, consumes, can_encode
        self._weights_epoch = new_weights_epoch(options.weights) if options.weights else 0
        self._host = HostTier(options.host_bytes if consumes else 0, self.counts)
        self._reads = Reads(outer, namespace, options.fetch_seconds, self.counts, clock)
        self._on_device: dict[str, Item] = {}
        self._unavailable: set[str] = set()
        self._start_pass()

    def is_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Tell whether the request may be scheduled: False while one of its outputs is on its way.

        What a producer has on the device and disk and Redis have lost is written again, once for each request.
        """
        is_available = True
        for index, feature in enumerate(request.mm_features):
            place = feature.mm_position
            if place.offset + place.length <= num_computed_tokens:
                continue
            item = self._item(feature.identifier, request, index)
            self._wanted[feature.identifier] = item
            held = self._on_device.get(feature.identifier)
            if self._host.has(item) or (held and (self._consumes or place.offset < num_computed_tokens)):
                continue
            fetch = self._reads.begin(item, request.request_id)
            if fetch is not None and self._reads.is_on_its_way(fetch):
                is_available = False
            elif self._reads.found(item) is not None:
                continue
            elif held is not None:
                if fetch is not None and not fetch.is_rewritten and held == item:
                    fetch.is_rewritten = True
                    self._plan.encodes[feature.identifier] = item
            elif not self._can_encode(feature):
                self._unavailable.add(request.request_id)
                is_available = False
        return is_available

    def has(self, identifier: str) -> bool:
        """Tell whether the output need not be encoded. `is_available` was asked before, in the same pass."""
        item = self._wanted.get(identifier)
        return item is not None and (self._host.has(item) or self._reads.found(item) is not None)

    def allocated(self, request: Any, index: int) -> None:
        """Take note that the device has room for an input: it is loaded if it can be, else encoded."""
        identifier = request.mm_features[index].identifier
        item = self._item(identifier, request, index)
        self._allocated[request.request_id, index] = identifier, item
        fetched = self._reads.found(item)
        self._reads.forget(item)
        if self._host.loads(item):
            self._plan.loads[identifier] = item
            self.counts["loads_host"] += 1
        elif fetched is not None:
            self._plan.values[identifier] = item.key, fetched
            self.counts["loads_outer"] += 1

    def plan(self, output: Any) -> StepPlan:
        """End the pass: return what the workers do in the step."""
        for identifier in output.free_encoder_mm_hashes:
            self._on_device.pop(identifier, None)
        if not output.total_num_scheduled_tokens:
            return StepPlan()  # vLLM's first model runner does not hand it on; what is to be dropped waits
        plan = self._plan
        for request_id, indices in output.scheduled_encoder_inputs.items():
            for index in indices:
                identifier, item = self._allocated[request_id, index]
                plan.encodes[identifier] = item
                if self._produces and self._host.keeps(item):
                    plan.keeps.add(item.key)
        fetched = {name: Item(key, value.num_embeds) for name, (key, value) in plan.values.items()}
        plan.keeps.update(item.key for item in fetched.values() if self._host.keeps(item))
        plan.drops = self._host.take_drops()
        self._on_device.update(plan.encodes | plan.loads | fetched)
        self._start_pass()
        return plan

    def reported(self, report: StepReport) -> None:
        """Follow the workers' reports: an output that one of them did not keep is dropped by all."""
        self._host.reported(report, self._weights_epoch)
        self.counts.update(report.counts)
        self.counts["not_kept"] += len(report.failed)

    def reset(self, weights: str = "") -> None:
        """Let no output of before be found any more, because the encoder's weights changed; see the connector's."""
        epoch = new_weights_epoch(ConnectorOptions.digest(weights) if weights else "")
        if epoch == self._weights_epoch:
            raise ConfigError(
                f"EncoderOutputConnector.reset(weights={weights!r}): field must not be the digest of the weights "
                "before, or their outputs would be found; give that of the new weights, or none"
            )
        self._weights_epoch = epoch
        self._host.reset()
        self._reads.clear()
        self._on_device.clear()
        self._start_pass()
        self.counts["resets"] += 1

    def finished(self, request: Any) -> None:
        """Let go of reads that a request waits for; a read that nobody waits for any more is forgotten."""
        for index, feature in enumerate(request.mm_features):
            self._reads.leave(self._item(feature.identifier, request, index), request.request_id)

    def take_unavailable(self) -> set[str]:
        """Requests whose inputs are nowhere and cannot be encoded; each is named once."""
        taken, self._unavailable = self._unavailable, set()
        return taken

    def events(self) -> Counter[str]:
        """Events so far, of the tiers and the workers too."""
        outer = self._reads.outer
        return self.counts + (Counter() if outer is None else outer.counts())

    def stats(self) -> dict[str, int]:
        """Events so far, the host tier's content on each worker, and work under way."""
        return {**self.events(), **self._host.stats(), "fetching": len(self._reads)}

    def close(self) -> None:
        """Stop reading ahead: from now on nothing is present."""
        self._start_pass()
        self._reads.close()

    def _item(self, identifier: str, request: Any, index: int) -> Item:
        return Item.of(identifier, request.get_num_encoder_embeds(index), self._weights_epoch)

    def _start_pass(self) -> None:
        self._plan = StepPlan()
        self._wanted: dict[str, Item] = {}
        self._allocated: dict[tuple[str, int], tuple[str, Item]] = {}
