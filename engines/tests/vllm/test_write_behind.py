"""Writes from a thread of their own: nothing waits, nothing is lost silently, and the thread survives."""

from __future__ import annotations

import threading

import pytest
import torch

from omnireuse.errors import ConfigError
from omnireuse.stores.disk import DiskTier
from omnireuse_engines.vllm.write_behind import WriteBehind


class GatedTier(DiskTier):
    """A disk that waits until it is told to go on, or fails as no tier should."""

    def __init__(self, directory: object) -> None:
        super().__init__(directory, max_bytes=1 << 20, namespace="test")
        self.gate, self.is_broken = threading.Event(), False

    def _write(self, full: str, data: bytes) -> bool:
        assert self.gate.wait(30)
        if self.is_broken:
            raise KeyError("a mistake in the tier")
        return super()._write(full, data)


def value(number: float) -> tuple[int, torch.Tensor]:
    return 4, torch.full((4, 8), number)  # 128 bytes


def test_put_returns_before_the_tier_writes_and_close_waits_for_it(tmp_path: object) -> None:
    tier = GatedTier(tmp_path)
    store = WriteBehind(tier)
    assert store.put("a", value(1.0))
    assert store.lookup("a") is None
    tier.gate.set()
    store.close()
    num_embeds, tensor = store.lookup("a")
    assert num_embeds == 4
    assert torch.equal(tensor, value(1.0)[1])


def test_what_exceeds_the_waiting_bytes_is_dropped_and_counted(
    tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    tier = GatedTier(tmp_path)
    store = WriteBehind(tier, max_bytes=256)
    assert [store.put(name, value(1.0)) for name in "abcd"] == [True, True, False, False]
    assert store.counts == {"queued": 2, "dropped": 2}
    assert [record.message for record in caplog.records] == [
        "256 bytes wait to be written: further values are not kept outside"
    ]
    tier.gate.set()
    store.close()
    assert store.lookup("b") is not None
    assert store.lookup("c") is None


def test_an_unexpected_error_costs_one_value(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    tier = GatedTier(tmp_path)
    tier.gate.set()
    tier.is_broken = True
    store = WriteBehind(tier)
    store.put("a", value(1.0))
    store.close()
    assert store.counts["failed"] == 1
    assert "a value could not be written" in caplog.text


def test_a_disk_that_hangs_does_not_hold_up_the_end(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    tier = GatedTier(tmp_path)
    store = WriteBehind(tier)
    store.put("a", value(1.0))
    store.close(timeout_s=0.05)
    assert "128 bytes were not written" in caplog.text
    tier.gate.set()


def test_a_budget_of_nothing_is_refused(tmp_path: object) -> None:
    with pytest.raises(ConfigError, match=r"WriteBehind\(max_bytes=0\)"):
        WriteBehind(GatedTier(tmp_path), max_bytes=0)
