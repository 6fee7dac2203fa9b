"""Notice when what a prompt's embedding depends on has changed: weights, structure, adapters, dtype, settings.

A hit looks only at what is cheap: whether any version counter moved, whether a storage or a layer was freed, who the
parts are, the state of LoRA layers, a few addresses. Whatever looks different there leads to an audit of everything,
and so does every miss. An audit that finds a change starts a new epoch.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any

import torch
from torch import nn

from omnireuse.diffusion.prompts.changes import changes
from omnireuse.diffusion.prompts.keys import Frozen, KeyRules, UnkeyableError, freeze
from omnireuse.diffusion.prompts.module_state import ModuleState
from omnireuse.diffusion.prompts.reads import IS_NONE, Reads
from omnireuse.errors import ConfigError

__all__ = ["WEIGHTS", "EncoderWatch"]

logger = logging.getLogger("omnireuse")

_RULES = KeyRules()
WEIGHTS = ("versions", "storages", "told")
_SLICE = 8  # addresses looked at per hit and encoder, in turn, beside the first


class EncoderWatch:
    """The state of one pipeline's encoders, as a number (the epoch) and a key part.

    Seen at once: an in-place change that torch counts (``load_state_dict``, ``copy_``, optimizers), a replaced
    encoder, tokenizer or submodule, adapters loaded, scaled, fused, disabled or unloaded, a cast, another setting
    that ``encode_prompt`` reads, ``tensor.data = other`` unless somebody keeps the old storage (then in turn, or at
    once with ``storages``). Seen by the next audit (every miss, and the first look after an optimizer step): writes
    into ``tensor.data``, which torch does not count, as far as 64 sampled values of each tensor show them; an engine
    that writes so calls :meth:`bump`. A move to another device is not a change.

    Args:
        reads: what the pipeline's ``encode_prompt`` reads.
        weights: ``versions`` (all of the above), ``storages`` (and the address of every tensor at every hit), or
            ``told`` for an engine that announces every update by :meth:`bump`: then weights are not looked at.

    Raises:
        ConfigError: another ``weights``.
    """

    def __init__(self, reads: Reads, *, weights: str = "versions") -> None:
        if weights not in WEIGHTS:
            raise ConfigError(f"EncoderWatch(weights={weights!r}): field must be one of {WEIGHTS}, got {weights!r}")
        self._reads, self._looks_at_weights = reads, weights != "told"
        self._slice = None if weights == "storages" else _SLICE
        self._lock = threading.RLock()
        self.epoch = self.num_audits = 0
        self._is_suspect = True
        self._count = 0
        self._parts: list[_HeldPart] = []
        self._states: list[ModuleState] = []
        self._settings: list[tuple[str, ...]] = []
        self._own_output: set[tuple[str, ...]] = set()
        this = weakref.ref(self)

        def on_gone(_ref: object) -> None:
            watch = this()
            if watch is not None:
                watch._is_suspect = True

        self._on_gone = on_gone  # without a reference to the watch, so that it ends with its pipeline
        changes.open()
        self._close = weakref.finalize(self, changes.close)

    def close(self) -> None:
        """Let go of the process-wide hooks."""
        self._close()

    def bump(self) -> int:
        """Start a new epoch, which it returns: everything encoded so far is out of date."""
        with self._lock:
            self.epoch += 1
            return self.epoch

    def current(self, pipeline: object) -> tuple[Frozen, ...]:
        """The key part that stands for everything but the arguments; its first element is the epoch.

        Raises:
            UnkeyableError: an encoder is in training mode and has dropout or batch statistics.
        """
        if self._is_suspect or self._count != changes.count or self._looks_changed(pipeline):
            self.audit(pipeline)
        for state in self._states:
            if state.draws_in_training and state.is_training():
                raise UnkeyableError("training")
        adapters = tuple([state.adapters() for state in self._states])
        settings = tuple([freeze(_read_setting(pipeline, chain), _RULES) for chain in self._settings])
        return (self.epoch, adapters, settings, _autocast())

    def audit(self, pipeline: object) -> None:
        """Look at everything; a difference starts a new epoch."""
        with self._lock:
            # Read before looking: an event during the audit must lead to another one.
            self._count, self._is_suspect = changes.count, False
            found, self._settings = self._find(pipeline)
            states = [
                ModuleState(part, self._on_gone)
                for part in found.values()
                if isinstance(part, (nn.Module, torch.Tensor))
            ]
            is_same = (
                len(found) == len(self._parts)
                and all(old.name in found and old.is_still(found[old.name]) for old in self._parts)
                and all(new.continues(old) for new, old in zip(states, self._states, strict=True))
            )
            if self.num_audits and not is_same:
                self.epoch += 1
            self.num_audits += 1
            self._parts = [_HeldPart(name, part) for name, part in found.items()]
            self._states = states
            if not is_same:
                self._warn_of_uncounted()

    def forget_own_output(self, before: tuple[Frozen, ...], after: tuple[Frozen, ...]) -> set[tuple[str, ...]]:
        """Leave out, from now on, the settings that an encode changed itself: a call counter is no input."""
        with self._lock:
            changed = {c for c, old, new in zip(self._settings, before[2], after[2], strict=False) if old != new}
            self._own_output |= changed
            self._settings = [c for c in self._settings if c not in changed]
            return changed

    def parts(self, pipeline: object) -> dict[str, object]:
        """The watched objects by name: encoders, tokenizers, processors."""
        return self._find(pipeline)[0]

    def device(self) -> torch.device | None:
        """Where the first encoder has its weights now; None without weights."""
        return next((device for state in self._states if (device := state.device()) is not None), None)

    def _looks_changed(self, pipeline: object) -> bool:
        for part in self._parts:
            if not part.is_still(getattr(pipeline, part.name, None)):
                return True
        if not self._looks_at_weights:
            return False
        return any(s.was_written() or not s.storages_are_known(self._slice) for s in self._states)

    def _warn_of_uncounted(self) -> None:
        uncounted = sum([state.num_uncounted for state in self._states])
        if uncounted and self._looks_at_weights:
            logger.warning(
                "%d weights of the text encoders have no version counter (made in inference mode) or no storage "
                "(sparse): their changes are noticed by samples at best; call bump_epoch after each update",
                uncounted,
            )

    def _find(self, pipeline: object) -> tuple[dict[str, object], list[tuple[str, ...]]]:
        """Objects by name, and the chains whose plain values are read anew for every key."""
        chains = {(name,) for name in self._reads.objects} | self._reads.chains
        if not self._reads.complete:
            chains |= {(name,) for name in _all_names(pipeline)}
        parts: dict[str, object] = {}
        settings: set[tuple[str, ...]] = set()
        for chain in sorted(chains - self._own_output):
            if _is_plain(_read_setting(pipeline, chain)):
                if chain[0] not in self._reads.stores:
                    settings.add(chain)
            else:
                # A chain that ends in an object watches its root: a part of a module changes with the module.
                part = parts[chain[0]] = getattr(pipeline, chain[0], None)
                if callable(getattr(part, "batch_decode", None)):
                    settings |= {(chain[0], name) for name in ("padding_side", "truncation_side", "model_max_length")}
        return parts, sorted(settings)


class _HeldPart:
    """An object of the pipeline, held weakly where that is possible: who drops an encoder wants its memory back."""

    __slots__ = ("name", "ref")

    def __init__(self, name: str, part: Any) -> None:
        self.name = name
        try:
            self.ref: Any = weakref.ref(part)
        except TypeError:
            self.ref = lambda: part

    def is_still(self, part: object) -> bool:
        return self.ref() is part


def _read_setting(pipeline: object, chain: tuple[str, ...]) -> Any:
    """``pipeline.a.b`` for ("a", "b"); None where a link is missing."""
    value: Any = pipeline
    for name in chain:
        if name == IS_NONE:
            return value is None
        if name == "dtype" and isinstance(value, nn.Module):
            # The property of diffusers and transformers models walks all modules; the first float weight tells as much.
            return next((p.dtype for p in value.parameters() if p.is_floating_point()), None)
        value = getattr(value, name, None)
    return value


def _is_plain(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return False
    try:
        freeze(value, _RULES)
    except UnkeyableError:
        return False
    return True


def _all_names(pipeline: object) -> list[str]:
    """Every part and public plain value: what may be read when the source does not say."""
    names = [name for name in getattr(pipeline, "__dict__", {}) if not name.startswith("_")]
    if isinstance(pipeline, nn.Module):
        names += [name for name, _ in [*pipeline.named_children(), *pipeline.named_parameters(recurse=False)]]
    return [name for name in names if name not in ("device", "encode_prompt", "training")]


def _autocast() -> Frozen:
    on = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple([(kind, str(torch.get_autocast_dtype(kind))) for kind in on]) if on else None
