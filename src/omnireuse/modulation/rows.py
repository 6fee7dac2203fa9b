"""The rows of all tables of a pipeline, with the options and the counters that its tables share."""

from __future__ import annotations

import logging
import operator
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from omnireuse.modulation.table import Table
from omnireuse.stores.memory import MemoryStore
from omnireuse.stores.tier import Tier, TieredStore

__all__ = ["Release", "Rows", "Schedules", "StoredRow"]

logger = logging.getLogger("omnireuse")

Release = Literal["cpu", "disk"] | None
SCHEDULERS = ("scheduler", "audio_scheduler")
"""Of a pipeline."""


class StoredRow(NamedTuple):
    """An output, and its version when it was stored."""

    output: torch.Tensor
    version: int


class Schedules:
    """The schedules of the pipelines that share a cache; pipelines are held weakly.

    Attributes:
        pictures: how often a schedule was seen to be set.
    """

    def __init__(self) -> None:
        self._pipelines: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._latest: list[list[torch.Tensor]] = []
        self.pictures = 0

    def join(self, pipeline: object) -> None:
        """Know the schedulers of a pipeline."""
        if hasattr(pipeline, "__weakref__"):
            self._pipelines[id(pipeline)] = pipeline

    def timesteps(self) -> list[list[torch.Tensor]]:
        """The timesteps of each pipeline's schedulers. They are other objects for each picture."""
        found: list[list[torch.Tensor]] = []
        for pipeline in self._pipelines.values():
            timesteps = [getattr(getattr(pipeline, name, None), "timesteps", None) for name in SCHEDULERS]
            found.append([each for each in timesteps if isinstance(each, torch.Tensor)])
        known, now = [*chain(*self._latest)], [*chain(*found)]
        if len(known) != len(now) or any(map(operator.is_not, known, now)):
            self._latest = found
            self.pictures += 1
        return found

    @property
    def hides_bars(self) -> bool:
        """Whether the user has disabled a pipeline's progress bars."""
        bars = [getattr(each, "_progress_bar_config", None) or {} for each in self._pipelines.values()]
        return any(each.get("disable") for each in bars)


class Rows:
    """What the tables of a pipeline share.

    Attributes:
        release: where weights go once every step of a schedule has its row; None if they stay.
        max_bytes: most bytes of rows; None for as many as the weights have.
        outside: the store or tier that keeps rows for other processes; None for none.
        rows: the rows of all tables, the least recently used first out.
        refused: why nothing is kept any more, in words; "" while the cache works.
        schedules: of all pipelines that the cache serves.
    """

    def __init__(
        self, pipeline: object, release: Release, max_bytes: int | None, outside: Tier | TieredStore | None
    ) -> None:
        self.schedules, self._picture = Schedules(), 0
        self.schedules.join(pipeline)
        self.release, self.max_bytes, self.outside, self.refused = release, max_bytes, outside, ""
        self.rows: MemoryStore[StoredRow] = MemoryStore(max_bytes=max_bytes)
        self._lock = threading.Lock()
        self._counts, self._bypassed = Counter[str](), Counter[str]()
        self._weight_bytes: dict[int, int] = {}
        self._folder: Path | None = None

    def count(self, **numbers: int) -> None:
        """Add these numbers to the counters."""
        with self._lock:
            self.schedules.timesteps()
            if self._picture != self.schedules.pictures:
                self._picture, self._counts["computed_last"] = self.schedules.pictures, 0
            self._counts.update(numbers, computed_last=numbers.get("computed", 0))

    @contextmanager
    def brought_in(self, table: Table, device: torch.device) -> Iterator[None]:
        """Bring in weights that are away, for a moment."""
        with table.lock:
            if not table.weights.away or table.weights.is_in:
                yield
            else:
                self.count(brought_in=1)
                with table.weights.on(device):
                    yield

    def bypass(self, reason: str, where: str) -> None:
        """Count a call that a projection computes by itself; the first of each reason is logged."""
        with self._lock:
            self._bypassed[reason] += 1
            is_first = self._bypassed[reason] == 1
        if is_first:
            logger.info("modulation cache: %s is computed by itself (%s); docs/modulation.md", where, reason)

    def refuse(self, reason: str) -> None:
        """Keep nothing any more, and say why."""
        self.refused = self.refused or reason
        logger.warning("modulation cache: nothing is kept: %s; the weights stay", reason)

    def limit_rows(self, tables: object, weight_bytes: int) -> None:
        """Hold the rows below the weights of all tables, and below `max_bytes`; `weight_bytes` are of these tables."""
        with self._lock:
            self._weight_bytes[id(tables)] = weight_bytes
            weights = sum(self._weight_bytes.values())
        self.rows.max_bytes = weights if self.max_bytes is None else min(weights, self.max_bytes)

    def put_away(self, data: torch.Tensor) -> torch.Tensor:
        """The same values where `release` says: in host memory, pinned beside CUDA, or mapped from a file."""
        if self.release == "disk":
            return self._mapped(data)
        if data.device.type == "cpu":
            return data
        host = data.to("cpu")
        return host.pin_memory() if data.device.type == "cuda" else host

    def _mapped(self, data: torch.Tensor) -> torch.Tensor:
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="omnireuse-modulation-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            self._counts["files"] += 1
            path = self._folder / f"{self._counts['files']}.safetensors"
        save_file({"weight": data.contiguous()}, path)
        with safe_open(path, "pt") as file:
            return file.get_tensor("weight")  # type: ignore[no-any-return]  # a tensor
