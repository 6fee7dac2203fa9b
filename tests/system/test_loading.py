from __future__ import annotations

import logging
import warnings

import diffusers
import pytest
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from omnireuse.base.loading import quiet_loading
from reference.load import load_image_pipeline

LOGS = (diffusers.utils.logging, transformers.utils.logging)


def state() -> list[object]:
    libraries = [(log.get_verbosity(), log.is_progress_bar_enabled()) for log in LOGS]
    return [*libraries, are_progress_bars_disabled()]


def test_loading_is_quiet_and_leaves_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    before = state()
    with quiet_loading():
        assert not are_progress_bars_disabled(), "the progress of a download is shown"
        load_image_pipeline()
        warnings.warn("torch_dtype is deprecated", FutureWarning, stacklevel=1)
        for log in LOGS:
            log.get_logger(log.__name__).warning("nothing to worry about")
    assert "".join(capsys.readouterr()) == ""
    assert state() == before


def test_errors_of_the_libraries_are_shown(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with quiet_loading():
        for log in LOGS:
            assert log.get_logger(log.__name__).isEnabledFor(logging.ERROR)
            assert not log.get_logger(log.__name__).isEnabledFor(logging.WARNING)


def test_nothing_is_hidden_from_who_asks_for_more(caplog: pytest.LogCaptureFixture) -> None:
    before = state()
    with caplog.at_level(logging.INFO, logger="omnireuse"), quiet_loading():
        assert state() == before
