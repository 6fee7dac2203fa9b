"""What a server may be started with."""

from __future__ import annotations

import pytest

from omnireuse import EasyCache, handle_of
from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse.integrations.settings import RequestSettings, ServerSettings
from tests.helpers.tiny import TINY

SERVER, THREE = RequestSettings(), RequestSettings.of({"omnireuse": {"speedup": 3}})


def test_a_named_cache_serves_with_its_options_and_a_request_may_ask_for_a_target_instead() -> None:
    pipe = TINY["flux"]().pipe
    settings = ServerSettings({"backend": "easy_cache", "easy_thresh": 0.3}, place="--cache-config")
    plan = settings.plan(SERVER, pipe)
    assert plan.strategy is not None
    assert isinstance(plan.strategy.policy, EasyCache)
    assert plan.strategy.policy.threshold == 0.3
    assert handle_of(pipe) is None
    assert settings.enable_arguments(THREE) == {"speedup": 3}
    assert settings.plan(THREE, pipe).name == "3x fewer steps"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"easy_thresh": 0.3}, UnknownNameError, "easy_thresh"),
        ({"backend": "easy_cash"}, UnknownNameError, "easy_cache"),
        ({"backend": "easy_cache", "easy_tresh": 0.3}, UnknownNameError, "easy_thresh"),
        ({"backend": "easy_cache", "speedup": 2}, ConfigError, "speedup"),
    ],
)
def test_options_that_fit_nothing_are_errors(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ServerSettings(options, place="--cache-config").plan(SERVER, TINY["flux"]().pipe)
