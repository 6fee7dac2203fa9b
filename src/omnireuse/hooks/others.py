"""Others at work on a session's denoisers: another cache, or a pipeline that shares them. One warning each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from omnireuse.hooks.denoisers import unwrapped

if TYPE_CHECKING:
    from omnireuse.summary.counters import Stats

__all__ = ["Others"]

logger = logging.getLogger("omnireuse")


class Others:
    """Warnings of others, once for each kind.

    Args:
        name: of the session's pipeline.
        stats: promises nothing any more where another cache is at work.
        has_reuse: whether reuse is enabled on a pipeline, too.
    """

    def __init__(self, name: str, stats: Stats, has_reuse: Callable[[Any], bool]) -> None:
        self._name, self._stats, self._has_reuse = name, stats, has_reuse
        self._said: set[str] = set()

    def look_for_caches(self, denoisers: Sequence[torch.nn.Module]) -> None:
        """Look for caches of diffusers (`enable_cache`) on the denoisers."""
        for denoiser in map(unwrapped, denoisers):
            if getattr(denoiser, "is_cache_enabled", False) is not True:
                continue
            model, cache = type(denoiser).__name__, type(getattr(denoiser, "_cache_config", None)).__name__
            but = f"a cache of diffusers ({cache}) is at work on {model}, too"
            self._stats.withdraw(but)
            self._say(
                cache,
                f"{but}: both skip work, the summary counts this library's share alone, and nothing is promised; "
                f"disable one of the two (disable_cache() of the {model}, or omnireuse.disable)",
            )

    def was_called_by(self, caller: Any) -> None:
        """Another pipeline has called a denoiser of the session's pipeline."""
        kind = type(caller).__name__
        if kind not in self._said and not self._has_reuse(caller):
            self._say(
                kind,
                f"{kind} shares a denoiser with the {self._name} that reuse is enabled on (as after from_pipe), and "
                "reuses nothing itself; call omnireuse.enable on it, too",
            )

    def have_replaced_the_denoiser(self) -> None:
        """The pipeline has another denoiser in mid-run, as for steps in another precision."""
        self._stats.fell_back("computing every step")
        self._say(
            "replaced",
            f"the denoiser of the {self._name} was replaced in mid-run: its other steps are computed, since a forecast "
            "must not mix outputs of two models",
        )

    def _say(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning("%s", message)
