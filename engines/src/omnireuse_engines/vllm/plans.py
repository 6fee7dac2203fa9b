"""Messages of a step from the scheduler's half of the connector to the workers' halves, and their answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from omnireuse_engines.vllm.interface import EncoderKey
from omnireuse_engines.vllm.outputs import EncoderOutput

__all__ = ["Item", "StepPlan", "StepReport"]


class Item(NamedTuple):
    """An encoder output: its key, and its size in encoder embeddings.

    The size is part of the key's content: a client may reuse an identifier for an item of another size. The weights are
    part of the key, so that an output of earlier ones is found in no tier, however late it is written.
    """

    key: EncoderKey
    num_embeds: int

    @classmethod
    def of(cls, identifier: str, num_embeds: int, weights_epoch: int = 0) -> Item:
        """The item behind one of vLLM's identifiers."""
        return cls(EncoderKey(f"{identifier}:{num_embeds}", weights_epoch), num_embeds)


@dataclass
class StepPlan:
    """A step's work for a worker: loads, then drops, then entries into the host tier.

    Attributes:
        loads: identifier → item to bring from the host tier to the device.
        values: identifier → key and output that the scheduler read from disk or Redis.
        drops: keys that leave the host tier.
        encodes: identifier → item encoded in this step, or encoded before and written again.
        keeps: keys, of `values` and `encodes`, that enter the host tier.
    """

    loads: dict[str, Item] = field(default_factory=dict)
    values: dict[str, tuple[EncoderKey, EncoderOutput]] = field(default_factory=dict)
    drops: list[EncoderKey] = field(default_factory=list)
    encodes: dict[str, Item] = field(default_factory=dict)
    keeps: set[EncoderKey] = field(default_factory=set)


@dataclass
class StepReport:
    """The outcome of a plan's `keeps`.

    Attributes:
        kept: key → bytes that it takes in the host tier.
        failed: keys that did not enter it.
        counts: events since the last report, by name.
    """

    kept: dict[EncoderKey, int] = field(default_factory=dict)
    failed: set[EncoderKey] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def aggregate(self, other: StepReport) -> StepReport:
        """Join the reports of two workers on one step: outputs are kept if both kept them."""
        failed = self.failed | other.failed
        kept = {key: num_bytes for key, num_bytes in self.kept.items() if key not in failed}
        return StepReport(kept, failed, self.counts + other.counts)
