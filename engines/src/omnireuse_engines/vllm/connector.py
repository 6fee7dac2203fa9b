"""`EncoderOutputConnector`: vLLM 0.33's interface around the two halves, one of which lives in each process.

    vllm serve MODEL --ec-transfer-config '{
        "ec_connector": "EncoderOutputConnector", "ec_connector_module_path": "omnireuse_engines.vllm",
        "ec_role": "ec_both", "ec_connector_extra_config": {"host_bytes": 8000000000}}'

Source of the calls and their order: vllm 0.33.0, distributed/ec_transfer/ec_connector/base.py,
v1/core/sched/scheduler.py, v1/worker/ec_connector_model_runner_mixin.py and v1/worker/gpu/ec_connector.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from omnireuse.errors import ConfigError, UnsupportedModelError
from omnireuse_engines.vllm.options import ConnectorOptions, check_host
from omnireuse_engines.vllm.planner import SchedulerHalf
from omnireuse_engines.vllm.plans import StepPlan, StepReport
from omnireuse_engines.vllm.worker import WorkerHalf

check_host()

from vllm.distributed.ec_transfer.ec_connector.base import (  # noqa: E402 - another version lacks them: checked first
    ECConnectorBase,
    ECConnectorMetadata,
    ECConnectorRole,
    ECConnectorWorkerMetadata,
)
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorStats  # noqa: E402 - as above
from vllm.distributed.ec_transfer.ec_connector.utils import (  # noqa: E402 - as above
    PlaceholderMetadataResolver,
    collect_ec_item_metadata,
)

__all__ = ["EncoderOutputConnector"]

ECConnectorMetadata.register(StepPlan)
ECConnectorWorkerMetadata.register(StepReport)


def _hear_resets() -> None:
    """Have vLLM's scheduler tell its connector that the weights changed: vLLM 0.33 tells its cache manager alone."""
    from vllm.v1.core.sched.scheduler import Scheduler  # which imports connectors

    reset_manager = Scheduler.reset_encoder_cache
    if reset_manager.__module__ == __name__:
        return

    def reset_encoder_cache(scheduler: Any) -> None:
        reset_manager(scheduler)
        connector = scheduler.get_ec_connector()
        if isinstance(connector, EncoderOutputConnector):
            connector.reset()

    Scheduler.reset_encoder_cache = reset_encoder_cache


