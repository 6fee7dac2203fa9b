"""Other tools around a denoiser: what they wrap."""

from __future__ import annotations

import torch

__all__ = ["is_optimized", "unwrapped", "wrapped_modules"]

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
    return wrapped_modules(module)[-1]


def wrapped_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """A module and all that it wraps, the model itself last."""
    names = [cls.__name__ for cls in type(module).__mro__]
    attribute = next((_INSIDE[name] for name in names if name in _INSIDE), None)
    return [module] if attribute is None else [module, *wrapped_modules(getattr(module, attribute))]


def is_optimized(module: torch.nn.Module) -> bool:
    """Whether this is what `torch.compile(module)` returns."""
    return "OptimizedModule" in (cls.__name__ for cls in type(module).__mro__)
