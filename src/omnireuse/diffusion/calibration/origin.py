"""The pipeline that a profile was made with: its classes and configuration, its name, and its weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of, model_name
from omnireuse.records import Record

__all__ = ["Origin", "fingerprint", "versions", "weights_digest"]

SAMPLED = 64
"""Values of each tensor in the digest of weights, at equal distances. Training changes nearly all values."""
_SNAPSHOT = re.compile(r"[/\\]snapshots[/\\]([0-9a-f]{40})([/\\]|$)")


class Origin(Record, frozen=True, kw_only=True):
    """Which weights a pipeline has.

    Attributes:
        name: id on the hub, or name of the folder, that it was loaded from; "" where it is not known.
        revision: commit of the repository; None where it is not known.
        weights: digest of values of the denoisers' weights, without adapters, in their own dtype; None where they are
            not in memory, sharded or quantised.
        adapters: LoRA adapters in use.
    """

    name: str = ""
    revision: str | None = None
    weights: str | None = None
    adapters: tuple[str, ...] = ()

    @classmethod
    def of(cls, pipeline: Any) -> Origin:
        """The origin of a loaded pipeline.

        Cost: reads 64 values of each weight, and waits once for an accelerator.
        """
        name = str(getattr(getattr(pipeline, "config", None), "_name_or_path", "") or "")
        denoisers = denoisers_of(pipeline)
        paths = (getattr(getattr(each, "config", None), "_name_or_path", None) for each in denoisers)
        commits = [match[1] for match in (_SNAPSHOT.search(str(path)) for path in (name, *paths)) if match]
        is_local = bool(name) and Path(name).exists()
        return cls(
            # The folder of a user is nobody else's business.
            name=Path(name).resolve().name if is_local else name,
            revision=commits[0] if commits else None,
            weights=weights_digest(
                each.state_dict() if isinstance(each, torch.nn.Module) else {} for each in denoisers
            ),
            adapters=tuple(sorted({adapter for each in denoisers for adapter in _adapters(each)})),
        )

    def __str__(self) -> str:
        return f"{self.name or 'an unnamed pipeline'}{f' at revision {self.revision[:7]}' if self.revision else ''}"

    def unlike(self, other: Origin) -> str | None:
        """How the weights of `other` are known to differ, in words; None where they are not."""
        if self.adapters != other.adapters:
            own, given = (", ".join(each.adapters) or "none" for each in (self, other))
            return f"the profile was made with LoRA adapters {own}, the pipeline has {given}"
        if None in (self.weights, other.weights) or self.weights == other.weights:
            return None
        if str(self) == str(other):
            return f"the profile was made for other weights of {self}"
        return f"the profile was made for the weights of {self}, the pipeline is {other}"


def _adapters(denoiser: Any) -> list[str]:
    if not getattr(denoiser, "_hf_peft_config_loaded", False):
        return []
    active = denoiser.active_adapters()
    return [active] if isinstance(active, str) else list(active)


def weights_digest(states: Iterable[Mapping[str, Any]]) -> str | None:
    """Digest of names and of values of tensors, without adapters and the wrappers of torch.compile; None without any,
    or where one is not in memory, sharded or quantised."""
    digest, sampled = hashlib.sha256(), []
    for tensors in states:
        for name, tensor in sorted(tensors.items()):
            if not isinstance(tensor, torch.Tensor) or "lora_" in name:
                continue
            # Sharded and quantised weights are of classes of their own.
            if tensor.is_meta or tensor.is_quantized or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                return None
            plain = name.replace(".base_layer.", ".").replace("_orig_mod.", "")
            digest.update(f"{plain} {tuple(tensor.shape)} {tensor.dtype}".encode())
            values = tensor.detach().reshape(-1)
            sampled.append(values[:: max(1, values.numel() // SAMPLED)][:SAMPLED].float())
    if not sampled:
        return None
    for device in dict.fromkeys(each.device for each in sampled):
        digest.update(torch.cat([each for each in sampled if each.device == device]).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """The installed versions of the libraries that a profile notes."""
    return {name: version(name) for name in ("omnireuse", "torch", "diffusers")}


def fingerprint(pipeline: Any) -> tuple[str, str, str]:
    """Class of the denoiser, digest of its configuration and the scheduler's, class of the scheduler.

    Settings that shift the scheduler's noise levels are left out: a plan serves other shifts too.
    """
    denoiser: Any = getattr(pipeline, "transformer", None) or getattr(pipeline, "unet", None)
    scheduler = getattr(pipeline, "scheduler", None)
    parts = [
        {
            key: value
            for key, value in dict(getattr(each, "config", {})).items()
            if not key.startswith("_") and "shift" not in key
        }
        for each in (denoiser, scheduler)
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return model_name(denoiser), hashlib.sha256(text.encode()).hexdigest()[:16], type(scheduler).__name__
