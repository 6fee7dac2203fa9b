"""Keep encoder outputs: on the device while the encoder cache says so, then in host memory and outer tiers."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.base.validation import field_error
from omnireuse.errors import ConfigError, StateError, WrongTypeError
from omnireuse.stores.memory import MemoryStore
from omnireuse.stores.tier import Tier, TieredStore
from omnireuse.stores.trees import compact_copy, flatten, storage_bytes, unflatten
from omnireuse_engines.vllm.interface import EncoderKey
from omnireuse_engines.vllm.write_behind import WriteBehind

__all__ = ["EncoderOutput", "EncoderOutputStore"]

_COUNTERS = ("puts", "drops", "loads_host", "loads_outer", "load_misses", "mismatched")


@dataclass(frozen=True)
class EncoderOutput:
    """One output in storage of its own.

    Args:
        value: a tensor, or tuples, lists and dicts of tensors (several levels of features). Read-only by contract.
        num_embeds: its size in encoder embeddings, as the cache counts it.
        num_bytes: its size in bytes.
    """

    value: Any
    num_embeds: int
    num_bytes: int

    def to(self, device: torch.device) -> EncoderOutput:
        """Return the output on another device, through pinned memory; on the same one, the same tensors."""
        skeleton, leaves = flatten(self.value)
        return EncoderOutput(
            unflatten(skeleton, [_move(leaf, device) for leaf in leaves]), self.num_embeds, self.num_bytes
        )


class EncoderOutputStore:
    """Keep the tensors of encoder outputs. The caller chooses those on the device, by `put` and `drop`.

    An output is written to the outer tiers when it is put, and moves to host memory when it is dropped from the
    device. `load` brings it back from the nearest place that has it. One thread owns the store, and one CUDA stream:
    copies to and from pinned memory are ordered by it and wait for nothing.

    Args:
        device: where outputs are used.
        host_bytes: budget of the host tier in bytes, least recently used first out; 0 for none. Pinned for CUDA.
        outer: a tier, or several, outside the process. Any failure there is a counted miss.
        weights: with an outer tier, the name of the encoder's weights by their content (a checkpoint hash). `reset`
            changes it.

    Raises:
        ConfigError: a negative budget, or an outer tier without `weights`.

    Cost: `put` copies the output once on the device, and with outer tiers waits for it and writes it to each; with
    `WriteBehind` around them it waits for nothing.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        host_bytes: int = 0,
        outer: Tier | TieredStore | WriteBehind | None = None,
        weights: str = "",
    ) -> None:
        if host_bytes < 0:
            raise field_error("EncoderOutputStore", "host_bytes", "be ≥ 0", host_bytes, do="0 is no host tier")
        self.device = torch.device(device)
        self._host = MemoryStore[EncoderOutput](max_bytes=host_bytes) if host_bytes else None
        self._outer = outer
        self._on_device: dict[EncoderKey, EncoderOutput] = {}
        self._num_bytes = 0
        self._counters: Counter[str] = Counter()
        self._set_weights(weights)

    def __repr__(self) -> str:
        return f"EncoderOutputStore({self.device}, {self.stats()})"

    def __contains__(self, key: object) -> bool:
        return key in self._on_device

    @property
    def on_device(self) -> set[EncoderKey]:
        """The outputs on the device (a copy)."""
        return set(self._on_device)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self._num_bytes

    def stats(self) -> dict[str, int]:
        """Return counters and sizes; failures of a tier are counted by the tier."""
        return {
            **{name: self._counters[name] for name in _COUNTERS},
            "device_entries": len(self._on_device), "device_bytes": self._num_bytes,
            "host_entries": 0 if self._host is None else len(self._host),
            "host_bytes": 0 if self._host is None else self._host.num_bytes,
        }  # fmt: skip

    def compact(self, output: object, num_embeds: int) -> EncoderOutput:
        """Copy an output for keeping: on the device, detached, and so that a view does not keep its base alive.

        Raises:
            WrongTypeError: it is made of more than dense tensors and plain values.
        """
        skeleton, leaves = flatten(output)
        tensors = []
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise WrongTypeError("encoder output: must be made of tensors, got a numpy array; use torch.from_numpy")
            tensors.append(compact_copy(leaf.detach().to(self.device)))
        return EncoderOutput(unflatten(skeleton, tensors), num_embeds, storage_bytes(tensors))

    def put(self, key: EncoderKey, output: object, num_embeds: int, *, outer: bool = True) -> EncoderOutput:
        """Keep a copy of `output` on the device and in every outer tier, in place of an earlier one.

        `output` may be an `EncoderOutput` that `compact` returned; it is kept as it is. `outer=False` leaves the outer
        tiers alone, because it comes from there.

        Raises: as `compact`.
        """
        kept = output if isinstance(output, EncoderOutput) else self.compact(output, num_embeds)
        self._place(key, kept)
        self._counters["puts"] += 1
        if outer and self._outer is not None:
            self._outer.put(_name(key), (kept.num_embeds, kept.value), namespace=self._namespace)
        return kept

    def get(self, key: EncoderKey) -> Any:
        """Return the output on the device, to be read only.

        Raises:
            StateError: it is not there.
        """
        kept = self._on_device.get(key)
        if kept is None:
            raise StateError(
                f"encoder output {key}: must be on the device, got absent; put or load it before it is used, and hold "
                "it in the encoder cache for as long as it is"
            )
        return kept.value

    def load(self, key: EncoderKey, num_embeds: int) -> EncoderOutput | None:
        """Bring an output onto the device from a tier below it; None, counted, if none has it with this size."""
        kept = self._on_device.get(key) or self._load_host(key) or self._load_outer(key)
        if kept is None or kept.num_embeds != num_embeds:
            self._counters["load_misses" if kept is None else "mismatched"] += 1
            return None
        self._place(key, kept)
        return kept

    def _load_host(self, key: EncoderKey) -> EncoderOutput | None:
        found = None if self._host is None else self._host.lookup(key, None)
        if found is None:
            return None
        self._counters["loads_host"] += 1
        return found.to(self.device)

    def _load_outer(self, key: EncoderKey) -> EncoderOutput | None:
        found = None if self._outer is None else self._outer.lookup(_name(key), None, namespace=self._namespace)
        if found is None:
            return None
        self._counters["loads_outer"] += 1
        num_embeds, value = found
        return self.compact(value, num_embeds)

    def drop(self, key: EncoderKey) -> None:
        """Move an output from the device to the host tier; one that is not on the device is left alone."""
        kept = self._on_device.pop(key, None)
        if kept is None:
            return
        self._num_bytes -= kept.num_bytes
        self._counters["drops"] += 1
        if self._host is not None:
            copy = self._host.peek(key)  # put again, so that it counts as used now; copied only once
            if copy is None or copy.num_embeds != kept.num_embeds:
                copy = kept.to(torch.device("cpu"))
            self._host.put(key, copy, copy.num_bytes)

    def reset(self, weights: str = "") -> None:
        """Forget every output, because the encoder's weights changed: a load is a miss until the output is put again.

        In every tier: outer ones keep what they have, and writes that still wait, under the name of the old weights.
        Call it after the update, and before anything is put that was encoded with the new weights.

        Args:
            weights: the name of the new weights, by which processes with equal weights find each other's outputs. ""
                if there is none, as after an update in place: a random name, which nobody else has.

        Raises:
            ConfigError: `weights` is the name of the weights before.
        """
        if weights and weights == self._weights:
            raise ConfigError(
                f"EncoderOutputStore.reset(weights={weights!r}): field must not be the name of the weights before, or "
                "their outputs would be found; give the digest of the new weights, or none"
            )
        self._set_weights(weights or secrets.token_hex(16))
        self._on_device.clear()
        self._num_bytes = 0
        if self._host is not None:
            self._host.clear()

    def assert_invariants(self) -> None:
        """Assert that the sums are right and that the host tier respects its budget."""
        held = self._on_device.values()
        assert self._num_bytes == sum(kept.num_bytes for kept in held), "num_bytes is not the sum"
        for kept in held:
            assert kept.num_bytes == storage_bytes(flatten(kept.value)[1]), "an output has another size than it says"
        if self._host is not None:
            assert self._host.num_bytes <= (self._host.max_bytes or 0), "the host tier is over its budget"
            assert self._host.num_bytes == sum(kept.num_bytes for kept in self._host.snapshot().values()), "host sum"

    def _place(self, key: EncoderKey, kept: EncoderOutput) -> None:
        before = self._on_device.get(key)
        self._num_bytes += kept.num_bytes - (0 if before is None else before.num_bytes)
        self._on_device[key] = kept

    def _set_weights(self, weights: str) -> None:
        if self._outer is not None and not weights:
            raise ConfigError(
                "EncoderOutputStore(weights=''): field must name the encoder's weights if there is an outer tier, "
                "or another model's outputs are found there; pass a hash of the checkpoint"
            )
        self._weights, self._namespace = weights, f"encoder:{weights}"


def _name(key: EncoderKey) -> str:
    return hashlib.blake2b(json.dumps(tuple(key)).encode(), digest_size=20).hexdigest()


def _move(leaf: object, device: torch.device) -> torch.Tensor:
    assert isinstance(leaf, torch.Tensor)
    if leaf.is_cuda and device.type == "cpu":
        # Ordered with the encoder and with any later copy back by the stream; nobody reads it on the CPU.
        pinned = torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=True)
        return pinned.copy_(leaf, non_blocking=True)
    return leaf.to(device, non_blocking=leaf.is_pinned())
