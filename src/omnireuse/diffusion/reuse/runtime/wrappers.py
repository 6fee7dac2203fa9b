"""Other tools around a denoiser: what they wrap, and how they are kept from looking into ours."""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["is_compiled_whole", "keep_out_of_graphs", "unwrapped"]

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
    return _layers(module)[-1]


def is_compiled_whole(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` makes one graph of this denoiser, blocks and all."""
    return any(
        getattr(layer, "_compiled_call_impl", None) is not None
        or "OptimizedModule" in (cls.__name__ for cls in type(layer).__mro__)
        for layer in _layers(module)
    )


def _layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """A module and all that it wraps, the model itself last."""
    names = [cls.__name__ for cls in type(module).__mro__]
    attribute = next((_INSIDE[name] for name in names if name in _INSIDE), None)
    return [module] if attribute is None else [module, *_layers(getattr(module, attribute))]


@cache
def keep_out_of_graphs() -> None:
    """Let `torch.compile` run our code as it stands wherever it meets it inside a compiled model.

    Traced, a decision would become a constant of the graph, or a recompilation at each step.
    """
    import torch._dynamo  # here, because it is slow to import and needed by few

    torch._dynamo.trace_rules.add("omnireuse.diffusion")
