"""Whatever other libraries do to a pipeline, it is undone: attributes, classes, and attributes of classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["untouched"]


@contextmanager
def untouched(pipeline: Any) -> Iterator[None]:
    """On leaving, the pipeline, its scheduler and all its modules are as they were on entering, tensors' values apart.

    Libraries patch instances and classes alike, and not each takes back all that it did.
    """
    objects = list(_objects(pipeline))
    instances = [(each, type(each), _shallow(vars(each))) for each in objects]
    classes = [(each, dict(vars(each))) for each in {type(each): None for each in objects}]
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


def _shallow(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each attribute, and beside a container a copy of what it holds: those of modules are changed in place."""
    return {name: (value, value.copy() if type(value) in _CONTAINERS else None) for name, value in attributes.items()}


def _restore(attributes: dict[str, Any], before: dict[str, tuple[Any, Any]]) -> None:
    attributes.clear()
    for name, (value, held) in before.items():
        if held is not None:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(held)
        attributes[name] = value


_CONTAINERS = (dict, list, set, *{type(torch.nn.Module()._forward_hooks), type(torch.nn.Module()._modules)})
