"""Every method that a comparison knows: one declaration each, and one line in `METHODS`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence

from omnireuse.errors import UnknownNameError
from omnireuse.evaluation.compare.methods.base import Method
from omnireuse.evaluation.compare.methods.baselines import BASELINES
from omnireuse.evaluation.compare.methods.bud_cache import BUD_CACHE
from omnireuse.evaluation.compare.methods.cache_dit import CACHE_DIT
from omnireuse.evaluation.compare.methods.di_cache import DI_CACHE
from omnireuse.evaluation.compare.methods.diffusers import DIFFUSERS
from omnireuse.evaluation.compare.methods.hicache import HICACHE
from omnireuse.evaluation.compare.methods.l2p import L2P
from omnireuse.evaluation.compare.methods.lemica import LEMICA
from omnireuse.evaluation.compare.methods.mean_cache import MEAN_CACHE
from omnireuse.evaluation.compare.methods.optimal_steps import OPTIMAL_STEPS
from omnireuse.evaluation.compare.methods.ours import OURS, profile_method
from omnireuse.evaluation.compare.methods.recache import RECACHE
from omnireuse.evaluation.compare.methods.sen_cache import SEN_CACHE
from omnireuse.evaluation.compare.methods.speca import SPECA
from omnireuse.evaluation.compare.methods.spectrum import SPECTRUM
from omnireuse.evaluation.compare.methods.tc_pade import TC_PADE
from omnireuse.evaluation.compare.methods.tuned import TUNED
from omnireuse.extras import check_extra, has_extra
from omnireuse.registry import Registry

__all__ = ["METHODS", "chosen_methods"]

logger = logging.getLogger("omnireuse")

PAPERS = (SPECTRUM, DI_CACHE, TC_PADE, SPECA, MEAN_CACHE, SEN_CACHE, L2P, BUD_CACHE, LEMICA, RECACHE)
"""Written here from their papers and public code."""

METHODS: Registry[Method] = Registry(
    "omnireuse.methods",
    {
        method.key: method
        for method in (*BASELINES, OPTIMAL_STEPS, *DIFFUSERS, *CACHE_DIT, HICACHE, *PAPERS, *OURS, TUNED)
    },
)


def chosen_methods(profiles: Sequence[str | os.PathLike[str]] = (), only: Iterable[str] = ()) -> list[Method]:
    """All methods, or those of these keys or families ("ours", "peer", "baseline").

    Args:
        profiles: as `Profile.from_pretrained` takes them; each serves the cases that it was searched at.

    Raises:
        ConfigError: a place without a profile.
        UnknownNameError: a key that no method has.
        MissingExtraError: a method is chosen by its key, and its library is not installed. Methods that are not chosen
            by key are left out then, with a warning.
    """
    only = set(only)
    methods = [*METHODS.values(), profile_method(profiles)]
    known = {name for method in methods for name in (method.key, method.family)}
    for name in only - known:
        raise UnknownNameError("method", name, known)
    chosen = [method for method in methods if not only or only & {method.key, method.family}]
    for extra in {method.extra for method in chosen} - {""}:
        if has_extra(extra):
            continue
        if any(method.key in only for method in chosen if method.extra == extra):
            check_extra(f"the comparison with {extra}", extra)
        logger.warning("%s is left out, it is not installed; install it: pip install 'omnireuse[%s]'", extra, extra)
        chosen = [method for method in chosen if method.extra != extra]
    return chosen
