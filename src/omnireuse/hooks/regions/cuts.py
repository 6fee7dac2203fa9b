"""Denoiser calls for some rows of their batch: cut as proposed, and verified before a cut call counts."""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.hooks.regions.rows import Dimension, differing_parts, flattened, rows_of, unflattened, with_rows
from omnireuse.hooks.run import DenoiserCall
from omnireuse.loop.strategy import Strategy

__all__ = ["AS_ONE", "Cuts", "decide_as_one", "has_rows", "opaque"]

AS_ONE = "one decision for a whole batch"
"""The name of the fallback in a summary."""
_PLAIN = (torch.Tensor, numbers.Number, str, bytes, type(None), torch.dtype, torch.device, type)
"""Kinds of arguments that a call leaves as they are, or whose change is seen."""


def decide_as_one(call: DenoiserCall, why: str) -> None:
    """Count a run whose batch is decided on as a whole, and say why, once for each reason."""
    call.run.generation.fall_back(
        AS_ONE, f"{call.model}: the samples of a batch are computed and decided on together, not each: {why}"
    )


def has_rows(call: DenoiserCall, strategy: Strategy) -> bool:
    """True if a strategy decides on each row of this call's batch."""
    known = call.run.latents
    if strategy.decides_by_sample and known is not None and known.ndim and known.shape[0] > call.batch:
        decide_as_one(call, f"its input has {call.batch} rows for {known.shape[0]} samples")
    return strategy.decides_by_sample and call.batch > 1


class Cuts:
    """Which calls can be computed for some rows of their batch alone; one for all runs of a handle.

    The first call that is cut is computed whole as well, and its rows are compared with those of the whole result,
    which is used. That is done again only if rows differ in an argument in which they were alike before, since a
    wrong cut of that argument did not show. A call that fails, or differs, is computed whole from then on.

    Args:
        dimensions: class name of a denoiser -> argument -> dimension of its rows, or None if all rows share it.
    """

    def __init__(self, dimensions: Mapping[str, Mapping[str, Dimension]]) -> None:
        self._dimensions = dimensions
        self._verified: dict[Hashable, set[Hashable]] = {}
        """Configurations of calls, and the parts of their arguments in which the rows differed when cut and whole
        calls were compared."""
        self._whole: dict[Hashable, str] = {}
        """Configurations of calls that are computed whole, and why."""

    def allows(self, call: DenoiserCall, samples: int) -> bool:
        """True if the call may be cut into that many samples. Otherwise the run is counted, and the reason is said."""
        if call.batch % samples:
            self.refuse(call, f"its input has {call.batch} rows for {samples} samples")
        why = self._whole.get(call.configuration)
        if why is not None:
            decide_as_one(call, why)
        return why is None

    def refuse(self, call: DenoiserCall, why: str) -> None:
        """Compute calls of this configuration whole from now on."""
        self._whole.setdefault(call.configuration, why)

    def refuse_like(self, call: DenoiserCall, other: DenoiserCall) -> None:
        """Compute calls of this configuration whole, as those of the other's."""
        self.refuse(call, self._whole[other.configuration])

    def compute(self, call: DenoiserCall, rows: Sequence[int], last: object = None) -> Any:
        """The result of a call, whose other rows need not be computed.

        Args:
            rows: indices.
            last: a result of an equal call, for the rows that are left out; None for zeros.

        Cost: a forward more if a cut is verified, at most one for each configuration as a rule; a comparison, which
        waits for the device, of each argument whose rows were never seen to differ.
        """
        key = call.configuration
        if key not in self._whole and (unknown := opaque(call)) is not None:
            self.refuse(call, f"the rows of {unknown} are not known")
        if key in self._whole:
            return call.make()
        verified = self._verified.get(key)
        differing = differing_parts(call.arguments, rows, call.batch, verified or ())
        if verified is None or differing:
            return self._verify(call, rows)
        try:
            result = call.make_with(self._cut(call, rows))
            if not _is_batch(result, len(rows)):
                raise ValueError(f"{len(rows)} of {call.batch} rows have another number of results")
        except Exception as error:  # of a cut that was verified with other rows
            self.refuse(call, _words(error))
            return call.make()
        computed, form = flattened(result, len(rows))
        before = [None] * len(computed) if last is None else flattened(last, call.batch)[0]
        pairs = zip(before, computed, strict=True)
        return unflattened([_filled(old, call.batch, rows, new) for old, new in pairs], form)

    def is_divided(self, call: DenoiserCall, result: object) -> bool:
        """True if a result of the whole call has a row for each of the batch; otherwise such calls are not cut."""
        if not (found := _is_batch(result, call.batch)):
            self.refuse(call, "its result has no row for each of them")
            self.allows(call, 1)
        return found

    def _cut(self, call: DenoiserCall, rows: Sequence[int]) -> dict[str, Any]:
        names = [cls.__name__ for cls in type(call.module).__mro__]
        declared = next((self._dimensions[name] for name in names if name in self._dimensions), {})
        return rows_of(call.arguments, rows, call.batch, declared)

    def _verify(self, call: DenoiserCall, rows: Sequence[int]) -> Any:
        """The result of the whole call, and a comparison with it of the same call for some rows."""
        first = range(len(rows))
        # The first rows show nothing if a model takes as many first rows of what was not cut.
        rows = [row + call.batch - len(rows) for row in first] if list(rows) == [*first] else rows
        differing = differing_parts(call.arguments, rows, call.batch)
        # Copied before and compared after: what a cut call writes to its arguments is lost, and must not be shared.
        given, untouched = (_copied(self._cut(call, rows)) for _ in range(2))
        # Before the whole call, whose result may lie in a buffer that the next call writes to (CUDA graphs).
        part, why = None, None
        try:
            with _random_state_kept(call):
                part = _copied(call.make_with(given))
        except Exception as error:
            why = _words(error)
        whole = call.make()
        if not self.is_divided(call, whole):
            return whole
        why = why or _difference(call, whole, part, rows)
        if why is None and _writes(call, given, untouched):
            why = "it writes to its arguments"
        if why is None:
            self._verified.setdefault(call.configuration, set()).update(differing)
        else:
            self.refuse(call, why)
        return whole


