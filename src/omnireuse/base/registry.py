"""Things found by name: the package's own, and those that other packages add through entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from omnireuse import messages
from omnireuse.errors import ConfigError, StateError

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A mapping from names to values. The package's own come first; an entry point is loaded when it is asked for.
    ``registry["name"] = value`` adds one for this process.

    Args:
        group: of the entry points, as in ``[project.entry-points."omnireuse.policies"]``.
        builtin: the package's own.
    """

    def __init__(self, group: str, builtin: Mapping[str, T]) -> None:
        self.group = group
        self.builtin, self._own = dict(builtin), frozenset(builtin)

    def __getitem__(self, name: str) -> T:
        if name in self.builtin:
            return self.builtin[name]
        point = self._points()[name]
        try:
            value: T = point.load()
        except Exception as error:
            place = f"{self.group!r} cannot be loaded from {point.value}"
            raise StateError(messages.ENTRY_POINT, name=name, place=place, why=error, of=_package(point)) from error
        return value

    def __setitem__(self, name: str, value: T) -> None:
        """Add a value for this process. The same name again takes the place of what was added before.

        Raises:
            ConfigError: the name is one of the package's own.
        """
        if name in self._own:
            raise ConfigError(f"{name!r} is one of omnireuse's own {self.group!r}; choose another name")
        self.builtin[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter({**self.builtin, **self._points()})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.builtin or name in self._points()

    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "its package"
