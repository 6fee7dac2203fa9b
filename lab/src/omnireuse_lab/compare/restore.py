"""Undo whatever other libraries do to a pipeline: attributes, classes, and attributes of classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["restored"]

_CONTAINERS = (dict, list, set, *{type(torch.nn.Module()._forward_hooks), type(torch.nn.Module()._modules)})


@contextmanager
def restored(pipeline: Any) -> Iterator[None]:
    """On leaving, the pipeline, its scheduler and all its modules are as they were on entering, except for the values
    of tensors.

    Libraries patch instances and classes, and not every library undoes all that it did.
    """
    objects = list(_objects(pipeline))
    instances = [(each, type(each), _shallow_copy(vars(each))) for each in objects]
    classes = [(kind, dict(vars(kind))) for kind in {type(each) for each in objects}]
    try:
        yield
    finally:
        for each, kind, before in instances:
            if type(each) is not kind:
                each.__class__ = kind
            _restore(vars(each), before)
        for kind, attributes in classes:
            for name in vars(kind).keys() - attributes.keys():
                delattr(kind, name)
            for name, value in attributes.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)


def _objects(pipeline: Any) -> Iterator[Any]:
    yield pipeline
    for component in vars(pipeline).values():
        if isinstance(component, torch.nn.Module):
            yield from component.modules()
        elif type(component).__name__.endswith("Scheduler"):
            yield component


def _shallow_copy(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each attribute with a copy of its container, if it is one: modules change their dicts of hooks in place."""
    return {name: (value, value.copy() if type(value) in _CONTAINERS else None) for name, value in attributes.items()}


def _restore(attributes: dict[str, Any], before: dict[str, tuple[Any, Any]]) -> None:
    attributes.clear()
    for name, (value, content) in before.items():
        if content is not None:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)
        attributes[name] = value
