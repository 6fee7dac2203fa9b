"""Our prefix cache in vllm-omni's runner mixin, under vllm-omni's own scheduler of an autoregressive stage.

The wheels hold no attention kernel for a CPU, so that the stage itself does not run here. In its place a small random
transformer with a paged KV cache computes what the scheduler asks for, with prefix hits, hits in the same step,
preemptions and aborts; outputs are asked for one step late, as an asynchronous engine does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.tests.hosts.vllm_omni.conftest import IN_VLLM_OMNI

pytestmark = IN_VLLM_OMNI

BLOCK, STEP_TOKENS, VOCABULARY, WIDTH, LAYERS = 4, 24, 40, 16, 2


class Model:
    """A causal transformer whose keys and values lie at the slots of the KV cache; float64."""

    def __init__(self, num_blocks: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5

        self.embedding, self.places = 3 * weights(VOCABULARY, WIDTH), 3 * weights(256, WIDTH)
        self.layers = [weights(4, WIDTH, WIDTH) for _ in range(LAYERS)]
        self.keys, self.values = torch.full((2, LAYERS, num_blocks * BLOCK, WIDTH), torch.nan, dtype=torch.float64)

    def run(self, tokens: list[int], start: int, slots: torch.Tensor) -> torch.Tensor:
        """Hidden states of these tokens, the first of them at `start`; `slots` are those of all positions so far."""
        states = self.embedding[tokens] + self.places[start : start + len(tokens)]
        seen = torch.arange(len(slots)) <= torch.arange(start, len(slots)).reshape(-1, 1)
        for keys, values, (query, key, value, out) in zip(self.keys, self.values, self.layers, strict=True):
            keys[slots[start:]], values[slots[start:]] = states @ key, states @ value
            scores = (states @ query @ keys[slots].T).masked_fill(~seen, -torch.inf)
            states = states + torch.tanh(scores.softmax(-1) @ values[slots] @ out)
        return states

    def next_tokens(self, states: torch.Tensor) -> list[int]:
        return (states @ self.embedding.T).argmax(-1).tolist()


def make_runner(num_blocks: int, kv_cache_config: Any, *, has_cache: bool) -> Any:
    """A runner with vllm-omni's mixin, the model, and what arrived of each request's outputs."""
    from vllm_omni.core.prefix_cache import PrefixCacheConfig
    from vllm_omni.core.prefix_cache.runner_mixin import PrefixCacheRunnerMixin

    class Runner(PrefixCacheRunnerMixin):
        omni_prefix_cache = None
        is_pooling_model = False

        def __init__(self) -> None:
            self.kv_cache_config = kv_cache_config
            table = SimpleNamespace(block_table=SimpleNamespace(cpu=None))
            self.input_batch = SimpleNamespace(req_ids=[], block_table=Tables([table]))
            config = PrefixCacheConfig(num_blocks=num_blocks, block_size=BLOCK, staging_capacity_tokens=64)
            self._omni_prefix_cache_cfg = config if has_cache else None
            self.model = Model(num_blocks)
            self.tokens: dict[str, list[int]] = {}
            self.blocks: dict[str, list[int]] = {}
            self.states: dict[str, dict[int, torch.Tensor]] = {}
            self.codes: dict[str, dict[int, torch.Tensor]] = {}
            self.pending: list[tuple[int | None, dict[str, int], dict[str, torch.Tensor]]] = []
            self.num_hits = self.num_resumed = 0
            self._snapshot_prefix_cache_model_policy(SimpleNamespace(deferred_prefix_cache_mm_keys={"codes.deferred"}))

        def step(self, plan: Any) -> Any:
            from vllm_omni.outputs import OmniModelRunnerOutput

            self._prefix_cache_step_begin(plan)
            starts = self.update(plan)
            names = list(plan.num_scheduled_tokens)
            rows = torch.zeros(len(names), max((len(self.blocks[n]) for n in names), default=1), dtype=torch.int32)
            for row, name in zip(rows, names, strict=True):
                row[: len(self.blocks[name])] = torch.tensor(self.blocks[name])
            self.input_batch.block_table[0].block_table.cpu = rows
            self.input_batch.req_ids = names
            self.input_batch.req_id_to_index = {name: index for index, name in enumerate(names)}
            self.input_batch.num_computed_tokens_cpu = [starts[name] for name in names]
            own: dict[str, torch.Tensor] = {}
            for name in names:
                stop = starts[name] + plan.num_scheduled_tokens[name]
                blocks = torch.tensor(self.blocks[name])
                slots = (blocks[:, None] * BLOCK + torch.arange(BLOCK)).reshape(-1)[:stop]
                own[name] = self.model.run(self.tokens[name][starts[name] : stop], starts[name], slots)
            saved = None
            if names:
                states = torch.cat([*own.values(), torch.zeros(3, WIDTH, dtype=torch.float64)])
                codes = {"codes.deferred": states[:, :2].clone(), "codes.now": states[:-3, 2:5].clone()}
                saved = self._prefix_cache_save_step(
                    states, codes, num_tokens_unpadded=len(states) - 3, num_tokens_padded=len(states)
                )
                states.fill_(torch.nan)  # buffers of CUDA graphs are used again
            sampled = []
            for name in names:
                is_last = starts[name] + len(own[name]) == len(self.tokens[name])
                sampled.append(self.model.next_tokens(own[name][-1:]) if is_last else [])
                self.tokens[name] += sampled[-1]
            # A hit gets its prefix as well: its rows begin at 0.
            hits = {new.req_id for new in plan.scheduled_new_reqs if new.num_computed_tokens}
            self.num_hits += len(hits)
            begins = {name: 0 if name in hits and self.omni_prefix_cache else starts[name] for name in names}
            self.pending.append((saved, begins, own))
            self.receive(keep=1)
            return OmniModelRunnerOutput(
                req_ids=names, req_id_to_index=self.input_batch.req_id_to_index, sampled_token_ids=sampled
            )

        def update(self, plan: Any) -> dict[str, int]:
            """Take over what the scheduler says; returns the first token that each request computes."""
            starts = {}
            for new in plan.scheduled_new_reqs:
                self.tokens[new.req_id] = list(new.prompt_token_ids)
                self.blocks[new.req_id] = list(new.block_ids[0])
                starts[new.req_id] = new.num_computed_tokens
            old = plan.scheduled_cached_reqs
            for name, blocks, computed in zip(old.req_ids, old.new_block_ids, old.num_computed_tokens, strict=True):
                if name in old.resumed_req_ids:
                    self.num_resumed += 1
                    self.blocks[name] = []
                self.blocks[name] += blocks[0] if blocks else []
                starts[name] = computed
            return starts

        def receive(self, keep: int) -> None:
            """Ask for the outputs of all steps but the latest."""
            while len(self.pending) > keep:
                saved, begins, own = self.pending.pop(0)
                states, outputs = self._prefix_cache_materialize(saved, list(begins))
                if states is None:
                    states = own
                for name, begin in begins.items():
                    self.states.setdefault(name, {}).update(enumerate(states[name], begin))
                    for key, columns in (("codes.deferred", slice(0, 2)), ("codes.now", slice(2, 5))):
                        if outputs is not None:
                            assert torch.equal(outputs[key][name], states[name][:, columns]), (name, key)

    return Runner()


class Tables(list[Any]):
    """Block tables by group, as the engine's batch has them."""

    @property
    def block_tables(self) -> list[Any]:
        return list(self)


