"""Methods that vllm-omni adds to its workers (`worker_extension_cls`), so that a test sees and disturbs each rank."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist

import omnireuse


class Probe:
    """What happens in a worker process; every method runs on all ranks."""

    model_runner: Any
    rank: int

    def watch_rank(self, slow: int) -> None:
        """Count the calls of the transformer, and let those of one rank take longer."""
        self.calls = 0

        def count(*_: Any) -> None:
            self.calls += 1
            time.sleep(0.005 if self.rank == slow else 0.0)

        self.model_runner.pipeline.transformer.register_forward_pre_hook(count)

    def start_other_backend(self, config: dict[str, Any]) -> None:
        """Serve whole requests as if the server had been started with another configuration of the cache."""
        from vllm_omni.diffusion.cache.selector import get_cache_backend

        if omnireuse.handle_of(self.model_runner.pipeline) is not None:
            omnireuse.disable(self.model_runner.pipeline)
        self.model_runner.cache_backend = get_cache_backend("omnireuse", config)
        self.model_runner.cache_backend.enable(self.model_runner.pipeline)

    def calls_so_far(self) -> list[int]:
        """Of each rank."""
        return self._of_all_ranks(self.calls)

    def requests_kept(self) -> list[list[str]]:
        """Requests whose state each rank keeps."""
        return self._of_all_ranks(sorted(self.model_runner.state_cache))

    def lose_rank(self, rank: int, how: str) -> None:
        """Let a rank raise an error, or die, in the transformer's next call but four."""
        left = [None] * 4

        def end(*_: Any) -> None:
            if left:
                left.pop()
            elif how == "dies":
                os._exit(9)
            else:
                raise RuntimeError("out of memory on one rank")

        if self.rank == rank:
            self.model_runner.pipeline.transformer.register_forward_pre_hook(end)

    def _of_all_ranks(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values
