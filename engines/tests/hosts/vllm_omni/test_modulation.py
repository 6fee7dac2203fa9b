"""What sees only the timestep, computed once: pictures of vllm-omni keep their bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.tests.hosts.vllm_omni.conftest import IN_VLLM_OMNI, drive, make_request, run, runner_of, running_engine
from engines.tests.hosts.vllm_omni.test_weights import EXTENSION, KEY, scale

pytestmark = IN_VLLM_OMNI


@pytest.mark.parametrize("steps", [False, True], ids=["request mode", "step mode"])
def test_pictures_have_the_bits_of_an_engine_without_it(tiny_qwen: Path, steps: bool) -> None:
    common = {"enforce_eager": True, "max_num_seqs": 2, "step_execution": steps, "worker_extension_cls": EXTENSION}

    def pictures(engine: object) -> list[torch.Tensor]:
        alone = [run(engine, make_request(which, 12, reuse="off")).output for which in (0, 1)]
        if not steps:
            return alone
        joined = [make_request(which, 12, reuse="off") for which in (0, 1)]
        results = drive(engine, {0: [joined[0]], 3: [joined[1]]})
        return [*alone, *(results[each.request_id].output for each in joined)]

    with running_engine(tiny_qwen, **common) as engine:
        plain = pictures(engine)
        scale(engine, "transformer", 0.75)
        other = pictures(engine)
    # In step mode the weights stay, in request mode they go to a file.
    options = {"cache_backend": KEY, "cache_config": {"modulation": True if steps else "disk"}}
    with running_engine(tiny_qwen, **common, **options) as engine:
        for _ in range(2):
            assert all(map(torch.equal, pictures(engine), plain))
        found = runner_of(engine).cache_backend.settings.modulation.cache.details()
        assert found["reused"] > found["computed"] > 0
        assert (found["released_bytes"] > 0) == (not steps)
        scale(engine, "transformer", 0.75)
        assert all(map(torch.equal, pictures(engine), other))
