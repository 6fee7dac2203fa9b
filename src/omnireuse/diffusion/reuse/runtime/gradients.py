"""No reuse where gradients flow: what stands in for a computed value is cut off from the parameters."""

from __future__ import annotations

from itertools import chain

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.generation import CUT
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall
from omnireuse.errors import StateError

__all__ = ["refuse_gradients"]


def refuse_gradients(call: DenoiserCall) -> None:
    """Refuse a call whose output would carry gradients, whether it will be computed or not.

    Asked before anything runs, because a reused call has no output to look at, and reentrant checkpointing hides the
    graph from the blocks.

    Raises:
        StateError: autograd is on, and a parameter or an input requires a gradient.
    """
    if not torch.is_grad_enabled():
        return
    given = (leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor))
    if any(tensor.requires_grad for tensor in chain(given, call.module.parameters())):
        raise StateError(CUT)
