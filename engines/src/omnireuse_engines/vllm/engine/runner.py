"""Computes a plan: encodes images, runs the thinker over paged keys and values, keeps every token's outputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import torch

from omnireuse.core.prefix_cache import OmniTensorPrefixCache, PrefixCacheOptions
from omnireuse_engines.vllm.engine.config import EngineConfig
from omnireuse_engines.vllm.engine.model import TinyOmniModel, make_cache, read_cache
from omnireuse_engines.vllm.engine.request import Sequence
from omnireuse_engines.vllm.engine.scheduler import Scheduled, ScheduledStep
from omnireuse_engines.vllm.interface import EncoderKey
from omnireuse_engines.vllm.outputs import EncoderOutputStore

__all__ = ["ModelRunner", "StepOutput"]


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """What a step gave.

    Args:
        sampled: the next token of each request whose tokens are all computed.
        encoder: (request id, what was done) for each image that was to be encoded: encode, load (from host memory) or
            encoder hit (another plan of this step was first).
    """

    sampled: dict[str, int]
    encoder: list[tuple[str, str]]


class ModelRunner:
    """Runs each request by itself, block by block, so that equal tokens after an equal prefix see equal arithmetic.

    Args:
        model: the thinker and its encoder.
        config: sizes and switches.

    Attributes:
        outputs: encoder outputs by their names.
        prefix_cache: per-token outputs by slot; None if prefixes are not shared.
    """

    def __init__(self, model: TinyOmniModel, config: EngineConfig) -> None:
        self.model, self.config = model, config
        self.outputs = EncoderOutputStore(host_bytes=config.encoder_host_bytes)
        self.prefix_cache: OmniTensorPrefixCache | None = None
        if config.share_prefixes:
            width = (model.hidden_size, torch.float64)
            self.prefix_cache = OmniTensorPrefixCache(
                config.num_blocks, config.block_size, *width, options=PrefixCacheOptions(mm_keys={"embeds": width})
            )
        layers, heads, head_width = model.kv_shape
        self._kv = torch.empty(layers, 2, config.num_blocks, config.block_size, heads, head_width, dtype=torch.float64)

    @torch.inference_mode()
    def execute(self, plan: ScheduledStep) -> StepOutput:
        """Compute one step; every request's rows of it are added to the request."""
        for name in plan.freed_outputs:
            self.outputs.drop(EncoderKey(content=name))
        encoder = [
            (scheduled.sequence.request_id, self._encode(scheduled.sequence, input_id))
            for scheduled in plan.scheduled
            for input_id in scheduled.to_encode
        ]
        if self.prefix_cache is not None:
            self.prefix_cache.reset_prefix_cached_new_req_ids()
            self.prefix_cache.free_blocks(plan.evicted_blocks)
            for scheduled in plan.scheduled:
                if scheduled.hit_blocks:
                    name = scheduled.sequence.request_id
                    self.prefix_cache.add_prefix_cached_new_req_id(name, block_ids=scheduled.hit_blocks)
        rows = [self._forward(scheduled) for scheduled in plan.scheduled]
        if rows:
            self._keep(plan.scheduled, *(torch.cat(outputs) for outputs in zip(*rows, strict=True)))
        sampled = {
            scheduled.sequence.request_id: self.model.next_token(hidden_TW[-1])
            for scheduled, (hidden_TW, _) in zip(plan.scheduled, rows, strict=True)
            if scheduled.stop == len(scheduled.sequence.token_ids)
        }
        return StepOutput(sampled=sampled, encoder=encoder)

    def _encode(self, sequence: Sequence, input_id: int) -> str:
        """Make an output available, and say how."""
        key, image = EncoderKey(content=sequence.mm_features[input_id].identifier), sequence.request.images[input_id]
        if key in self.outputs:
            return "encoder hit"
        if self.outputs.load(key, image.num_embeds) is not None:
            return "load"
        self.outputs.put(key, self.model.encode_image(image.pixels), image.num_embeds)
        return "encode"

    def _forward(self, scheduled: Scheduled) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden states and input embeddings of the scheduled tokens, (tokens, width) each."""
        sequence, start, stop, size = scheduled.sequence, scheduled.start, scheduled.stop, self.config.block_size
        embeds_TW = self.model.embed(torch.tensor(sequence.token_ids[start:stop]))
        for feature, image in zip(sequence.mm_features, sequence.request.images, strict=True):
            first, last = max(start, image.offset), min(stop, image.stop)
            if first < last:
                output = self.outputs.get(EncoderKey(content=feature.identifier))
                embeds_TW[first - start : last - start] = output[first - image.offset : last - image.offset]
        slots = self._slots(sequence, 0, stop)
        kv_slots = self._kv.flatten(2, 3)
        cache = make_cache(kv_slots[:, :, slots[:start]])
        # Cut where blocks end, so that a token is computed in the same company whatever was scheduled or reused.
        cuts = [start, *range((start // size + 1) * size, stop, size), stop]
        hidden = [self.model.think(embeds_TW[a - start : b - start], cache) for a, b in pairwise(cuts)]
        kv_slots[:, :, slots[start:]] = read_cache(cache, start)
        return torch.cat(hidden), embeds_TW

    def _keep(self, scheduled: list[Scheduled], hidden_TW: torch.Tensor, embeds_TW: torch.Tensor) -> None:
        """Add this step's rows to their requests; one that starts on a hit gets those of its prefix before them."""
        counts = {each.sequence.request_id: each.stop - each.start for each in scheduled}
        starts = [0, *torch.tensor(list(counts.values())).cumsum(0).tolist()]
        if self.prefix_cache is None:
            hidden = dict(zip(counts, hidden_TW.split(list(counts.values())), strict=True))
            embeds = dict(zip(counts, embeds_TW.split(list(counts.values())), strict=True))
        else:
            slots = torch.cat([self._slots(each.sequence, each.start, each.stop) for each in scheduled])
            outputs = {"embeds": embeds_TW}
            self.prefix_cache.update_omni_tensor_prefix_cache(hidden_TW, outputs, len(slots), slots)
            batch = self._batch(scheduled)
            hidden = self.prefix_cache.get_merged_hidden_states(starts, batch, hidden_TW, counts)
            merged = self.prefix_cache.get_merged_multimodal_states(starts, batch, outputs, counts)
            embeds = merged["embeds"]
        for each in scheduled:
            each.sequence.hidden.append(hidden[each.sequence.request_id])
            each.sequence.embeds.append(embeds[each.sequence.request_id])

    def _batch(self, scheduled: list[Scheduled]) -> SimpleNamespace:
        """The batch as vLLM V1 shows it to the prefix cache."""
        table = torch.zeros(len(scheduled), max(len(each.sequence.block_ids) for each in scheduled), dtype=torch.int32)
        for index, each in enumerate(scheduled):
            table[index, : len(each.sequence.block_ids)] = torch.tensor(each.sequence.block_ids)
        return SimpleNamespace(
            req_id_to_index={each.sequence.request_id: index for index, each in enumerate(scheduled)},
            num_computed_tokens_cpu=[each.start for each in scheduled],
            block_table=[SimpleNamespace(block_table=SimpleNamespace(cpu=table))],
        )

    def _slots(self, sequence: Sequence, start: int, stop: int) -> torch.Tensor:
        """Where the keys, values and outputs of the tokens [start, stop) lie."""
        tokens = torch.arange(start, stop)
        blocks = torch.tensor(sequence.block_ids)[tokens // self.config.block_size]
        return blocks * self.config.block_size + tokens % self.config.block_size
