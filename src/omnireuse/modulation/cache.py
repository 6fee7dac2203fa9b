"""The modulation cache of a pipeline: its options, its rows, its counters, and how it is installed."""

from __future__ import annotations

import logging
import os
import shutil
import weakref
from typing import Any

from torch import nn

from omnireuse.base.validation import check_value
from omnireuse.hooks.denoisers import DENOISERS, denoisers_of
from omnireuse.modulation.rows import Release, Rows
from omnireuse.modulation.tables import Tables
from omnireuse.stores.disk import DiskTier
from omnireuse.stores.memory import check_budget
from omnireuse.stores.tier import Tier, TieredStore

__all__ = ["ModulationCache", "install_modulation_cache", "uninstall_modulation_cache"]

logger = logging.getLogger("omnireuse")

COUNTED = ("reused", "computed", "computed_last", "brought_in", "reads", "changed", "saved")
_FOLDER_BYTES = 16 << 30
_installed: weakref.WeakSet[ModulationCache] = weakref.WeakSet()


class ModulationCache(Rows):
    """Outputs of the layers that see only the timestep, kept by the bits of their input.

    `install_modulation_cache` makes it.

    Attributes:
        tables: of each denoiser.
    """

    def __init__(
        self, pipeline: object, release: Release, max_bytes: int | None, outside: Tier | TieredStore | None
    ) -> None:
        super().__init__(pipeline, release, max_bytes, outside)
        self.tables = [Tables(each, self) for each in _denoisers(pipeline)]

    def details(self) -> dict[str, int]:
        """Every counter, and `bypassed_<reason>`.

        `parameters` and `weight_bytes` are of the `projections` with a table, `released_parameters` and
        `released_bytes` of those whose weights are away, `all_parameters` of the whole denoisers; `rows` and
        `num_bytes` are of the tables; `reused` and `computed` count calls of projections, `computed_last` those since
        the schedule was set last; `brought_in` counts weights that were away and came in for a moment; `reads` are
        inputs that were read; `changed` are projections whose rows were dropped because their weights changed, `saved`
        records that were written to `outside`.
        """
        tables = [table for each in self.tables for table in each.projections]
        away = [table for table in tables if table.weights.away]
        found = {
            "projections": len(tables),
            "released": len(away),
            "all_parameters": sum(p.numel() for each in self.tables for p in each.parameters()),
            "parameters": sum(table.weights.numel for table in tables),
            "weight_bytes": sum(table.weights.num_bytes for table in tables),
            "released_parameters": sum(table.weights.numel for table in away),
            "released_bytes": sum(table.weights.num_bytes for table in away),
            "rows": len(self.rows),
            "num_bytes": self.rows.num_bytes,
            "evictions": self.rows.counts["evictions"],
        }
        with self._lock:
            found |= {name: self._counts[name] for name in COUNTED}
            found |= {f"bypassed_{reason}": number for reason, number in sorted(self._bypassed.items())}
        return found

    def summary(self) -> str:
        """What the cache has done, in a sentence."""
        found = self.details()
        if self.refused:
            return f"no modulation is kept: {self.refused}"
        if not found["projections"]:
            return "no modulation is kept yet: the denoiser has not been called, or no layer sees the timestep alone"
        return (
            f"{found['released_parameters'] / 1e9:.3g} of {found['all_parameters'] / 1e9:.3g} B weights "
            f"({found['released_bytes'] / 2**30:.3g} GiB) have left the device, tables "
            f"{found['num_bytes'] / 2**20:.3g} MiB, {found['computed_last']:,} projections computed in the last picture"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def forget(self) -> None:
        """Drop every row, for whoever writes weights behind torch's back."""
        for each in self.tables:
            each.forget()

    def close(self) -> None:
        """Remove handlers and rows, and bring back the weights that have left. Idempotent."""
        for each in self.tables:
            each.close()
        self.rows.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        _installed.discard(self)


def install_modulation_cache(
    pipeline: object,
    *,
    release: Release = "cpu",
    max_bytes: int | None = None,
    outside: Tier | TieredStore | str | os.PathLike[str] | None = None,
) -> ModulationCache | None:
    """Compute what sees only the timestep once, and let its weights leave the device. Pictures keep their bits.

    Layers are found by looking at the first calls. A row is used only for an input with the same bits, by weights that
    are unchanged since. A second call returns the cache that is there.

    Args:
        pipeline: a pipeline with a denoiser, an object with a module `transformer` or `unet`, or a denoiser itself.
        release: where the weights of such layers are once every step of a schedule has its row: None for where they
            were, "cpu" for host memory, "disk" for a temporary file that is mapped.
        max_bytes: most bytes of rows; by default, and at most, as many as the weights have.
        outside: a folder (of at most 16 GiB), a tier or a store that keeps rows for other processes. They are named by
            the content of the weights, their inputs, the versions and the device.

    Returns:
        The cache; None, with a warning, for a denoiser without linear layers.

    Raises:
        ConfigError: a value out of range.
        UnsupportedModelError: no denoiser.
    """
    check_value("install_modulation_cache", "release", release, Release)
    check_budget("install_modulation_cache", "max_bytes", max_bytes)
    denoisers = _denoisers(pipeline)
    if (present := _cache_on(denoisers)) is not None:
        if (release, max_bytes) != (present.release, present.max_bytes) or (outside and not present.outside):
            logger.warning("a modulation cache is already installed: %s; uninstall it first to change it", present)
        present.schedules.join(pipeline)
        return present
    if isinstance(outside, (str, os.PathLike)):
        outside = DiskTier(outside, max_bytes=_FOLDER_BYTES)
    cache = ModulationCache(pipeline, release, max_bytes, outside)
    if not any(each.is_watching for each in cache.tables):
        cache.close()
        logger.warning("no modulation cache is installed: %s has no linear layer", type(denoisers[0]).__name__)
        return None
    _installed.add(cache)
    return cache


def uninstall_modulation_cache(pipeline: object) -> bool:
    """Restore the pipeline as it was, weights that have left included; False if no cache was installed."""
    cache = _cache_on(_denoisers(pipeline))
    if cache is not None:
        cache.close()
    return cache is not None


def _denoisers(pipeline: Any) -> list[nn.Module]:
    is_one = isinstance(pipeline, nn.Module) and not any(
        isinstance(getattr(pipeline, name, None), nn.Module) for name in DENOISERS[:5]
    )
    return [pipeline] if is_one else denoisers_of(pipeline)


def _cache_on(denoisers: list[nn.Module]) -> ModulationCache | None:
    return next(
        (cache for cache in _installed if any(each.denoiser in denoisers for each in cache.tables)),
        None,
    )
