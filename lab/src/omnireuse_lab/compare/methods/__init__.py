"""Every method that a comparison knows: one declaration each, and one line in `METHODS`."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

import omnireuse
from omnireuse.base.extras import check_extra, has_extra
from omnireuse.base.registry import Registry
from omnireuse.errors import ConfigError, UnknownNameError, WrongTypeError
from omnireuse.pipelines import object_named
from omnireuse_lab.compare.methods.base import Method
from omnireuse_lab.compare.methods.baselines import BASELINES
from omnireuse_lab.compare.methods.cache_dit import CACHE_DIT
from omnireuse_lab.compare.methods.diffusers import DIFFUSERS
from omnireuse_lab.compare.methods.ours import NAMED, OURS, part_method, profile_method
from omnireuse_lab.compare.methods.tuned import TUNED

__all__ = ["METHODS", "chosen_methods", "method_named", "own_methods"]

logger = logging.getLogger("omnireuse")
PARTS = (omnireuse.Forecaster, omnireuse.Policy)

METHODS: Registry[Method] = Registry(
    "omnireuse.methods", {method.key: method for method in (*BASELINES, *DIFFUSERS, *CACHE_DIT, *OURS, TUNED)}
)


def chosen_methods(
    profiles: Sequence[str | os.PathLike[str]] = (), only: Iterable[str] = (), own: Sequence[Method] = ()
) -> list[Method]:
    """All methods, or those of these keys, families ("ours", "peer", "baseline") or names that `omnireuse.enable`
    takes. A name of `enable` is compared only if it is given, and a user's own method in any case. The user's own come
    first, then this library's, the baselines and its peers.

    Args:
        profiles: as `Profile.from_pretrained` takes them; each serves the cases that it was searched at.
        own: methods of the user, which `only` may name too.

    Raises:
        ConfigError: a place without a profile.
        UnknownNameError: a key that no method has.
        MissingExtraError: a method is chosen by its key, and its library is not installed. Methods that are not chosen
            by key are left out then, with a warning.
    """
    only = set(only)
    methods = [*METHODS.values(), profile_method(profiles)]
    known = {name for method in methods for name in (method.key, method.family)} | NAMED.keys()
    for name in only - known - {method.key for method in own}:
        raise UnknownNameError("method", name, known)
    chosen = [method for method in methods if not only or only & {method.key, method.family}]
    chosen += [method for name, method in NAMED.items() if name in only]
    chosen.sort(key=lambda method: ("ours", "baseline", "peer").index(method.family))
    for extra in {method.extra for method in chosen} - {""}:
        if has_extra(extra):
            continue
        if any(method.key in only for method in chosen if method.extra == extra):
            check_extra(f"the comparison with {extra}", extra)
        logger.warning("%s is left out, it is not installed; install it: pip install 'omnireuse[%s]'", extra, extra)
        chosen = [method for method in chosen if method.extra != extra]
    return [*own, *chosen]


def own_methods(methods: Iterable[Method | omnireuse.Forecaster | omnireuse.Policy]) -> list[Method]:
    """These methods, and a method for each forecaster or policy, which runs in the default's place. Their figures are
    measured again if the file of the method or of the part's class has changed."""
    taken, found = {method.name: key for key, method in METHODS.items()}, []
    for given in methods:
        method = part_method(given) if isinstance(given, PARTS) else given
        if not isinstance(method, Method):
            raise WrongTypeError(
                "compare(methods=…): methods must hold objects of omnireuse_lab.Method, forecasters or policies, got "
                f"{type(method).__name__}"
            )
        if method.name in taken:
            key = taken[method.name]
            is_registered = key in METHODS and key not in METHODS.builtin
            done = f"an installed package has registered it as {key!r} (entry points {METHODS.group!r})"
            raise ConfigError(
                f"compare(methods=…): the name {method.name!r} must be new; "
                + (f"{done}; leave it out here" if is_registered else "there is such a method already")
            )
        taken[method.name] = method.key
        found.append(replace(method, version=_version_of(type(given) if given is not method else method.grid)))
    return found


def method_named(name: str) -> Method | omnireuse.Forecaster | omnireuse.Policy:
    """The method, forecaster or policy that ``package:object`` names; a class stands for one with its defaults."""
    found = object_named(name, "compare(--method")
    if isinstance(found, type) and issubclass(found, PARTS):
        return found()
    if not isinstance(found, (Method, *PARTS)):
        what = type(found).__name__
        raise ConfigError(f"compare(--method={name!r}): must name a Method, a Forecaster or a Policy, got {what}")
    return found


def _version_of(made: object) -> str:
    """A digest of the file that a grid or class is written in."""
    try:
        return hashlib.sha256(inspect.getsource(inspect.getmodule(made)).encode()).hexdigest()  # type: ignore[arg-type]  # refuses None itself
    except (OSError, TypeError):
        return uuid.uuid4().hex  # no file, as in a console: measured anew each time
