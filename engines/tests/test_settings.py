"""What a server may be started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnireuse import EasyCache, handle_of
from omnireuse.errors import ConfigError, UnknownNameError, WrongTypeError
from omnireuse_engines.request import TUNING_WORK, count_request
from omnireuse_engines.settings import KEY, MOST_PLANS, RequestSettings, ServerSettings, options_in
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


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"speedup": None}, WrongTypeError, "speedup must be a number, got None"),
        ({"computed_steps": 10**400}, ConfigError, "computed_steps must be a whole number"),
        ({"speedup": float("nan")}, ConfigError, "speedup must be"),
        ({1: 2}, UnknownNameError, "unknown setting"),
        ({"x" * 10**6: 2}, UnknownNameError, "unknown setting"),
        ([], WrongTypeError, "must be"),
    ],
)
def test_absurd_settings_are_errors_of_one_sentence(given: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        RequestSettings.of({"omnireuse": given})
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("given", [{"speedup": 0.5}, {"quality": 40}, {"computed_steps": 1}, {"speedup": "3x"}])
def test_errors_name_the_words_of_the_request_or_of_the_server(given: dict[str, object]) -> None:
    name = next(iter(given))
    with pytest.raises((ConfigError, WrongTypeError), match=rf"^omnireuse\({name}="):
        ServerSettings({}, place="--cache-config").plan(RequestSettings.of({"omnireuse": given}), None)
    with pytest.raises((ConfigError, WrongTypeError), match=rf"^--cache-config\({name}="):
        ServerSettings(given, place="--cache-config").plan(SERVER, None)


@pytest.mark.parametrize("given", ["on", "On", True, "true", 1, "1", {}])
def test_on_is_one_list_of_words(given: object) -> None:
    assert RequestSettings.of({"omnireuse": given}) == RequestSettings()
    if not isinstance(given, dict):
        assert options_in(str(given), place="OMNIREUSE_SGLANG") == {"default": "on"}


@pytest.mark.parametrize("given", ["off", "OFF ", False, "false", 0, "0"])
def test_off_is_one_list_of_words(given: object) -> None:
    assert RequestSettings.of({"omnireuse": given}) == RequestSettings(off=True)
    assert options_in(str(given), place="OMNIREUSE_SGLANG") == {"default": "off"}


def test_a_file_switches_every_request_off_from_the_next_one_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    switch = tmp_path / "off"
    monkeypatch.setenv("OMNIREUSE_OFF", str(switch))
    settings = ServerSettings({"speedup": 2}, place="--cache-config")
    asked = ({}, {"omnireuse": {"speedup": 3}})
    assert [settings.wanted(each).off for each in asked] == [False, False]
    switch.touch()
    assert [settings.wanted(each).off for each in asked] == [True, True]
    assert settings.admit(asked[1], steps=28)[1].name == "off"
    switch.unlink()
    assert [settings.wanted(each).off for each in asked] == [False, False]
    assert [record.getMessage().partition(str(switch))[2] for record in caplog.records] == [
        " exists, and each request from now on computes every step",
        " is gone, and each request from now on may reuse steps again",
    ]


def test_a_switch_that_is_no_path_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIREUSE_OFF", "1")
    with pytest.raises(ConfigError, match="OMNIREUSE_OFF='1': the variable must be an absolute path"):
        ServerSettings({}, place="--cache-config")


def test_counters_tell_the_state_of_tuning_and_its_work() -> None:
    prometheus_client = pytest.importorskip("prometheus_client", reason="needs omnireuse[metrics]")

    def value(name: str, **labels: str) -> float:
        return prometheus_client.REGISTRY.get_sample_value(name, labels) or 0.0

    tuning = f"{KEY}_request_tuning_total"
    before = [value(tuning, state=state) for state in ("measured", "untuned", "tuned")]
    work = value(f"{KEY}_tuning_runs_total")
    for tuned, reused, new in ((0, 0, 1.0), (0, 0, 2.5), (0, 12, 0.0), (1, 14, 0.0)):
        figures = {f"{KEY}_tuned": float(tuned), f"{KEY}_steps_reused": float(reused), TUNING_WORK: new}
        count_request(figures, "server")
    after = [value(tuning, state=state) for state in ("measured", "untuned", "tuned")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 1, 1]
    assert value(f"{KEY}_tuning_runs_total") - work == 3.5


@pytest.mark.parametrize(
    ("extras", "targets"),
    [(None, None), ({}, None), ({"omnireuse": None}, None), ({"omnireuse": "off"}, None), ({"omnireuse": "on"}, ())],
)
def test_reuse_that_is_off_by_default_serves_those_who_ask(
    extras: dict[str, object] | None, targets: tuple[()] | None
) -> None:
    settings = ServerSettings({"default": "off", "speedup": 4}, place="--cache-config")
    wanted = settings.wanted(extras)
    assert (wanted.off, settings.plan(wanted, None).name) == (
        targets is None,
        "off" if targets is None else "4x fewer steps",
    )
    assert settings.wanted({"omnireuse": {"speedup": 3}}) == THREE
    assert ServerSettings({"speedup": 4}, place="--cache-config").wanted(None) == SERVER


def test_extra_arguments_that_are_no_mapping_are_an_error() -> None:
    with pytest.raises(WrongTypeError, match=r"extra arguments.*must be a mapping, got list"):
        RequestSettings.of(["omnireuse"])  # type: ignore[arg-type]  # what a client may send


def test_a_server_keeps_the_plans_that_are_asked_for_and_a_limited_number_in_all() -> None:
    settings = ServerSettings({}, place="--cache-config")

    def plan(speedup: float) -> object:
        return settings.plan(RequestSettings.of({"omnireuse": {"speedup": speedup}}), None, region="step")

    asked_often, asked_once = plan(2), plan(2.5)
    for number in range(MOST_PLANS):
        plan(3 + number / 7)
        assert plan(2) is asked_often
    assert plan(2.5) is not asked_once


@pytest.mark.parametrize("name", ["Omnireuse", "OMNIREUSE", "omni_reuse", "omni-reuse", "omnireus", "ominreuse"])
def test_a_slip_of_the_pen_in_our_name_is_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"unknown extra argument of a request '{name}'.*known: omnireuse"):
        RequestSettings.of({name: "off"})
    with pytest.raises(UnknownNameError, match="known: omnireuse"):
        ServerSettings({"speedup": 2}, place="--cache-config").wanted({"omnireuse": "on", name: "off"})


@pytest.mark.parametrize("name", ["reuse", "omni", "cache", "omnireuse_of_another", 3])
def test_names_of_others_are_nobodys_business(name: object) -> None:
    extras: dict[Any, object] = {name: "off", "omnireuse": "off"}
    assert RequestSettings.of(extras).off


@pytest.mark.parametrize("name", ["speedup", "profile", "tune", "default", "max_speedup", "request_targets"])
def test_null_is_no_setting_of_a_server(name: str) -> None:
    with pytest.raises(WrongTypeError, match=rf"^--cache-config\({name}=None\): {name} must be .* or leave it out"):
        ServerSettings({name: None}, place="--cache-config")


@pytest.mark.parametrize(
    ("given", "steps", "message"),
    [
        ({"speedup": 1e9}, 24, r"speedup must leave at least 2 of the 24 steps computed, got 0; ask for at most 16"),
        ({"speedup": 16}, 24, None),
        ({"computed_steps": 25}, 24, "computed_steps must be at most the 24 steps of the run, got 25"),
        ({"tolerance": 0.1}, 1, None),
    ],
)
def test_what_a_run_of_known_length_cannot_give_is_refused(given: object, steps: int, message: str | None) -> None:
    settings, extras = ServerSettings({}, place="--cache-config"), {"omnireuse": given}
    settings.admit(extras, steps=None)
    if message is None:
        settings.admit(extras, steps=steps)
        return
    with pytest.raises(ConfigError, match=message):
        settings.admit(extras, steps=steps)


LIMITED = {"speedup": 2, "max_speedup": 4, "request_targets": ["speedup", "computed_steps"]}


@pytest.mark.parametrize(
    ("given", "steps", "message"),
    [
        ({"speedup": 1e9}, 28, "the speed-up must be at most 4 on this server"),
        ({"computed_steps": 6}, 28, r"at most 4 .* got 4\.66"),
        ({"computed_steps": 14}, None, "num_inference_steps must be given"),
        ({"tolerance": 0.1}, 28, "must be speedup or computed_steps on this server"),
        ({"speedup": 4}, None, None),
        ({"computed_steps": 7}, 28, None),
        ("on", None, None),
    ],
)
def test_an_operator_limits_what_requests_may_ask_for(given: object, steps: int | None, message: str | None) -> None:
    settings, extras = ServerSettings(LIMITED, place="--cache-config"), {"omnireuse": given}
    if message is None:
        settings.admit(extras, steps=steps)
        return
    with pytest.raises(ConfigError, match=message):
        settings.admit(extras, steps=steps)


def test_without_limits_every_valid_target_is_served() -> None:
    settings = ServerSettings({"speedup": 2}, place="--cache-config")
    settings.admit({"omnireuse": {"speedup": 1e9}}, steps=None)
    settings.admit({"omnireuse": {"computed_steps": 2}}, steps=None)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_speedup": 0.5}, ConfigError, "max_speedup must be a finite number of at least 1"),
        ({"max_speedup": "4x"}, ConfigError, "max_speedup must be"),
        ({"default": "half"}, ConfigError, 'default must be "on" or "off", got \'half\''),
        ({"request_targets": "speedup"}, WrongTypeError, "request_targets must be a list"),
        ({"request_targets": ["sped"]}, UnknownNameError, "did you mean 'speedup'"),
    ],
)
def test_limits_that_limit_nothing_are_errors(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ServerSettings(options, place="--cache-config")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (None, {"default": "off"}),
        ("", {"default": "off"}),
        (" on ", {"default": "on"}),
        ('{"speedup": 3}', {"speedup": 3}),
        ("2", None),
        ("maybe", None),
    ],
)
def test_an_environment_variable_says_on_off_or_options(text: str | None, options: dict[str, object] | None) -> None:
    if options is not None:
        assert options_in(text, place="SERVER") == options
        return
    with pytest.raises(ConfigError, match=rf"SERVER='{text}': the variable must be \"on\", \"off\" or a JSON object"):
        options_in(text, place="SERVER")
