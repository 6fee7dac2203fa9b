"""A call of ComfyUI's sampler that can be made again beside a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse.engines.comfyui.wrappers import SAMPLER, Wrappers, with_wrappers
from omnireuse.tuning.replay import unchanged_random_states

__all__ = ["SamplerCall"]

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

        Progress bars, previews and callbacks are left out, and random states stay as they were.

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
            with unchanged_random_states():
                executor(self.noise.clone(), self.latent.clone(), self.sampler, self.sigmas, *rest, **options)
        finally:
            guider.conds, guider.model_options = before
        return found[-1]


def _copied(conds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {kind: [dict(each) for each in group] for kind, group in conds.items()}
