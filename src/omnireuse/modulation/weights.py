"""The weights of one projection: have they changed, and where are they?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from omnireuse.fingerprints.checksums import checksums
from omnireuse.fingerprints.tensors import plain_tensors, sampled
from omnireuse.fingerprints.watch import Watch

__all__ = ["Weights", "contents"]

ALIGNED = 64
"""Kernels take other ways through weights at other addresses modulo this, and sum in another order."""
_NO_STATE = frozenset({"training", "_compiled_call_impl"})


class Weights:
    """The parameters of a module and all else that its output depends on.

    Attributes:
        away: what the parameters' data was moved to; empty if they are at home.
        are_hidden: whether the parameters are empty for now, so that nobody moves what is away.
        is_in: whether the data that is away is in for a moment.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.away: list[torch.Tensor] = []
        self.are_hidden = self.is_in = False
        self._offsets: list[int] = []
        self.note()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those of the module itself."""
        return [each for each in self._module._parameters.values() if each is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes of the data."""
        return sum(each.nbytes for each in self.parameters)

    @property
    def numel(self) -> int:
        """Number of weights."""
        return sum(each.numel() for each in self.parameters)

    @property
    def can_leave(self) -> bool:
        """Whether the data can be moved: plain tensors of numbers. All else that a class of parameters knows stays on
        the parameter. Quantised weights stay, because tensors beside them belong to them."""
        return all(
            isinstance(each, nn.Parameter)
            and type(each.data) is torch.Tensor
            and each.is_floating_point()
            and each.is_contiguous()
            and each.device.type != "meta"
            for each in self.parameters
        )

    @property
    def are_as_they_were(self) -> bool:
        """Whether all is as it was when it was noted. Cost: a few microseconds."""
        return self._watch.holds()

    @property
    def were_written(self) -> bool:
        """Whether a tensor that was there then has a new version."""
        return self._watch.is_written

    @property
    def are_elsewhere(self) -> bool:
        """Whether somebody has put other data into the parameters than what is away."""
        pairs = zip(self.parameters, self.away, strict=False)
        return any(each.data_ptr() != away.data_ptr() for each, away in pairs)

    def note(self) -> None:
        """Take what is there as unchanged."""
        own, self._watch = vars(self._module), Watch()
        for each in (*own["_parameters"].values(), *own["_buffers"].values()):
            self._watch.tensors += [] if each is None else plain_tensors(each)
        self._watch.probes.append((_held, self._module))
        self._watch.start()

    def inner_tensors(self) -> Iterator[torch.Tensor]:
        """The parameters and buffers that have data; of wrappers (quantised weights), those within."""
        own = vars(self._module)
        parameters = self.away if self.are_hidden else own["_parameters"].values()
        for each in (*parameters, *own["_buffers"].values()):
            if isinstance(each, torch.Tensor):
                inside = plain_tensors(each.data if type(each) is nn.Parameter else each)
                yield from (part.as_subclass(torch.Tensor) for part in inside if not part.is_meta and part.numel())

    @torch.inference_mode(False)  # what is made in inference mode does not count its changes
    def leave(self, put: Callable[[torch.Tensor], torch.Tensor], *, is_there: bool = False) -> None:
        """Move the data.

        Args:
            put: gives the same values in another place; the data itself if it is there.
            is_there: whether the data counts as away where it is: somebody brings it in at each call.
        """
        data = [each.data for each in self.parameters]
        moved = [put(each) for each in data]
        if is_there or any(one is not other for one, other in zip(data, moved, strict=True)):
            self._offsets = [each.data_ptr() % ALIGNED for each in data]
            self.away = moved
            self._set(moved)

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Bring the data in for a moment. Cost: its copy to the device, if that is not the host's memory."""
        self.is_in = True
        try:
            self._set(self._copies(device))
            yield
        finally:
            self.rest(hidden=self.are_hidden)
            self.is_in = False

    def rest(self, *, hidden: bool) -> None:
        """Put the data that is away into the parameters, or nothing."""
        if self.away:
            self.are_hidden = hidden
            self._set([each.new_empty(0) for each in self.away] if hidden else self.away)

    def come_back(self, device: torch.device) -> None:
        """Move the data to a device, in memory of its own."""
        if self.away:
            data, self.away, self.are_hidden = self._copies(device), [], False
            self._set(data)

    @torch.inference_mode(False)
    def _copies(self, device: torch.device) -> list[torch.Tensor]:
        """What is away in memory of its own, aligned as it was at home."""
        copies = []
        for each, offset in zip(self.away, self._offsets, strict=True):
            room = torch.empty(each.nbytes + ALIGNED, dtype=torch.uint8, device=device)
            start = (offset - room.data_ptr()) % ALIGNED
            copies.append(room[start : start + each.nbytes].view(each.dtype).view(each.shape).copy_(each))
        return copies

    @property
    def alignment(self) -> dict[torch.device, tuple[int, ...]]:
        """Of the data, on the device where it is."""
        data = [each for each in self.parameters if type(each.data) is torch.Tensor and each.device.type != "meta"]
        return {data[0].device: tuple(each.data_ptr() % ALIGNED for each in data)} if data else {}

    @torch.inference_mode(False)
    def _set(self, data: Sequence[torch.Tensor]) -> None:
        for parameter, each in zip(self.parameters, data, strict=True):
            parameter.data = each
        self.note()


def _held(module: nn.Module) -> list[Any]:
    """What a layer has beside its hooks."""
    own = vars(module)
    others = [each for name, each in own.items() if name not in _NO_STATE and not isinstance(each, dict)]
    return [type(module), *own["_parameters"].values(), *own["_buffers"].values(), *others]


def contents(weights: Sequence[Weights], *, is_whole: bool = False) -> list[dict[bool, Any]]:
    """What tells the content of each: under True a sum over all words, of what is not away; under False a sample of
    what is away.

    Args:
        is_whole: both of each.

    Cost: two reads of each weight that is not away, and one host synchronisation for each device.
    """
    tensors = [[*each.inner_tensors()] for each in weights]
    found = [
        {False: sampled(inside)} if is_whole or each.away else {} for each, inside in zip(weights, tensors, strict=True)
    ]
    whole = [place for place, each in enumerate(weights) if is_whole or not each.away]
    sums = iter(checksums(tensor for place in whole for tensor in tensors[place]))
    return [
        each | ({True: [next(sums) for _ in tensors[place]]} if place in whole else {})
        for place, each in enumerate(found)
    ]
