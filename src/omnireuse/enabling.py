"""Reuse on a pipeline, by a value that opens itself: a strategy, a target, a profile, a named cache, or your own."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist

from omnireuse.handle import Handle
from omnireuse.hooks.denoisers import denoisers_of, forward_group
from omnireuse.hooks.extension import Extension
from omnireuse.hooks.opening import Openable

__all__ = ["enable"]


def enable(
    pipeline: object, value: Openable, *, group: dist.ProcessGroup | None = None, extensions: Iterable[Extension] = ()
) -> Handle:
    """Reuse on a pipeline, as the value has it, until `disable`. `omnireuse.enable` makes the value from keywords.

    Args:
        group: the ranks that decide together; None for those that share the denoiser's forward.
        extensions: work beside those of the value.
    """
    group = forward_group(denoisers_of(pipeline)) if group is None else group
    strategy, name, own = value.open(pipeline, group)
    return Handle(pipeline, (strategy, name, (*own, *extensions)), group)
