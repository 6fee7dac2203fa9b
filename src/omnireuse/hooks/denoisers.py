"""A pipeline's denoisers: their attributes, their wrappers, their device, and the ranks that share their forward."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from omnireuse import messages
from omnireuse.base.validation import kind_of
from omnireuse.errors import StateError, UnsupportedModelError, WrongTypeError
from omnireuse.hooks.interception import compiled_call, is_optimized
from omnireuse.loop.agreement import Agreement
from omnireuse.policies.base import Policy

__all__ = [
    "DENOISERS",
    "adapter_scales",
    "adapters_of",
    "check_agreement",
    "denoisers_of",
    "describe",
    "device_of",
    "dtype_of",
    "forward_group",
    "is_compiled_whole",
    "model_name",
    "parameters_of",
    "unwrapped",
    "wrapped_modules",
]

logger = logging.getLogger("omnireuse")


DENOISERS = (
    "transformer",
    "transformer_2",
    "transformer_ref",
    "unconditional_transformer",
    "unet",
    "prior",
    "decoder",
)
"""Attributes of a pipeline that hold a denoiser."""

# By name, because PEFT need not be installed.
_INSIDE = {
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "PeftModel": "base_model",
    "BaseTuner": "model",
}


def denoisers_of(pipeline: Any) -> list[torch.nn.Module]:
    """The pipeline's denoisers, in the order of `DENOISERS`.

    Raises:
        UnsupportedModelError: a pipeline without any, or the denoiser itself.
        WrongTypeError: None, or a class.
    """
    if pipeline is None or isinstance(pipeline, type):
        got, write = ("None", "FluxPipeline") if pipeline is None else (kind_of(pipeline), pipeline.__name__)
        raise WrongTypeError(messages.NOT_LOADED, got=got, write=write)
    # A model may call a part of its own its decoder; engines' pipelines are modules, too.
    is_module = isinstance(pipeline, torch.nn.Module)
    found = [getattr(pipeline, name, None) for name in (DENOISERS[:5] if is_module else DENOISERS)]
    denoisers = [module for module in found if isinstance(module, torch.nn.Module)]
    if denoisers:
        return denoisers
    if is_module:
        raise UnsupportedModelError(messages.IS_A_MODEL, model=type(unwrapped(pipeline)).__name__)
    raise UnsupportedModelError(messages.NO_DENOISER, pipeline=type(pipeline).__name__, names=", ".join(DENOISERS))


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The model inside wrappers of `torch.compile`, PEFT or data parallelism; a plain module itself."""
    return wrapped_modules(module)[-1]


def model_name(module: torch.nn.Module) -> str:
    """The name of the model's class, which `fully_shard` exchanges for a subclass of its own."""
    names = [cls.__name__ for cls in type(unwrapped(module)).__mro__]
    return names[0].removeprefix("FSDP") if "FSDPModule" in names else names[0]


@lru_cache(maxsize=256)
def parameters_of(forward: Callable[..., Any]) -> Mapping[str, Any]:
    """The parameters of a forward that can be given by position, in their order without `self`, and their defaults."""
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {each.name: each.default for each in parameters if each.kind in by_position}


def wrapped_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """A module and all that it wraps, the model itself last."""
    names = [cls.__name__ for cls in type(module).__mro__]
    attribute = next((_INSIDE[name] for name in names if name in _INSIDE), None)
    return [module] if attribute is None else [module, *wrapped_modules(getattr(module, attribute))]


def is_compiled_whole(module: torch.nn.Module) -> bool:
    """True if `torch.compile` makes one graph of this denoiser, blocks and all."""
    return any(is_optimized(each) or compiled_call(each) is not None for each in wrapped_modules(module))


def adapter_scales(module: torch.nn.Module) -> tuple[Any, ...]:
    """Adapters in use with their scales, in each layer that has some (PEFT). Cost: 1 µs for each of these layers."""
    configs = tuple(vars(module)["peft_config"].values())
    before, layers = _adapted.get(module, ((), ()))
    if [*map(id, before)] != [*map(id, configs)]:  # held, so that no other gets the identity of one
        found = (weakref.ref(each) for each in module.modules() if isinstance(vars(each).get("scaling"), dict))
        _adapted[module] = configs, (layers := tuple(found))
    present: list[Any] = [layer for reference in layers if (layer := reference()) is not None]
    return tuple((each.disable_adapters, *((n, each.scaling.get(n)) for n in each.active_adapters)) for each in present)


