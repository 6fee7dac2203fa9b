"""Writes to a slow store from a thread of their own, so that the caller never waits for a disk or a server."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from typing import Any

import torch

from omnireuse.stores.memory import check_budget
from omnireuse.stores.tier import Tier, TieredStore
from omnireuse.stores.trees import flatten, storage_bytes

__all__ = ["WriteBehind"]

logger = logging.getLogger("omnireuse")


class WriteBehind:
    """A store whose writes are done later, in order, by one thread. Reads go straight to the store.

    Args:
        store: a tier, or several.
        max_bytes: of values that wait to be written, at least 1. A value that would exceed it is not written, and
            counted as ``dropped``.

    Attributes:
        counts: ``queued``, ``dropped`` and ``failed`` (an error that no tier expects) so far.

    Raises:
        ConfigError: `max_bytes` below 1.

    Cost: `put` of tensors in pinned memory records a CUDA event; the thread waits for it.
    """

    def __init__(self, store: Tier | TieredStore, *, max_bytes: int = 1 << 30) -> None:
        self.store = store
        self.counts: Counter[str] = Counter()
        self._max_bytes = check_budget("WriteBehind", "max_bytes", max_bytes) or 0
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="omnireuse-write-behind", daemon=True)
        self._thread.start()

    def lookup(self, key: str, default: object = None, *, namespace: str | None = None) -> Any:
        """As the store's own; a value that still waits to be written is not found."""
        return self.store.lookup(key, default, namespace=namespace)

    def put(self, key: str, value: object, *, namespace: str | None = None) -> bool:
        """Have ``value`` written. It must not change from now on. False, counted, if too much waits already."""
        leaves = flatten(value)[1]
        num_bytes = storage_bytes(leaves)
        with self._lock:
            is_taken = self._num_bytes + num_bytes <= self._max_bytes
            self._num_bytes += num_bytes if is_taken else 0
            self.counts["queued" if is_taken else "dropped"] += 1
        if not is_taken:
            if self.counts["dropped"] == 1:
                logger.warning("%d bytes wait to be written: further values are not kept outside", self._num_bytes)
            return False
        event = None
        if any(isinstance(leaf, torch.Tensor) and leaf.is_pinned() for leaf in leaves):
            event = torch.cuda.Event()
            event.record()
        self._jobs.put((key, value, namespace, num_bytes, event))
        return True

    def close(self, timeout_s: float = 30.0) -> None:
        """Write waiting values, for at most ``timeout_s`` seconds, then close the store."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("%d bytes were not written within %g s, and are lost", self._num_bytes, timeout_s)
        self.store.close()

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            key, value, namespace, num_bytes, event = job
            try:
                if event is not None:
                    event.synchronize()
                self.store.put(key, value, namespace=namespace)
            except Exception:  # the thread must go on: other values wait behind this one
                self.counts["failed"] += 1
                logger.exception("a value could not be written")
            finally:
                with self._lock:
                    self._num_bytes -= num_bytes
            del value, job
