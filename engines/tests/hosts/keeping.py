"""What a process keeps."""

from __future__ import annotations

import gc

import torch

from omnireuse.loop.generation import Generation


def live_generations() -> int:
    """Runs with reuse whose state is alive."""
    gc.collect()
    return sum(isinstance(each, Generation) for each in gc.get_objects())


def bytes_of_tensors() -> int:
    """Bytes of all storages that tensors of this process hold."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    storages = [each.untyped_storage() for each in tensors if each.device.type == "cpu"]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
