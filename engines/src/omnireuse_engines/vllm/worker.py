"""The worker's half of the connector: copies between vLLM's encoder cache, the host tier and the outer tiers."""

from __future__ import annotations

import logging
from collections import Counter

import torch

from omnireuse.errors import StateError
from omnireuse.stores.tier import TieredStore
from omnireuse_engines.vllm.interface import EncoderKey
from omnireuse_engines.vllm.outputs import EncoderOutput, EncoderOutputStore
from omnireuse_engines.vllm.plans import Item, StepPlan, StepReport
from omnireuse_engines.vllm.write_behind import WriteBehind

__all__ = ["WorkerHalf"]

logger = logging.getLogger("omnireuse")

_HOST = torch.device("cpu")


class WorkerHalf:
    """Follow the scheduler's plans. It decides nothing, so every worker of an engine holds the same outputs.

    Args:
        outer: tiers that get every encoded output; None for none, and for all workers but the first.
        namespace: names the outputs there, beside the digest of the weights, which is in their keys.

    Cost: a save of a CUDA tensor enqueues one copy to pinned memory on the current stream and waits for nothing.
    """

    def __init__(self, outer: TieredStore | None, namespace: str) -> None:
        self._outer = outer
        self._writer = None if outer is None else WriteBehind(outer)
        self._store = EncoderOutputStore(_HOST, outer=self._writer, weights=namespace)
        self._plan = StepPlan()
        self._kept: dict[EncoderKey, int] = {}
        self._counted: Counter[str] = Counter()

    def begin(self, plan: StepPlan, encoder_cache: dict[str, torch.Tensor], device: torch.device) -> None:
        """Bring the step's outputs into vLLM's encoder cache, and drop what left the host tier."""
        self._plan, self._kept = plan, {}
        for identifier, item in plan.loads.items():
            if identifier not in encoder_cache:
                kept = self._store.load(item.key, item.num_embeds)
                if kept is None:
                    raise StateError(f"encoder output {item.key}: must be in the host tier of every worker, got absent")
                encoder_cache[identifier] = kept.to(device).value
        for key in plan.drops:
            self._store.drop(key)
        for identifier, (key, output) in plan.values.items():
            if identifier not in encoder_cache:
                encoder_cache[identifier] = output.to(device).value
            if key in plan.keeps:
                self._kept[key] = self._store.put(key, output, output.num_embeds, outer=False).num_bytes

    def rewrite(self, encoder_cache: dict[str, torch.Tensor]) -> None:
        """Save the plan's outputs that an earlier step has encoded."""
        for identifier in self._plan.encodes.keys() & encoder_cache.keys():
            self.save(identifier, encoder_cache[identifier])

    def save(self, identifier: str, output: torch.Tensor) -> None:
        """Keep an output that was just encoded: in the outer tiers and, if the plan says so, in the host tier."""
        item = self._plan.encodes.get(identifier)
        if item is None or (self._writer is None and item.key not in self._plan.keeps):
            return
        is_held = item.key in self._store  # from an earlier step, after which the device lost it
        try:
            kept = self._store.put(item.key, self._on_host(item, output.detach()), item.num_embeds)
        except (MemoryError, RuntimeError) as error:  # torch raises the latter if memory cannot be pinned
            logger.warning("encoder output %s is not kept on the host: %s", item.key, error)
            return
        if item.key in self._plan.keeps:
            self._kept[item.key] = kept.num_bytes
        elif not is_held:
            self._store.drop(item.key)

    def report(self) -> StepReport | None:
        """End the step: outputs kept, outputs not kept, and counts of the outer tiers. None if there are none."""
        plan, kept = self._plan, self._kept
        self._plan, self._kept = StepPlan(), {}
        counts = self._counts()
        news, self._counted = counts - self._counted, counts
        if not plan.keeps and not news:
            return None
        return StepReport({key: kept[key] for key in plan.keeps if key in kept}, plan.keeps - kept.keys(), news)

    def close(self) -> None:
        """Finish the writes that wait."""
        if self._writer is not None:
            self._writer.close()

    def _on_host(self, item: Item, output: torch.Tensor) -> EncoderOutput:
        if not output.is_cuda:
            return self._store.compact(output, item.num_embeds)
        return EncoderOutput(output, item.num_embeds, output.nbytes).to(_HOST)

    def _counts(self) -> Counter[str]:
        if self._writer is None or self._outer is None:
            return Counter()
        return self._outer.counts() + Counter({f"saves_{name}": n for name, n in self._writer.counts.items()})