def make_scheduler(num_blocks: int, *, has_cache: bool) -> Any:
    from vllm.config import CacheConfig, EncoderCacheManagerConfig, ObservabilityConfig, ParallelConfig, SchedulerConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm_omni.core.sched.omni_ar_scheduler import OmniARScheduler

    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=has_cache)
    cache.num_gpu_blocks = num_blocks
    model = SimpleNamespace(
        is_diffusion=False, is_encoder_decoder=False, max_model_len=128, runner_type="generate", dtype=torch.float32,
        supports_multimodal_inputs=False, is_multimodal_model=False, uses_mrope=False, is_hybrid=False,
        return_sampling_mask=False, enable_return_routed_experts=False, async_chunk=False, stage_id=0,
        stage_connector_config=None,
    )  # fmt: skip
    scheduling = SchedulerConfig.default_factory(
        max_num_seqs=6, max_num_batched_tokens=STEP_TOKENS, max_model_len=128, enable_chunked_prefill=True,
        async_scheduling=False, watermark=0.0,
    )  # fmt: skip
    config = SimpleNamespace(
        model_config=model, scheduler_config=scheduling, cache_config=cache, parallel_config=ParallelConfig(),
        observability_config=ObservabilityConfig(), device_config=SimpleNamespace(device_type="cpu"),
        ec_transfer_config=None, is_mm_encoder_only=False, kv_events_config=None, kv_transfer_config=None,
        lora_config=None, max_concurrent_batches=1, max_in_flight_tokens=STEP_TOKENS, num_hash_lookahead_tokens=0,
        num_lookahead_tokens=0, num_prefill_lookahead_tokens=0, num_speculative_tokens=0, speculative_config=None,
        use_v2_model_runner=False, aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=EncoderCacheManagerConfig(),
    )  # fmt: skip
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    groups = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a"], spec)])
    no_grammars = SimpleNamespace(accept_tokens=lambda *_: True)
    return OmniARScheduler(config, groups, structured_output_manager=no_grammars, block_size=BLOCK)


