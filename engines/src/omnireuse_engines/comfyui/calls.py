"""A call of ComfyUI's sampler that can be made again beside a picture, and what tells it from others: its sampler, its
model and its conditionings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.fingerprints.checksums import checksums
from omnireuse.profiles.conditions import Conditions
from omnireuse.profiles.holding import held_in
from omnireuse_engines.comfyui.wrappers import SAMPLER, Wrappers, with_wrappers

__all__ = ["SamplerCall", "conditions_of", "content_of", "sampler_name"]

_NAMES = ("denoise_mask", "callback", "disable_pbar", "seed")
"""Arguments of a run after its sigmas, in their order."""


@dataclass(frozen=True, kw_only=True)
class SamplerCall:
    """The inputs of a run.

    Attributes:
        noise, latent, sampler, sigmas: arguments of the run.
        given: the others, by name.
        conds: of the guider, as they are before ComfyUI prepares them.
        options: of the model, without reuse.
    """

    noise: torch.Tensor
    latent: torch.Tensor
    sampler: Any
    sigmas: torch.Tensor
    given: Mapping[str, Any]
    conds: Mapping[str, Sequence[Mapping[str, Any]]]
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        guider: Any,
        noise: torch.Tensor,
        latent: torch.Tensor,
        sampler: Any,
        sigmas: torch.Tensor,
        rest: Sequence[Any],
        named: Mapping[str, Any],
    ) -> SamplerCall:
        """The call of a run, from the arguments of ComfyUI's `outer_sample`."""
        return cls(
            noise=noise,
            latent=latent,
            sampler=sampler,
            sigmas=sigmas,
            given={**dict(zip(_NAMES, rest, strict=False)), **named, "callback": None, "disable_pbar": True},
            conds=_copied(getattr(guider, "conds", {})),
            options=guider.model_options,
        )

    def kept(self) -> SamplerCall:
        """The same with tensors of its own, which nobody else changes."""
        return replace(self, noise=self.noise.clone(), latent=self.latent.clone())

    def make(self, executor: Any, wrappers: Mapping[str, Wrappers]) -> torch.Tensor:
        """Make the call again with these wrappers in place of reuse; return the solver's latents.

        Progress bars, previews and callbacks are left out.

        Args:
            executor: ComfyUI's, of a run of an equal model that is prepared.
        """
        found: list[torch.Tensor] = []
        around = wrappers.get(SAMPLER)

        def solved(solve: Any, *args: Any) -> Any:
            found.append(solve(*args) if around is None else around(solve, *args))
            return found[-1]

        guider = executor.class_obj
        before = guider.conds, guider.model_options
        guider.conds = _copied(self.conds)
        guider.model_options = with_wrappers(self.options, {**wrappers, SAMPLER: solved})
        options = dict(self.given)
        rest = [options.pop(name, None) for name in _NAMES]
        try:
            executor(self.noise, self.latent, self.sampler, self.sigmas, *rest, **options)
        finally:
            guider.conds, guider.model_options = before
        return found[-1]


def _copied(conds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {kind: [dict(each) for each in group] for kind, group in conds.items()}


def sampler_name(sampler: object) -> str:
    """The name of a sampler's function."""
    function = getattr(sampler, "sampler_function", None)
    return str(getattr(function, "__name__", type(sampler).__name__)).removeprefix("sample_")


def conditions_of(model: Any, sampler: str) -> Conditions:
    """Under which conditions a model computes: its weights, and what LoRA loaders have put on it. The same before and
    after it was loaded.

    Cost: reads 64 values of each weight.
    """
    kept = {name: each.weight for name, each in model.backup.items()}
    state = {
        name: kept.get(f"diffusion_model.{name}", tensor)
        for name, tensor in model.model.diffusion_model.state_dict().items()
    }
    patches = {
        f"{name} {number} {strength} {base} {place}": leaf
        for name, each in model.patches.items()
        for number, (strength, value, base, *_) in enumerate(each)
        for place, leaf in enumerate(pytree.tree_leaves(getattr(value, "weights", value)))
    }
    config = json.dumps(
        getattr(getattr(model.model, "model_config", None), "unet_config", {}), sort_keys=True, default=str
    )
    held = held_in([state])
    return Conditions(
        model=type(model.model).__name__,
        config_digest=hashlib.sha256(config.encode()).hexdigest()[:16],
        scheduler=sampler,
        weights=held.weights,
        adapters=(str(held_in([patches]).weights),) if patches else (),
        dtype=str(model.model_dtype()).removeprefix("torch."),
        holding=held.kinds,
    )


def content_of(value: object) -> str:
    """A digest of a conditioning: of its tensors and numbers, and of the strength, range and picture of its
    controls."""
    found = hashlib.sha256()
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            text = f"{leaf.dtype} {tuple(leaf.shape)} {checksums([leaf])[0]}"
        elif isinstance(leaf, (str, int, float, bool, type(None))):
            text = repr(leaf)
        else:
            own = [getattr(leaf, name, None) for name in ("strength", "timestep_percent_range", "cond_hint_original")]
            text = f"{type(leaf).__name__} {content_of(own)}"
        found.update(f"{text};".encode())
    return found.hexdigest()[:16]