def _filled(old: Any, batch: int, rows: Sequence[int], new: Any) -> Any:
    """A leaf of the whole result, from that of some rows."""
    if not isinstance(new, torch.Tensor):
        return new
    return with_rows(new.new_zeros((batch, *new.shape[1:])) if old is None else old, rows, new)


def _difference(call: DenoiserCall, whole: object, part: object, rows: Sequence[int]) -> str | None:
    """What tells the rows' results of a cut call from those of the whole call; None for nothing but rounding.

    Rounding depends on the order of sums, and kernels choose that by shape. In float32 it leaves 1e-7 to 1e-5 of the
    output; in half precision every layer rounds anew, and what remains is about one unit in the last place. Rows that
    got the values of others are off by their whole difference, 1e-3 and more. The limit lies between: 1e-4 of a row's
    magnitude, and 2 units in the last place if those are larger.
    """
    found, form = _tensors(part, len(rows))
    every, whole_form = _tensors(whole, call.batch)
    expected = [each.index_select(0, torch.tensor(rows, device=each.device)) for each in every]
    if [each.shape for each in expected] != [each.shape for each in found] or form != whole_form:
        return "computed alone, some have a result of another form"
    wrong = [_are_off(*pair).sum() for pair in zip(expected, found, strict=True)]
    # Equal on all ranks: the next step is computed by all of them in the same way.
    share = call.run.generation.agreement.ratio(
        torch.stack([sum(wrong[1:], wrong[0]), torch.ones_like(wrong[0])]).float()
    )
    return f"computed alone, rows {', '.join(map(str, rows))} have another result" if share else None


def _are_off(expected: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """True for each row that differs by more than rounding."""
    limit = max(1e-4, 2 * torch.finfo(rows.dtype).eps) if rows.is_floating_point() else 0.0
    wide = [each.float().reshape(len(each), -1) for each in (rows - expected, expected)]
    off, size = (torch.linalg.vector_norm(each, dim=1) for each in wide)
    return torch.logical_not(off <= limit * size)


def _is_batch(result: object, batch: int) -> bool:
    tensors, _ = _tensors(result, batch)
    return bool(tensors) and all(tensor.ndim > 0 and tensor.shape[0] == batch for tensor in tensors)


def _tensors(result: object, batch: int) -> tuple[list[torch.Tensor], Any]:
    leaves, form = flattened(result, batch)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], form


def opaque(call: DenoiserCall) -> str | None:
    """The first argument with something else in it than plain values and tensors; None if there is none."""
    for name, value in call.arguments.items():
        for leaf in pytree.tree_leaves(value):
            if not isinstance(leaf, _PLAIN):
                return f"{name} ({type(leaf).__name__})"
    return None


def _copied(tree: object) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.clone, tree)


def _writes(call: DenoiserCall, given: Mapping[str, Any], untouched: Mapping[str, Any]) -> bool:
    """True if a call has changed its arguments, other than its latents, which nobody reads behind the call."""
    for name, value in call.arguments.items():
        some, others = pytree.tree_leaves(given[name]), pytree.tree_leaves(untouched[name])
        is_scratch = any(value is latent for latent in call.latents)
        if not is_scratch and (len(some) != len(others) or not all(map(_are_equal, some, others))):
            return True
    return False


def _are_equal(some: object, other: object) -> bool:
    if not isinstance(some, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(some == other)
    return some.shape == other.shape and bool(((some == other) | (some != some)).all())


def _random_state_kept(call: DenoiserCall) -> AbstractContextManager[None]:
    device = torch.device("cpu") if call.input is None else call.input.device
    devices = [device] if device.type in ("cuda", "xpu") else []
    return torch.random.fork_rng(devices, device_type=device.type if devices else "cuda")


def _words(error: Exception) -> str:
    return f"computed alone, some fail with {type(error).__name__}: {error!s:.200}"
