"""vLLM's scheduler, model runner protocol and output aggregator around the connector; only the encoder is played."""

from __future__ import annotations

import pickle

import pytest
import torch
from vllm.config.ec_transfer import ECTransferConfig
from vllm.distributed.ec_transfer import ec_transfer_state
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.distributed.ec_transfer.ec_connector.utils import ECOutputAggregator
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.ec_connector_model_runner_mixin import ECConnectorModelRunnerMixin
from vllm.v1.worker.gpu.ec_connector import ActiveECConnector

from engines.tests.hosts.vllm.host import make_config, make_scheduler

WIDTH = 8
ROW = WIDTH * 4  # bytes an embedding


def ec(role: str = "ec_both", **extra: object) -> ECTransferConfig:
    return ECTransferConfig(
        ec_connector="EncoderOutputConnector", ec_connector_module_path="omnireuse_engines.vllm", ec_role=role,
        ec_connector_extra_config=extra,
    )  # fmt: skip


def encode(identifier: str, size: int, weights: int = 0) -> torch.Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(hash((identifier, weights)) % 2**31))


class Engine:
    """vLLM's scheduler, and `num_workers` workers that follow its model runner's protocol, the first or the second."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, transfer: ECTransferConfig, *, runner: int = 1, num_workers: int = 1,
        **options: object,
    ) -> None:  # fmt: skip
        config = make_config(ec=transfer, **options)
        self.scheduler: Scheduler = make_scheduler(monkeypatch, config)
        self.runner, self.connectors, self.caches = runner, [], []
        for rank in range(num_workers):
            config.parallel_config.rank = rank
            self.connectors.append(ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER))
            self.caches.append({})
        self.config, self.num_encodes, self.weights, self.num_preempted = config, 0, 0, 0
        self.plan: SchedulerOutput | None = None  # the last step's
        self.told: dict[str, dict[str, object] | None] = {}  # what a client learns of its finished request's items

    @property
    def stats(self) -> dict[str, int]:
        return self.scheduler.get_ec_connector().stats()

    def close(self) -> None:
        for connector in (*self.connectors, self.scheduler.get_ec_connector()):
            connector.shutdown()

    def update_weights(self) -> None:
        """Change the encoder's weights in place, and reset the encoder cache as vLLM's engine core does."""
        self.weights += 1
        self.scheduler.reset_encoder_cache()
        for cache in self.caches:
            cache.clear()

    def step(self) -> set[str]:
        """One engine step; returns the requests that ended."""
        before = {request.request_id for request in self.scheduler.running}
        plan = self.plan = self.scheduler.schedule()
        self.num_preempted += len(before - {request.request_id for request in self.scheduler.running})
        if (shared := getattr(self.scheduler.encoder_cache_manager, "shared", None)) is not None:
            shared.assert_invariants()
        # As between processes: every worker has a plan of its own, and the scheduler its reports.
        plans = [pickle.loads(pickle.dumps(plan)) for _ in self.connectors]
        outputs = [self._run(*each) for each in zip(plans, self.connectors, self.caches, strict=True)]
        outputs = pickle.loads(pickle.dumps(outputs))
        ended = set()
        for each in self.scheduler.update_from_output(plan, ECOutputAggregator().aggregate(outputs)).values():
            for output in each.outputs:
                if output.finish_reason is not None:
                    ended.add(output.request_id)
                    self.told[output.request_id] = output.ec_transfer_params
        return ended

    def _run(self, plan: object, connector: object, cache: dict[str, torch.Tensor]) -> ModelRunnerOutput:
        ec_transfer_state._EC_CONNECTOR_AGENT = connector
        for identifier in plan.free_encoder_mm_hashes:
            cache.pop(identifier, None)
        if self.runner == 2:
            active = ActiveECConnector(self.config, cache)
            if not plan.total_num_scheduled_tokens:
                return active.no_forward(plan)
            context = active.maybe_get_output(plan)
        else:
            if not plan.total_num_scheduled_tokens:
                return EMPTY_MODEL_RUNNER_OUTPUT
            context = ECConnectorModelRunnerMixin.maybe_get_ec_connector_output(plan, encoder_cache=cache)
        with context as ec_output:
            for name, indices in plan.scheduled_encoder_inputs.items():
                for index in indices:
                    feature = self.scheduler.requests[name].mm_features[index]
                    size = feature.mm_position.length
                    cache[feature.identifier] = encode(feature.identifier, size, self.weights)
                    self.num_encodes += connector is self.connectors[0]
                    if self.runner == 1:
                        ECConnectorModelRunnerMixin.maybe_save_ec_to_connector(cache, feature.identifier)
            names, sampled = list(plan.num_scheduled_tokens), []
            for name in names:
                request = self.scheduler.requests[name]
                self._read(request, plan.num_scheduled_tokens[name], cache)
                sampled.append([7] if request.num_computed_tokens >= request.num_tokens else [])
        output = ModelRunnerOutput(
            req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)}, sampled_token_ids=sampled
        )
        return ModelRunnerOutput.with_ec_conn_output(output, ec_output)

    def _read(self, request: Request, num_new: int, cache: dict[str, torch.Tensor]) -> None:
        end = request.num_computed_tokens
        for feature in request.mm_features:
            place = feature.mm_position
            if place.offset < end and end - num_new < place.offset + place.length:
                expected = encode(feature.identifier, place.length, self.weights)
                assert torch.equal(cache[feature.identifier], expected), f"{request.request_id} gets another's output"

    def serve(self, requests: list[Request], to_abort: frozenset[str] = frozenset()) -> set[str]:
        """Serve the requests a few at a time, abort some in the middle; returns those that finished."""
        todo, finished = list(requests), set()
        for step in range(20_000):
            while todo and len(self.scheduler.requests) < 8:
                self.scheduler.add_request(todo.pop(0))
            for name in sorted(to_abort & self.scheduler.requests.keys()):
                if step % 3 == 0:
                    self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            finished |= self.step()
            if not todo and not self.scheduler.has_unfinished_requests():
                return finished
        raise AssertionError(f"the scheduler spins: {len(todo)} to come, {len(self.scheduler.requests)} alive")