def requests() -> Iterator[tuple[str, list[int], int]]:
    """Name, prompt and number of tokens to make; prompts share their beginnings."""
    rng = random.Random(3)
    stems = [[rng.randrange(VOCABULARY) for _ in range(22)] for _ in range(3)]
    for number in range(36):
        stem = rng.choice(stems)
        tail = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 9))]
        yield f"r{number}", stem[: rng.choice((8, 16, 22))] + tail, rng.randint(3, 24)


def serve(num_blocks: int, *, has_cache: bool) -> Any:
    """Serve all requests, a few at a time; two are aborted halfway."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request, RequestStatus

    init_none_hash(sha256)
    scheduler = make_scheduler(num_blocks, has_cache=has_cache)
    runner = make_runner(num_blocks, scheduler.kv_cache_config, has_cache=has_cache)
    todo, aborts = list(requests()), {"r5", "r11", "r12"}
    for _ in range(2_000):
        while todo and len(scheduler.requests) < 6:
            name, prompt, length = todo.pop(0)
            sampling = SamplingParams(max_tokens=length, ignore_eos=True, temperature=0)
            sampling.update_from_generation_config({}, 0)
            scheduler.add_request(
                Request(
                    request_id=name, prompt_token_ids=prompt, sampling_params=sampling, pooling_params=None,
                    block_hasher=get_request_block_hasher(BLOCK, sha256),
                )
            )  # fmt: skip
        for name in sorted(aborts & scheduler.requests.keys()):
            if scheduler.requests[name].num_output_tokens >= 2:
                scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                aborts.discard(name)
        plan = scheduler.schedule()
        scheduler.update_from_output(plan, runner.step(plan))
        if not todo and not scheduler.has_unfinished_requests():
            runner.receive(keep=0)
            if runner.omni_prefix_cache is not None:
                runner.omni_prefix_cache.shutdown()
            assert not aborts
            return runner
    raise AssertionError(f"the scheduler spins: {len(scheduler.requests)} alive")


def test_text_and_hidden_states_are_those_of_a_run_without_a_cache(
    platform: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm.distributed.parallel_state as ranks
    import vllm_omni.core.prefix_cache.runner_mixin as mixin

    from omnireuse.core.prefix_cache import OmniPrefixCacheManager
    from omnireuse_engines.vllm_omni import register

    monkeypatch.setattr(ranks, "get_pp_group", lambda: SimpleNamespace(is_last_rank=True))
    theirs = mixin.OmniPrefixCacheManager
    monkeypatch.setattr(mixin, "OmniPrefixCacheManager", theirs)  # put back at the end
    monkeypatch.setenv("OMNIREUSE_PREFIX_CACHE", "off")
    register()
    assert mixin.OmniPrefixCacheManager is theirs
    without = serve(400, has_cache=False)
    monkeypatch.setenv("OMNIREUSE_PREFIX_CACHE", "on")
    register()
    assert mixin.OmniPrefixCacheManager is OmniPrefixCacheManager
    cached = serve(28, has_cache=True)
    assert isinstance(cached.omni_prefix_cache, OmniPrefixCacheManager)
    assert cached.num_hits > 10
    assert cached.num_resumed > 3
    assert cached.omni_prefix_cache.stats()["absent_rows"] == 0
    assert cached.tokens.keys() == without.tokens.keys()
    for name, tokens in without.tokens.items():
        length = min(len(tokens), len(cached.tokens[name]))  # an abort may come a step earlier or later
        assert cached.tokens[name][:length] == tokens[:length]
        for position in range(length - 1):
            torch.testing.assert_close(
                cached.states[name][position], without.states[name][position], rtol=1e-9, atol=1e-9
            )


def test_another_value_than_on_or_off_stops_the_engine(platform: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from omnireuse.errors import ConfigError
    from omnireuse_engines.vllm_omni import register

    monkeypatch.setenv("OMNIREUSE_PREFIX_CACHE", "yes please")
    with pytest.raises(ConfigError, match=r"OMNIREUSE_PREFIX_CACHE='yes please': it must be \"on\" or \"off\""):
        register()
