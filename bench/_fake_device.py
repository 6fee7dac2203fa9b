"""An accelerator that is none: tensors with shapes and devices and no data, and a count of what the host reads.

torch's fake tensors on a device of their own: operations say what they would return, and refuse tensors of two devices,
as an accelerator does. Models of true size run in seconds without memory. torch registers one such device a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import accelerate.hooks
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from bench._true_size import Sampler
from omnireuse.hooks import clock

__all__ = ["FakeSampler", "HostReads", "fake_device", "outside", "real"]

NAME = "fakeacc"
READING = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero"}
"""Operations whose result is the host's."""
COPYING = {"_to_copy", "copy_"}


class HostReads(TorchDispatchMode):
    """Counts operations, and the waits of the host for the device. What it reads is made up: changes of 1 %.

    Attributes:
        count: reads of single values and copies to the host.
        where: the operations that they are.
        operations: of all kinds, views and the host's own among them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = self.operations = 0
        self.where: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        self.operations += name != "device"  # asked by fake tensors alone
        is_on_device = any(isinstance(each, torch.Tensor) and each.device.type == NAME for each in tree_leaves(args))
        if name in READING and is_on_device:
            self._note(name)
        if name == "_local_scalar_dense":
            return 1.0
        if name in ("equal", "is_nonzero"):
            return True
        result = func(*args, **kwargs)
        if name in COPYING and is_on_device and result.device.type == "cpu":
            self._note(name)
        return result

    def _note(self, name: str) -> None:
        self.count += 1
        self.where.append(name)


class _Mode(FakeTensorMode):
    @property
    def avoid_device_init(self) -> bool:
        """Nothing is there to be initialised; torch asks only where it knows the device."""
        return True


@cache
def _registered() -> torch.device:
    _setup_privateuseone_for_python_backend(NAME)
    # Gradient checkpointing asks the process's accelerator, also for tensors of the host.
    module = getattr(torch, NAME)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    # `torch.random.fork_rng` keeps its random state from now on; it has none.
    module.get_rng_state = lambda device=NAME: torch.empty(0, dtype=torch.uint8)
    module.set_rng_state = lambda state, device=NAME: None
    return torch.device(NAME, 0)


@contextmanager
def fake_device() -> Iterator[torch.device]:
    """Within it, tensors have no data. A run's noise levels, one read a run, are real: decisions follow from them."""
    device = _registered()
    with ExitStack() as stack:
        read = outside(clock.noise_levels)
        stack.enter_context(mock.patch.object(clock, "noise_levels", read))
        stack.enter_context(mock.patch.object(FakeTensor, "tolist", _listed))
        stack.enter_context(mock.patch.object(FakeTensor, "numpy", _zeros))
        # torch moves weights by swapping storages, which these tensors have not.
        stack.enter_context(mock.patch.object(torch.nn.Module, "_apply", _apply))
        stack.enter_context(mock.patch.object(accelerate.hooks, "set_module_tensor_to_device", _place))
        stack.enter_context(mock.patch.object(FakeTensor, "data", property(torch.Tensor.detach, _move), create=True))
        stack.enter_context(_Mode(allow_non_fake_inputs=True))
        yield device


def _apply(module: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
    """`Module.to` and its like."""
    for part in module.modules():
        for name, value in [*part._parameters.items(), *part._buffers.items()]:
            if value is not None:
                _place(part, name, value=change(value.detach()))
    return module


def _place(part: torch.nn.Module, name: str, device: Any = None, value: Any = None, **_: Any) -> None:
    """Put a weight on a device, or another value in its place."""
    *outer, name = name.split(".")
    part = part.get_submodule(".".join(outer))
    held = part._parameters if name in part._parameters else part._buffers
    value = held[name] if value is None else value
    moved = value.detach() if device is None else value.detach().to(device)
    held[name] = torch.nn.Parameter(moved, requires_grad=False) if held is part._parameters else moved


def _move(tensor: FakeTensor, value: FakeTensor) -> None:
    tensor.fake_device = value.fake_device


def _listed(tensor: FakeTensor) -> Any:
    """`tolist` as a device has it: one copy to the host, where fake tensors read value by value."""
    return _made_up(tensor.cpu().shape)


def _zeros(tensor: FakeTensor, *_: Any, **__: Any) -> Any:
    with real():
        return torch.zeros(tensor.shape, dtype=tensor.dtype).numpy()


def _made_up(shape: Sequence[int]) -> Any:
    """A change of 1 %: its numerator comes first, then what it is relative to."""
    if len(shape) > 1:
        return [_made_up(shape[1:]) for _ in range(shape[0])]
    return [0.01, *[1.0] * (shape[0] - 1)] if shape else 1.0


@contextmanager
def real() -> Iterator[None]:
    """Tensors are real ones again, on the CPU."""
    with _disable_current_modes():
        yield


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        with real():
            return function(*args)

    return called


class FakeSampler(Sampler):
    """A transformer of true size on the fake device, within `fake_device`. Its scheduler keeps real noise levels."""

    def new_scheduler(self) -> FlowMatchEulerDiscreteScheduler:
        """As `Sampler.new_scheduler`."""
        with real():
            return super().new_scheduler()

    def run(self, steps: int, around: Callable[[int], Any]) -> torch.Tensor:
        """As `Sampler.run`."""
        with real():
            self.scheduler.set_timesteps(steps)
            self.scheduler.set_begin_index(0)
            times = self.scheduler.timesteps.tolist()
        return self.denoise([torch.full((), time, device=self.device) for time in times], around)
