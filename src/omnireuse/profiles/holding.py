"""Which weights a denoiser has, and how it holds them: plainly, quantised, sharded or elsewhere."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from omnireuse.fingerprints.tensors import plain_tensors, sampled
from omnireuse.hooks.denoisers import unwrapped
from omnireuse.pipelines.snapshot import is_adapter

__all__ = ["PLAIN", "Holding", "held_by", "held_in"]

PLAIN = "plain tensors"
"""How weights are held that nothing has quantised, sharded or packed."""
_PLAIN_CLASSES = ("Tensor", "Parameter", "Buffer")


class Holding(NamedTuple):
    """Which weights there are, and how they are held.

    Attributes:
        weights: digest of names, shapes and 64 values of each weight, without adapters and the wrappers of
            torch.compile; None without any, or if one is sharded or not in memory.
        adapters: LoRA adapters in use, each with a digest of its weights and its scales, as "style (0f1e2d3c)".
        kinds: `PLAIN`, or the classes and dtypes of weights that are held otherwise.
    """

    weights: str | None
    adapters: tuple[str, ...]
    kinds: str


def held_by(denoisers: Iterable[torch.nn.Module]) -> Holding:
    """What the denoisers hold. Weights that accelerate has moved off the device are read where they are."""
    modules = list(map(unwrapped, denoisers))
    scales: dict[str, list[str]] = defaultdict(list)
    for path, layer in (named for module in modules for named in module.named_modules()):
        if is_adapter(layer) and not layer.disable_adapters:
            for name in layer.active_adapters:
                scales[name] += [f"{path} {layer.scaling[name]}"] if name in layer.scaling else []
    found = held_in(list(map(_in_memory, modules)), scales)
    methods = {_quantization(module) for module in modules} - {None}
    return found._replace(kinds=", ".join([found.kinds, *sorted(map(str, methods))]))


def held_in(states: Sequence[Mapping[str, Any]], scales: Mapping[str, Sequence[str]] | None = None) -> Holding:
    """What states hold: tensors, or what quantised layers put in their place, by name.

    Args:
        states: of each model.
        scales: of each LoRA adapter that is in use, as texts.

    Cost: reads 64 values of each tensor, and waits once for each device.
    """
    kinds, is_known = set(), True
    found: dict[str | None, tuple[list[str], list[torch.Tensor]]] = defaultdict(lambda: ([], []))
    with torch._C.DisableTorchFunctionSubclass():
        for number, state in enumerate(states):
            for name, tensor in sorted(_tensors_of(state), key=lambda named: named[0]):
                parts = list(plain_tensors(tensor))
                kind, adapter = _kind_of(tensor, parts), _adapter_of(name)
                kinds.add(kind)
                is_known = is_known and all(map(_is_readable, parts)) and "DTensor" not in kind
                plain = name.replace(".base_layer.", ".").replace("_orig_mod.", "")
                names, tensors = found[adapter]
                names += [f"{number} {plain} {kind} {_form(part)}" for part in parts]
                tensors += parts
        digests = {
            adapter: _digest("\n".join(names).encode(), sampled(tensors)) for adapter, (names, tensors) in found.items()
        }
    others = ", ".join(sorted(kinds - {PLAIN}))
    return Holding(
        weights=digests.get(None) if is_known else None,
        adapters=tuple(
            f"{name} ({_digest(digests.get(name, '').encode(), repr(sorted(those)).encode())[:8]})"
            for name, those in sorted((scales or {}).items())
        ),
        kinds=others or PLAIN,
    )


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _form(tensor: torch.Tensor) -> str:
    is_scaled = tensor.is_quantized and tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
    scale = f" {tensor.q_scale()} {tensor.q_zero_point()}" if is_scaled else ""
    return f"{tuple(tensor.shape)} {tensor.dtype}{scale}"


def _tensors_of(state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a state; quantised layers of torch keep theirs packed, in tuples."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (tuple, list)):
            yield from _tensors_of({f"{name}.{place}": each for place, each in enumerate(value)})


def _kind_of(tensor: torch.Tensor, parts: list[torch.Tensor]) -> str:
    """How this tensor is held."""
    name = type(tensor).__name__
    if tensor.is_quantized or tensor.layout is not torch.strided:
        return f"{tensor.layout} {tensor.dtype}".replace("torch.", "").removeprefix("strided ")
    if name in _PLAIN_CLASSES and parts[0] is tensor:
        return PLAIN
    dtypes = dict.fromkeys(str(part.dtype).removeprefix("torch.") for part in parts)
    # torchao's classes say so in attributes of theirs: `act_quant_kwargs`, `activation_quantization`.
    acts = any(value is not None for attribute, value in vars(tensor).items() if attribute.startswith("act"))
    return f"{name} of {' and '.join(dtypes)}{', activations quantised' if acts else ''}"


def _is_readable(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and tensor.layout is torch.strided


def _adapter_of(name: str) -> str | None:
    """The LoRA adapter that a weight belongs to, "a" for "layer.lora_A.a.weight"; None for one of the model's own."""
    parts = name.split(".")
    place = next((place for place, part in enumerate(parts) if part.startswith("lora_")), None)
    return None if place is None else ".".join(parts[place + 1 : place + 2])


def _quantization(module: torch.nn.Module) -> str | None:
    """The method that the model's configuration names, such as "torchao"."""
    config = _entry(getattr(module, "config", None), "quantization_config")
    if config is None:
        return None
    method = _entry(config, "quant_method") or type(config).__name__
    return str(getattr(method, "value", method))


def _in_memory(module: torch.nn.Module) -> dict[str, Any]:
    """The module's state, with the weights that accelerate keeps elsewhere between two calls."""
    # Detached, a weight may lose its class.
    state: dict[str, Any] = module.state_dict(keep_vars=True)
    if not any(isinstance(value, torch.Tensor) and value.is_meta for value in state.values()):
        return state
    for path, part in module.named_modules():
        hooks: Any = vars(part).get("_hf_hook")
        for hook in getattr(hooks, "hooks", [hooks]):
            kept = getattr(hook, "weights_map", None) or {}
            for name, _ in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                whole = f"{path}.{name}" if path else name
                if whole in state and state[whole].is_meta and name in kept:
                    state[whole] = kept[name]
    return state


def _entry(holder: object, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