class _Stats(ECConnectorStats):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Events since the last interval, by name; vLLM logs them beside its throughput."""

    def reset(self) -> None:
        self.data: dict[str, int] = {}

    def aggregate(self, other: Any) -> _Stats:
        return _Stats(data=dict(Counter(self.data) + Counter(other.data)))

    def reduce(self) -> dict[str, int]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class EncoderOutputConnector(ECConnectorBase):  # type: ignore[misc]  # as above
    """Encoder outputs in host memory, on disk and in Redis. See `ConnectorOptions` for the options.

    Raises:
        ConfigError: a vLLM that was not tested, an option out of range, or one role without disk and Redis.
        UnknownNameError: an unknown option or policy.
        UnsupportedModelError: an encoder-decoder model.
    """

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        check_host(vllm_config.parallel_config)
        model = vllm_config.model_config
        if model.is_encoder_decoder:
            raise UnsupportedModelError(
                "EncoderOutputConnector: encoder-decoder models do not keep encoder outputs in vLLM's encoder cache; "
                "leave --ec-transfer-config out for them"
            )
        options = ConnectorOptions.of(vllm_config.ec_transfer_config.ec_connector_extra_config)
        if not (self.is_producer and self.is_consumer) and not (options.disk or options.redis):
            raise ConfigError(
                f"EncoderOutputConnector(ec_role={vllm_config.ec_transfer_config.ec_role!r}): field must be 'ec_both' "
                "without disk and Redis, through which producers and consumers meet; name one of them"
            )
        namespace = str(model.dtype)
        # Without an index: vLLM sets the current device of each worker's process.
        self._device = torch.device(vllm_config.device_config.device_type)
        self._planner: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._counted: Counter[str] = Counter()
        self._resolver = PlaceholderMetadataResolver(model)
        if role == ECConnectorRole.SCHEDULER:
            _hear_resets()
            self._planner = SchedulerHalf(
                options, options.open_tiers(), namespace,
                produces=self.is_producer, consumes=self.is_consumer, can_encode=self._can_encode,
            )  # fmt: skip
        else:
            # All ranks compute the same outputs: the first one writes them.
            is_writer = self.is_producer and vllm_config.parallel_config.rank == 0
            self._worker = WorkerHalf(options.open_tiers() if is_writer else None, namespace)

    def reset(self, weights: str = "") -> None:
        """Forget every output, because the encoder's weights changed: from now on each is encoded again.

        In every tier: outputs on disk and in Redis, and writes that still wait, are of the old weights and found no
        more. In the scheduler's process; the workers learn it with the next step. vLLM's `reset_encoder_cache`, and a
        pause with `clear_cache`, call this without a digest.

        Args:
            weights: digest of the new weights, in hexadecimal: engines with equal weights find each other's outputs
                on disk and in Redis. "" for none: nobody else finds those of this engine.

        Raises:
            ConfigError: no digest, or that of the weights before.
        """
        self._scheduling().reset(weights)

    def ensure_cache_available(self, request: object, num_computed_tokens: int) -> bool:
        """Tell whether the request may be scheduled; False while an output is read from disk or Redis."""
        return self._scheduling().is_available(request, num_computed_tokens)

    def has_cache_item(self, identifier: str) -> bool:
        """Tell whether the output is there, read and checked."""
        return self._scheduling().has(identifier)

    def update_state_after_alloc(self, request: object, index: int) -> None:
        """Plan to load or to keep an input of the request."""
        self._scheduling().allocated(request, index)

    def build_connector_meta(self, scheduler_output: object) -> StepPlan:
        """Return the step's plan for the workers."""
        return self._scheduling().plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """Follow the workers' reports of a step."""
        report = connector_output.ec_connector_worker_meta
        if isinstance(report, StepReport):
            self._scheduling().reported(report)

    def take_unavailable_requests(self) -> set[str]:
        """Requests whose inputs are nowhere and came without media to encode."""
        return self._scheduling().take_unavailable()

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Forget the wait of a request; a producer names its items, so that consumers can skip their media."""
        self._scheduling().finished(request)
        items = collect_ec_item_metadata(request.mm_features, self._resolver) if self.is_producer else None
        return False, items or None

    def get_ec_connector_stats(self) -> Any:
        """Return the events since the last call, for vLLM's log; None if there are none."""
        if self._planner is None:
            return None  # the workers' counts come with their reports
        events = self._planner.events()
        news, self._counted = events - self._counted, events
        return _Stats(data=dict(news)) if news else None

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Return the statistics of a message between vLLM's processes."""
        return _Stats(data=data or {})

    def stats(self) -> dict[str, int]:
        """Events so far, and the size of the host tier; empty in a worker."""
        return {} if self._planner is None else self._planner.stats()

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: object) -> None:
        """Bring the step's outputs into vLLM's encoder cache."""
        self._working().begin(self._get_connector_metadata(), encoder_cache, self._device)

    def start_save_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: object) -> None:
        """On a producer that is no consumer: load, and write again losses of disk and Redis."""
        if not self.is_consumer:
            self.start_load_caches(encoder_cache)
            self._working().rewrite(encoder_cache)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: object) -> None:
        """Keep an output that was just encoded. Waits for no copy, disk or server."""
        if self.is_producer:
            self._working().save(mm_hash, encoder_cache[mm_hash])

    def build_connector_worker_meta(self) -> StepReport | None:
        """The fate of the step's outputs."""
        return self._working().report()

    def shutdown(self) -> None:
        """Finish the writes that wait, and close the tiers."""
        for half in (self._planner, self._worker):
            if half is not None:
                half.close()

    def _can_encode(self, feature: Any) -> bool:
        if feature.data is None:
            return False
        delivered = self._resolver.fields_for(feature.modality)
        return any(value.data is not None for name, value in feature.data.items() if name not in delivered)

    def _scheduling(self) -> SchedulerHalf:
        assert self._planner is not None, "a scheduler's call in a worker"
        return self._planner

    def _working(self) -> WorkerHalf:
        assert self._worker is not None, "a worker's call in the scheduler"
        return self._worker
