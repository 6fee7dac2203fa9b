"""Every error that omnireuse raises on purpose.

    OmniReuseError
    ├── ConfigError (ValueError)            a value that a user gave cannot work
    │   ├── UnknownNameError                a name that nothing answers to; the nearest names are suggested
    │   │   └── NothingPublishedError       a model for which no figures are published
    │   └── UnsupportedModelError           a model or pipeline that the asked-for reuse cannot serve
    ├── WrongTypeError (TypeError)          a value of the wrong kind altogether
    ├── StateError (RuntimeError)           a call that does not fit what happened before it
    │   └── NotTunableError                 a run that tuning cannot measure; the run itself goes on
    └── MissingExtraError (ImportError)     an optional dependency is not installed

A message reads: *object(field=value): field must …, got …; what to do*. A pipeline, scheduler or model that was given
as a value is named by its class: their own texts are pages of JSON.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

__all__ = [
    "ConfigError",
    "MissingExtraError",
    "NotTunableError",
    "NothingPublishedError",
    "OmniReuseError",
    "StateError",
    "UnknownNameError",
    "UnsupportedModelError",
    "WrongTypeError",
]


_PAGES = re.compile(r' \{\n  "_class_name".*?\n\}\n?|(?<=\w)\(\n  \(.*?\n\)', re.DOTALL)
"""The text after the class of a pipeline or scheduler of diffusers, or of a torch module with parts."""


class OmniReuseError(Exception):
    """The root of the tree: catch it to catch all that omnireuse raises on purpose.

    Args:
        text: a whole sentence, or one of `omnireuse.messages`.
        values: for the placeholders of the text.
    """

    def __init__(self, text: object = "", **values: object) -> None:
        said = text.format(**values) if isinstance(text, str) and values else text
        super().__init__(_PAGES.sub("(…)", said) if isinstance(said, str) else said)


class ConfigError(OmniReuseError, ValueError):
    """A value that a user gave cannot work.

    Attributes:
        about: where, the value of each field, must, got and do of the message, if it is about fields; else None.
    """

    about: tuple[str, Mapping[str, str], str, str, str] | None = None

    @classmethod
    def of_fields(cls, where: str, values: Mapping[str, str], must: str, got: str, do: str = "") -> ConfigError:
        """The error *where(field=value): field must …, got …; do*, of one field or of several together."""
        given = ", ".join(f"{field}={value}" for field, value in values.items())
        subject = "together they" if len(values) > 1 else next(iter(values))
        error = cls(f"{where}({given}): {subject} must {must}, got {got}" + (f"; {do}" if do else ""))
        error.about = (where, dict(values), must, got, do)
        return error

    def about_arguments(self, where: str, names: Mapping[str, str], do: str = "") -> ConfigError:
        """The same error about the arguments that the user gave; this one if it is about no fields.

        Args:
            where: the user gave them.
            names: the user's name of a field, if it is another one.
            do: what to do, if the error does not say it.
        """
        if self.about is None:
            return self
        _, values, must, got, known = self.about
        return self.of_fields(where, {names.get(each, each): v for each, v in values.items()}, must, got, known or do)


class UnknownNameError(ConfigError):
    """A name that nothing answers to.

    Args:
        kind: the kind looked up, in the domain's words ("cache backend").
        given: the name that was not found.
        known: every name that would have been.
        hint: a further sentence on what to do, without the closing stop.
        listed: the names to list; all that are known by default.
    """

    suggests: ClassVar[bool] = True
    """Whether the nearest name is suggested."""

    def __init__(
        self, kind: str, given: object, known: Iterable[str], *, hint: str = "", listed: Iterable[str] | None = None
    ) -> None:
        self.kind, self.given, self.known, self.hint = kind, given, tuple(sorted(known)), hint
        self.listed = self.known if listed is None else tuple(listed)
        longer = [name for name in self.known if name.endswith(f"_{given}")]
        near = longer or difflib.get_close_matches(str(given), self.known, n=1, cutoff=0.5) if self.suggests else []
        parts = [f"unknown {kind} {given!r}", *(f"did you mean {name!r}?" for name in near[:1])]
        parts.append(f"known: {', '.join(self.listed) or 'none'}")
        if hint:
            parts.append(hint)
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_unknown_name, (type(self), self.kind, self.given, self.known, self.hint, self.listed)


def _rebuild_unknown_name(
    error: type[UnknownNameError], kind: str, given: object, known: tuple[str, ...], hint: str, listed: tuple[str, ...]
) -> UnknownNameError:
    return error(kind, given, known, hint=hint, listed=listed)


class NothingPublishedError(UnknownNameError):
    """A model that a table of published figures does not have. Another model's figures would be wrong for it."""

    suggests = False


class UnsupportedModelError(ConfigError):
    """A model or pipeline that the asked-for reuse cannot serve."""


class WrongTypeError(OmniReuseError, TypeError):
    """A value of the wrong kind altogether."""


class StateError(OmniReuseError, RuntimeError):
    """A call that does not fit the calls before it."""


class NotTunableError(StateError):
    """A run that tuning cannot measure. Its text is the reason; the run itself goes on."""


class MissingExtraError(OmniReuseError, ImportError):
    """An optional dependency is not installed.

    Args:
        feature: that needed it, in the domain's words.
        extra: the extra that brings it, as in ``omnireuse[extra]``.
    """

    def __init__(self, feature: str, extra: str) -> None:
        self.feature, self.extra = feature, extra
        super().__init__(f"{feature} needs an optional dependency; install it: pip install 'omnireuse[{extra}]'")

    def __reduce__(self) -> tuple[object, ...]:
        return MissingExtraError, (self.feature, self.extra)