def adapters_of(module: torch.nn.Module) -> dict[str, Hashable]:
    """What marks a model's weights, as far as torch counts their changes, and the adapters that it is loaded with: the
    scales of IP-Adapters, and weights of LoRA.

    Cost: 20 µs, and with adapters 2 µs for each of their weights, and one read of the device.
    """
    found: dict[str, Hashable] = {"weights": _versions(module)}
    if getattr(module, "encoder_hid_proj", None) is not None or getattr(module, "image_proj", None) is not None:
        scales = [vars(each).get("scale") for each in module.modules()]
        found["the scale of an IP-Adapter"] = str([each for each in scales if isinstance(each, list)])
    if "peft_config" in vars(module):
        weights = [each.detach() for name, each in module.named_parameters() if "lora_" in name and each.numel()]
        held = [each for each in weights if not each.is_meta]
        # New weights may be copied into the memory of the old ones: one value of each shows it.
        values = torch.stack([each.view(-1)[each.numel() // 2].float().to(held[0].device) for each in held]).tolist()
        found["the weights of LoRA"] = tuple(values)
    return found


def _versions(module: torch.nn.Module) -> tuple[int | None, ...]:
    """How often the weights of some layers have changed: who replaces a model's weights writes those as well."""
    if (some := _some_layers.get(module)) is None:
        layers = [each for each in module.modules() if any(weight is not None for weight in each._parameters.values())]
        _some_layers[module] = some = [weakref.ref(each) for each in layers[:: -(-len(layers) // _MOST_LAYERS) or 1]]
    present = [each for reference in some if (layer := reference()) is not None for each in layer._parameters.values()]
    return tuple([None if each is None or each.is_inference() else each._version for each in present])


_MOST_LAYERS = 32
_some_layers = weakref.WeakKeyDictionary[torch.nn.Module, list[weakref.ref[torch.nn.Module]]]()
_adapted = weakref.WeakKeyDictionary[torch.nn.Module, tuple[tuple[Any, ...], tuple[weakref.ref[Any], ...]]]()
"""The configurations of the adapters of each model, and the layers that have some with them."""


def device_of(pipeline: object) -> str:
    """The device that its denoiser computes on; under accelerate's offloading not where its weights are."""
    denoiser = denoisers_of(pipeline)[0]
    hooked = getattr(getattr(denoiser, "_hf_hook", None), "execution_device", None)
    return str(hooked or next((each.device for each in denoiser.parameters()), "cpu"))


def dtype_of(pipeline: object) -> str:
    """The dtype that its denoiser computes in, as "bfloat16"."""
    denoiser = denoisers_of(pipeline)[0]
    dtype: Any = getattr(denoiser, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        dtype = next((each.dtype for each in denoiser.parameters() if each.is_floating_point()), torch.float32)
    return str(dtype).removeprefix("torch.")


def describe(pipeline: object) -> str:
    """The pipeline's class, its device and its dtype, in a few words."""
    return f"{type(pipeline).__name__} on {device_of(pipeline)} in {dtype_of(pipeline)}"


def forward_group(denoisers: Iterable[torch.nn.Module]) -> dist.ProcessGroup | None:
    """The ranks whose collectives these denoisers' forwards enter; None if each rank runs its own model.

    Known are the context parallelism of diffusers (`enable_parallelism`) and parameters that are spread over a device
    mesh (`fully_shard`, tensor parallelism).

    Raises:
        StateError: the denoisers name several groups.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    groups = {dist.get_process_group_ranks(group).__repr__(): group for each in denoisers for group in _groups(each)}
    if len(groups) > 1:
        raise StateError(messages.SEVERAL_GROUPS, groups=", ".join(groups))
    for ranks, group in groups.items():
        logger.info("ranks %s share the denoiser's forward pass, and decide alike", ranks)
        return group
    return None


def check_agreement(policy: Policy, agreement: Agreement, denoiser: torch.nn.Module) -> None:
    """Raise a StateError if a policy would measure on one of several ranks alone: they would wait for each other."""
    if not (policy.needs_drift or policy.needs_error) or not agreement.is_alone:
        return
    if forward_group([denoiser]) is not None:
        raise StateError(messages.PARALLEL_LATER, policy=type(policy).__name__, model=model_name(denoiser))


def _groups(denoiser: torch.nn.Module) -> Iterator[dist.ProcessGroup]:
    model = unwrapped(denoiser)
    parallel: Any = getattr(getattr(model, "_parallel_config", None), "context_parallel_config", None)
    mesh = getattr(parallel, "_flattened_mesh", None)
    if mesh is not None and mesh.size() > 1:
        yield mesh.get_group()
    spread = next((each.device_mesh for each in model.parameters() if hasattr(each, "device_mesh")), None)
    if spread is not None and spread.size() > 1:
        yield spread.get_group() if spread.ndim == 1 else spread._flatten().get_group()
