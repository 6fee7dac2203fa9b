"""Notice when what an embedding depends on has changed."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from omnireuse.pipelines.snapshot import Snapshot, autocast_state, when_suspected
from omnireuse.prompts.keys import Frozen, UnkeyableError, freeze
from omnireuse.prompts.reads import IS_NONE, Reads

__all__ = ["EncoderWatch"]

logger = logging.getLogger("omnireuse")

_EPOCHS = itertools.count()  # of all pipelines, so that no epoch comes again
_TOKENIZER_SETTINGS = ("padding_side", "truncation_side", "model_max_length")


class EncoderWatch:
    """The state of what one pipeline's ``encode_prompt`` reads: the epoch, adapters, settings and autocast.

    Seen by the next look: an in-place change that torch counts, an optimizer step, a replaced part or layer, a cast,
    another storage, other settings and adapters. Seen by the next audit (every miss): writes into ``tensor.data``, as
    far as samples show them. A move to another device is not a change.

    Args:
        reads: what ``encode_prompt`` reads; None: everything.
        on_change: called when a new epoch begins.
    """

    def __init__(self, reads: Reads | None, on_change: Callable[[], None]) -> None:
        self._reads, self._on_change = reads, on_change
        self._lock = threading.RLock()
        self._epoch, self._is_due = next(_EPOCHS), True
        self._snapshot: Snapshot | None = None
        self._settings: list[tuple[str, ...]] = []
        this = weakref.ref(self)

        def suspect(*event: object) -> None:
            watch = this()  # no strong reference: the watch ends with its pipeline
            if watch is not None and (watch._snapshot is None or watch._snapshot.is_touched_by(event)):
                watch._is_due = True

        self._suspect = suspect
        self.close = weakref.finalize(self, when_suspected(suspect))

    def bump(self) -> int:
        """Start a new epoch and return it."""
        with self._lock:
            self._epoch = next(_EPOCHS)
            self._on_change()
            return self._epoch

    def state(self, pipeline: object) -> tuple[Frozen, ...]:
        """The part of a key that stands for everything but the arguments; its first element is the epoch."""
        snapshot = self._snapshot
        if self._is_due or snapshot is None or not (snapshot.has_parts_of(pipeline) and snapshot.has_weights()):
            snapshot = self.audit(pipeline)
        if snapshot.is_training():
            raise UnkeyableError("training")
        settings = tuple([freeze(_read(pipeline, chain)) for chain in self._settings])
        return (self._epoch, snapshot.adapters(), settings, autocast_state() or None)

    def audit(self, pipeline: object) -> Snapshot:
        """Look at everything; a difference starts a new epoch."""
        with self._lock:
            self._is_due = False  # before looking: an event during the audit must lead to another one
            parts, self._settings = self._find(pipeline)
            old, self._snapshot = self._snapshot, Snapshot(parts, self._suspect)
            if old is not None and self._snapshot.continues(old):
                return self._snapshot
            if old is not None:
                self.bump()
            if self._snapshot.num_uncounted:
                logger.warning(
                    "%d weights of the text encoders have no version counter (made in inference mode) or no storage "
                    "(sparse): their changes are noticed by samples at best; call bump_epoch after each update",
                    self._snapshot.num_uncounted,
                )
            return self._snapshot

    def parts(self, pipeline: object) -> dict[str, object]:
        """The watched objects by name: encoders, tokenizers, processors."""
        return self._find(pipeline)[0]

    def device(self) -> torch.device | None:
        """The device of the first encoder's weights now; None without weights."""
        return None if self._snapshot is None else self._snapshot.device()

    def _find(self, pipeline: object) -> tuple[dict[str, object], list[tuple[str, ...]]]:
        """Parts by name, and the chains whose plain values are settings."""
        reads = self._reads or Reads(frozenset((name,) for name in _all_names(pipeline)), frozenset(), frozenset())
        parts: dict[str, object] = {}
        settings: set[tuple[str, ...]] = set()
        for chain in sorted(reads.chains):
            if not _is_plain(_read(pipeline, chain)):
                part = parts[chain[0]] = getattr(pipeline, chain[0], None)  # a part of a part changes with it
                if callable(getattr(part, "batch_decode", None)):
                    settings |= {(chain[0], name) for name in _TOKENIZER_SETTINGS}
            elif chain[0] not in reads.written:
                settings.add(chain)
        return parts, sorted(settings)


def _read(pipeline: object, chain: tuple[str, ...]) -> Any:
    """``pipeline.a.b`` for ("a", "b"); None where a link is missing."""
    value: Any = pipeline
    for name in chain:
        if name == IS_NONE:
            return value is None
        if name == "dtype" and isinstance(value, nn.Module):
            # The property of diffusers and transformers models walks all modules; the first float weight is enough.
            return next((weight.dtype for weight in value.parameters() if weight.is_floating_point()), None)
        value = getattr(value, name, None)
    return value


def _is_plain(value: object) -> bool:
    try:
        freeze(value)
    except UnkeyableError:
        return False
    return not isinstance(value, torch.Tensor)


def _all_names(pipeline: object) -> list[str]:
    """Every part and public plain value: what may be read where the code does not tell."""
    names = [name for name in getattr(pipeline, "__dict__", {}) if not name.startswith("_")]
    if isinstance(pipeline, nn.Module):
        names += [name for name, _ in [*pipeline.named_children(), *pipeline.named_parameters(recurse=False)]]
    return [name for name in names if name not in ("device", "encode_prompt", "training")]
