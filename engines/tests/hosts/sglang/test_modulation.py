"""What sees only the timestep, computed once: pictures of SGLang keep their bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.tests.hosts.sglang.conftest import DIFFUSERS, IN_SGLANG, NATIVE, SHAPES_FLUX, Server, server_args
from engines.tests.hosts.sglang.test_weights import others, update  # noqa: F401 - the fixture

pytestmark = IN_SGLANG


def test_pictures_have_the_bits_of_a_server_without_it(
    server: Server,
    others: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from omnireuse_engines.sglang.hooks import REUSE

    is_native = server.name == "native"
    options = NATIVE if is_native else DIFFUSERS
    want = {steps: server.calls(0, steps)[0] for steps in (3, 5)}
    with monkeypatch.context() as patch:
        patch.setenv("OMNIREUSE_SGLANG", '{"default": "off", "modulation": "disk"}')
        server_args(**options)
        REUSE.announce(server.pipeline, is_native=is_native, moves_layers=False)
        cache = REUSE.settings.modulation.cache
        for _ in range(2):
            assert torch.equal(server.calls(0, 3)[0], want[3])
        assert cache.details()["released"]
        assert torch.equal(server.calls(0, 5)[0], want[5])
        found = cache.details()
        assert found["released"] <= found["brought_in"] <= 2 * found["released"]  # once for each branch
        assert "bypassed_unforeseen" not in found
        try:
            if is_native:
                update(server, others)
                changed = server.calls(0, 5)[0]
                cache.close()
                assert torch.equal(server.calls(0, 5)[0], changed)
                assert not torch.equal(changed, want[5])
        finally:
            cache.close()
            REUSE._parts = None
            if is_native:
                update(server, SHAPES_FLUX)
    server_args(**options)
