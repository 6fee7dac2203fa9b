"""Other tools around a denoiser: what they wrap, and how they are kept from looking into ours."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

__all__ = ["keep_out_of_graphs", "unwrapped"]

# By name, because PEFT need not be installed.
_INSIDE = {
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "PeftModel": "base_model",
    "BaseTuner": "model",
}


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The model inside what `torch.compile`, PEFT or data parallelism made of it; a plain module itself."""
    inside: Any = module
    while True:
        name = next((_INSIDE[cls.__name__] for cls in type(inside).__mro__ if cls.__name__ in _INSIDE), None)
        if name is None:
            return inside  # type: ignore[no-any-return]  # attributes of modules are not typed
        inside = getattr(inside, name)


@cache
def keep_out_of_graphs() -> None:
    """Let `torch.compile` run our code as it stands wherever it meets it inside a compiled model.

    Traced, a decision would become a constant of the graph, or a recompilation at each step.
    """
    import torch._dynamo  # here, because it is slow to import and needed by few

    torch._dynamo.trace_rules.add("omnireuse.diffusion")
