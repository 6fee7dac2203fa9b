"""The pipeline that a profile was made with: its classes and configuration, its name, and its weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import omnireuse
from omnireuse.base.records import Record
from omnireuse.hooks.denoisers import denoisers_of, model_name
from omnireuse.profiles.holding import held_by

__all__ = ["Origin", "fingerprint", "versions"]

_SNAPSHOT = re.compile(r"[/\\]snapshots[/\\]([0-9a-f]{40})([/\\]|$)")


class Origin(Record, frozen=True, kw_only=True):
    """Where a pipeline comes from, and which weights it has.

    Attributes:
        name: id on the hub, or name of the folder, that it was loaded from; "" if it is not known.
        revision: commit of the repository; None if it is not known.
        weights: digest of values of the denoisers' weights, without adapters, in their own dtype and as they are held;
            None if they are sharded or not in memory.
        adapters: LoRA adapters in use, each with a digest of its weights and its scales.
        holding: how weights are held: "plain tensors", or the classes and dtypes of quantised ones.
    """

    name: str = ""
    revision: str | None = None
    weights: str | None = None
    adapters: tuple[str, ...] = ()
    holding: str

    @classmethod
    def of(cls, pipeline: object) -> Origin:
        """The origin of a loaded pipeline.

        Cost: reads 64 values of each weight, and waits once for an accelerator.
        """
        name = str(getattr(getattr(pipeline, "config", None), "_name_or_path", "") or "")
        denoisers = denoisers_of(pipeline)
        paths = (getattr(getattr(each, "config", None), "_name_or_path", None) for each in denoisers)
        commits = [match[1] for match in (_SNAPSHOT.search(str(path)) for path in (name, *paths)) if match]
        is_local = bool(name) and Path(name).exists()
        held = held_by(denoisers)
        return cls(
            # The folder of a user is nobody else's business.
            name=Path(name).resolve().name if is_local else name,
            revision=commits[0] if commits else None,
            weights=held.weights,
            adapters=held.adapters,
            holding=held.kinds,
        )

    def __str__(self) -> str:
        return f"{self.name or 'an unnamed pipeline'}{f' at revision {self.revision[:7]}' if self.revision else ''}"


def versions() -> dict[str, str]:
    """The versions of the libraries that a profile notes. This one may be on the path and not installed."""
    return {"omnireuse": omnireuse.__version__, **{name: version(name) for name in ("torch", "diffusers")}}


def fingerprint(pipeline: object) -> tuple[str, str, str]:
    """Class of the denoiser, digest of its configuration and the scheduler's, class of the scheduler.

    Settings that shift the scheduler's noise levels are left out: each run shows its own. A configuration that
    is no mapping, as of SGLang's models, does not count: the weights tell their models apart.
    """
    denoiser = denoisers_of(pipeline)[0]
    scheduler = getattr(pipeline, "scheduler", None)
    configs = [getattr(each, "config", None) for each in (denoiser, scheduler)]
    parts = [
        {key: value for key, value in each.items() if not key.startswith("_") and "shift" not in key}
        for each in (config if isinstance(config, Mapping) else {} for config in configs)
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return model_name(denoiser), hashlib.sha256(text.encode()).hexdigest()[:16], type(scheduler).__name__
