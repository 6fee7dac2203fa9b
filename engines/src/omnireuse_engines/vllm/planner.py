"""The scheduler's half of the connector: places of outputs, reads ahead, and evictions of the host tier."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from omnireuse.errors import ConfigError
from omnireuse.stores.tier import CircuitBreaker, TieredStore
from omnireuse_engines.vllm.interface import EncoderKey, ItemTooLargeError, Lease, new_weights_epoch
from omnireuse_engines.vllm.manager import SharedEncoderCacheManager
from omnireuse_engines.vllm.options import ConnectorOptions
from omnireuse_engines.vllm.outputs import EncoderOutput, EncoderOutputStore
from omnireuse_engines.vllm.plans import Item, StepPlan, StepReport

__all__ = ["SchedulerHalf"]

logger = logging.getLogger("omnireuse")

_STEP = "step"  # the holder of all leases here: a host copy belongs to no request
_READERS = 4


@dataclass
class _Fetch:
    """An output on its way from an outer tier, and the requests that wait for it."""

    future: Future[EncoderOutput | None]
    started: float
    is_late: bool = False
    is_rewritten: bool = False
    waiting: set[str] = field(default_factory=set)


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
        self._produces, self._consumes, self._can_encode, self._clock = produces, consumes, can_encode, clock
        self._outer, self._namespace, self._fetch_seconds = outer, namespace, options.fetch_seconds
        self._weights_epoch = new_weights_epoch(options.weights) if options.weights else 0
        self._host = SharedEncoderCacheManager(sys.maxsize, max_bytes=options.host_bytes)
        self._has_host = consumes and options.host_bytes > 0
        self._bytes_per_embed, self._num_keeps = 0.0, 0
        self._drops: list[EncoderKey] = []
        self._leases: dict[EncoderKey, Lease] = {}
        self._fetches: dict[EncoderKey, _Fetch] = {}
        self._breaker = CircuitBreaker(clock=clock)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="omnireuse-fetch")
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
            if self._host.is_ready(item.key) or (held and (self._consumes or place.offset < num_computed_tokens)):
                continue
            fetch = self._fetch(item, request.request_id)
            if fetch is not None and self._is_on_its_way(fetch):
                is_available = False
            elif self._fetched(item) is not None:
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
        return item is not None and (self._host.is_ready(item.key) or self._fetched(item) is not None)

    def allocated(self, request: Any, index: int) -> None:
        """Take note that the device has room for an input: it is loaded if it can be, else encoded."""
        identifier = request.mm_features[index].identifier
        item = self._item(identifier, request, index)
        self._allocated[request.request_id, index] = identifier, item
        fetched = self._fetched(item)
        self._fetches.pop(item.key, None)
        if self._host.hold(item.key, _STEP, -1):
            self._host.release(_STEP, -1)
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
                if self._produces:
                    self._keep(item, plan)
        fetched = {name: Item(key, value.num_embeds) for name, (key, value) in plan.values.items()}
        for item in fetched.values():
            self._keep(item, plan)
        plan.drops, self._drops = self._drops + self._host.drain_evicted(), []
        self._on_device.update(plan.encodes | plan.loads | fetched)
        self._start_pass()
        return plan

    def reported(self, report: StepReport) -> None:
        """Follow the workers' reports: an output that one of them did not keep is dropped by all."""
        asked = report.kept.keys() | report.failed
        old = {key for key in asked if key.weights_epoch != self._weights_epoch}  # `reset` has them dropped
        unknown = asked - old - self._leases.keys()
        if unknown:
            self.counts["reports_unknown"] += len(unknown)
            logger.error("the workers report encoder outputs that they were not asked to keep: %s", unknown)
        for key, num_bytes in report.kept.items():
            if key not in self._leases:
                continue
            lease = self._leases.pop(key)
            self._host.commit(lease, num_bytes=num_bytes)
            num_embeds = self._host.get_num_embeds(key)
            self._host.release(_STEP, lease.position)
            self._bytes_per_embed = max(self._bytes_per_embed, num_bytes / max(num_embeds or 1, 1))
        for key in report.failed & self._leases.keys():
            self._host.abort(self._leases.pop(key))
            self._drops.append(key)
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
        self._drops += self._host.reset()
        for kept in (self._leases, self._fetches, self._on_device):
            kept.clear()
        self._start_pass()
        self.counts["resets"] += 1

    def finished(self, request: Any) -> None:
        """Let go of reads that a request waits for; a read that nobody waits for any more is forgotten."""
        for index, feature in enumerate(request.mm_features):
            key = self._item(feature.identifier, request, index).key
            fetch = self._fetches.get(key)
            if fetch is not None:
                fetch.waiting.discard(request.request_id)
                if not fetch.waiting:
                    del self._fetches[key]

    def take_unavailable(self) -> set[str]:
        """Requests whose inputs are nowhere and cannot be encoded; each is named once."""
        taken, self._unavailable = self._unavailable, set()
        return taken

    def events(self) -> Counter[str]:
        """Events so far, of the tiers and the workers too."""
        return self.counts + (Counter() if self._outer is None else self._outer.counts())

    def stats(self) -> dict[str, int]:
        """Events so far, the host tier's content on each worker, and work under way."""
        host = self._host.stats()
        held = {"host_entries": host["entries"], "host_bytes": host["bytes"]}
        return {**self.events(), **held, "saving": len(self._leases), "fetching": len(self._fetches)}

    def close(self) -> None:
        """Stop reading ahead: from now on nothing is present."""
        self._start_pass()
        self._readers.shutdown(wait=False, cancel_futures=True)
        if self._outer is not None:
            self._outer.close()

    def _item(self, identifier: str, request: Any, index: int) -> Item:
        return Item.of(identifier, request.get_num_encoder_embeds(index), self._weights_epoch)

    def _start_pass(self) -> None:
        self._plan = StepPlan()
        self._wanted: dict[str, Item] = {}
        self._allocated: dict[tuple[str, int], tuple[str, Item]] = {}

    def _fetch(self, item: Item, request_id: str) -> _Fetch | None:
        fetch = self._fetches.get(item.key)
        if fetch is None:
            if self._outer is None or not self._breaker.allows():
                return None
            fetch = _Fetch(self._readers.submit(self._read, item), self._clock())
            self._fetches[item.key] = fetch
            self.counts["fetches"] += 1
        fetch.waiting.add(request_id)
        return fetch

    def _read(self, item: Item) -> EncoderOutput | None:
        # A store of its own: stores serve one thread, the tiers below them all.
        try:
            return EncoderOutputStore(outer=self._outer, weights=self._namespace).load(item.key, item.num_embeds)
        except Exception:
            self.counts["fetches_failed"] += 1
            logger.exception("encoder output %s could not be read, and is encoded", item.key)
            return None

    def _is_on_its_way(self, fetch: _Fetch) -> bool:
        if fetch.future.done():
            if not fetch.is_late:
                self._breaker.report(ok=True)
            return False
        if self._clock() - fetch.started < self._fetch_seconds:
            return True
        fetch.is_late, fetch.future = True, Future()
        fetch.future.set_result(None)
        self.counts["fetches_late"] += 1
        if self._breaker.report(ok=False):
            logger.warning("disk and Redis are not asked for a while: they take over %g s", self._fetch_seconds)
        return False

    def _fetched(self, item: Item) -> EncoderOutput | None:
        fetch = self._fetches.get(item.key)
        return fetch.future.result() if fetch is not None and fetch.future.done() else None

    def _keep(self, item: Item, plan: StepPlan) -> None:
        """Have the workers put an output into the host tier, if there is room for it."""
        if not self._has_host or item.key in self._leases or self._host.is_ready(item.key):
            return
        num_bytes = round(self._bytes_per_embed * item.num_embeds)  # the workers report the true size
        self._num_keeps += 1
        try:
            lease = self._host.reserve(item.key, _STEP, self._num_keeps, item.num_embeds, num_bytes)
        except ItemTooLargeError:
            lease = None
        if lease is None:
            self.counts["no_room"] += 1
            return
        self._leases[item.key] = lease
        plan.keeps.add(item.key)
