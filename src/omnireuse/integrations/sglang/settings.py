"""The settings of reuse in SGLang: an environment variable for the server, ``diffusers_kwargs`` for a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from omnireuse.errors import ConfigError
from omnireuse.integrations.settings import KEY, RequestSettings, ServerSettings

__all__ = ["FIELD", "VARIABLE", "SGLangSettings", "extras_of"]

VARIABLE = "OMNIREUSE_SGLANG"
"""The environment variable with the server's settings: every process of the server inherits it."""

FIELD = "diffusers_kwargs"
"""The request's field with its settings. SGLang takes it from its HTTP API, its command line and Python, hands it to
the workers, and batches only requests in which it is equal."""


class SGLangSettings(ServerSettings):
    """What the server was started with.

    Args:
        text: of the environment variable: "on" for the default, a JSON object with one target of `omnireuse.enable` and
            `profile`, or nothing or "off" for a server in which only those requests reuse that ask for it.

    Attributes:
        is_on: whether requests reuse that say nothing of it.

    Raises:
        ConfigError: no JSON object, a value out of range, or a target that needs a profile.
        UnknownNameError: a key that is no option.
        WrongTypeError: a value of another kind.
    """

    def __init__(self, text: str | None) -> None:
        word = (text or "off").strip()
        self.is_on = word != "off"
        super().__init__({} if word in ("on", "off") else _decoded(word), place=VARIABLE)
        self.check(RequestSettings())

    def wanted(self, extras: Mapping[str, Any] | None) -> RequestSettings:
        """What a request asks for; without a word of its own, what the server was started with.

        Raises:
            ConfigError: a value out of range, more than one target, or a target that needs a profile.
            UnknownNameError: a key that is no setting.
            WrongTypeError: settings of another kind.
        """
        if not self.is_on and KEY not in (extras or {}):
            return RequestSettings(off=True)
        request = RequestSettings.of(extras, field=FIELD)
        self.check(request)
        return request

    def check(self, request: RequestSettings) -> None:
        """Refuse a target that nothing can reach. What a profile can reach shows with its pipeline."""
        if "profile" not in self.options:
            self.plan(request, None, region="step")


def extras_of(request: Any) -> Mapping[str, Any]:
    """The extra arguments of SGLang's sampling parameters or of its request."""
    extra = getattr(request, "extra", None)
    given = extra.get(FIELD) if isinstance(extra, Mapping) else None
    given = given if given is not None else getattr(request, FIELD, None)
    return given if isinstance(given, Mapping) else {}


def _decoded(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ConfigError(
            f'{VARIABLE}={text!r:.60}: the variable must be "on", "off" or a JSON object such as {{"speedup": 2}}'
        )
    return options
