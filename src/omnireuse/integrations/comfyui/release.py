"""Which ComfyUI the nodes are made for."""

from __future__ import annotations

import logging
from collections.abc import Collection

from omnireuse.errors import ConfigError

__all__ = ["NEEDED", "TESTED", "check_comfyui"]

logger = logging.getLogger("omnireuse")

TESTED = ("0.30",)
"""Releases of ComfyUI that the tests run in."""
NEEDED = ("outer_sample", "predict_noise", "calc_cond_batch", "sampler_sample")
"""Kinds of wrappers: around a run, the solver's call of the model, the parts of guidance, and the solver."""


def check_comfyui(version: str, kinds: Collection[str]) -> None:
    """Refuse a ComfyUI that nodes could not hook into, before ComfyUI shows them; name another release in the log.

    Args:
        version: of ComfyUI.
        kinds: of wrappers that it calls.

    Raises:
        ConfigError: a kind that is needed is missing.
    """
    missing = [kind for kind in NEEDED if kind not in kinds]
    tested = ", ".join(TESTED)
    if missing:
        raise ConfigError(
            f"Omnireuse: ComfyUI {version} is not supported; these nodes were tested with {tested}; not hooked: "
            f"{', '.join(missing)}; install one of them"
        )
    if not any(version == each or version.startswith(f"{each}.") for each in TESTED):
        logger.warning("Omnireuse was tested with ComfyUI %s, this is %s; its hooks are there", tested, version)
