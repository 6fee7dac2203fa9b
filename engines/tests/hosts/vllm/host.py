"""vLLM's own scheduler, built from its own configurations; only the model's description is made up."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from vllm.config import (
    CacheConfig,
    EncoderCacheManagerConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
)
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

OURS = "omnireuse_engines.vllm.VllmEncoderCacheManager"
BLOCK, CACHE_EMBEDS, STEP_EMBEDS, STEP_TOKENS = 16, 160, 96, 64


def make_config(
    *, ours: bool = False, scheduling: str = "fcfs", num_blocks: int = 40, ec: object = None
) -> SimpleNamespace:
    cache_config = CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
    cache_config.num_gpu_blocks = num_blocks
    manager = EncoderCacheManagerConfig(encoder_cache_manager_cls=OURS)
    return SimpleNamespace(
        scheduler_config=SchedulerConfig.default_factory(
            max_num_seqs=6, max_num_batched_tokens=STEP_TOKENS, max_model_len=1024, policy=scheduling,
            enable_chunked_prefill=True, async_scheduling=False, watermark=0.0,
        ),
        cache_config=cache_config,
        device_config=SimpleNamespace(device_type="cpu"),
        parallel_config=ParallelConfig(),
        observability_config=ObservabilityConfig(),
        model_config=SimpleNamespace(
            is_diffusion=False, is_encoder_decoder=False, max_model_len=1024, return_sampling_mask=False,
            runner_type="generate", dtype=torch.float32, supports_multimodal_inputs=True, uses_mrope=False,
        ),
        ec_manager_config=manager if ours else EncoderCacheManagerConfig(),
        aux_output_config=SimpleNamespace(enabled=False),
        ec_transfer_config=ec, is_mm_encoder_only=False, kv_events_config=None, kv_transfer_config=None,
        lora_config=None, max_concurrent_batches=1, max_in_flight_tokens=STEP_TOKENS, num_hash_lookahead_tokens=0,
        num_lookahead_tokens=0, num_prefill_lookahead_tokens=0, num_speculative_tokens=0, speculative_config=None,
        use_v2_model_runner=False,
    )  # fmt: skip


def make_scheduler(monkeypatch: pytest.MonkeyPatch, vllm_config: SimpleNamespace) -> Scheduler:
    budget = SimpleNamespace(
        encoder_compute_budget=STEP_EMBEDS, encoder_cache_size=CACHE_EMBEDS, mm_max_toks_per_item={"image": 48}
    )
    monkeypatch.setattr(scheduler_module, "MultiModalBudget", lambda *_: budget)
    num_blocks = vllm_config.cache_config.num_gpu_blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    kv_cache_config = KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    no_grammars = SimpleNamespace(accept_tokens=lambda *_: True)
    return Scheduler(vllm_config, kv_cache_config, structured_output_manager=no_grammars, block_size=BLOCK)


def make_request(
    name: str, items: list[tuple[str, int]], rng: random.Random, number: int, *, has_media: bool = True
) -> Request:
    tokens, features = [1] * 4, []
    data = MultiModalKwargsItem.dummy() if has_media else None
    for content, size in items:
        place = PlaceholderRange(offset=len(tokens), length=size)
        features.append(
            MultiModalFeatureSpec(data=data, modality="image", identifier=content, mm_position=place, mm_hash=content)
        )
        tokens += [0] * size + [1] * rng.randint(1, 12)
    return Request(
        request_id=name, prompt_token_ids=tokens, mm_features=features, pooling_params=None,
        sampling_params=SamplingParams(max_tokens=rng.randint(4, 40), ignore_eos=True),
        priority=rng.randint(0, 3), arrival_time=float(number),
    )  # fmt: skip
