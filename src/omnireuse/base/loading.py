"""Loading models without the messages and progress bars of the libraries, and why a download failed."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

__all__ = ["quiet_loading", "why_refused"]


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Hide warnings and progress bars of diffusers and transformers, but neither errors nor the progress of downloads.

    Hides nothing if the logger "omnireuse" shows information (``-v`` on the command line).
    """
    if logging.getLogger("omnireuse").isEnabledFor(logging.INFO):
        yield
        return
    import diffusers
    import transformers
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logs = [library.utils.logging for library in (diffusers, transformers)]
    before = [(log.get_verbosity(), log.is_progress_bar_enabled()) for log in logs]
    downloads_shown = not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for log in logs:
            log.set_verbosity_error()
            log.disable_progress_bar()
        if downloads_shown:  # transformers has switched them off
            enable_progress_bars()
        try:
            yield
        finally:
            for log, (verbosity, bars) in zip(logs, before, strict=True):
                log.set_verbosity(verbosity)
                if bars:
                    log.enable_progress_bar()
            if not downloads_shown:  # transformers has switched them on
                disable_progress_bars()


LONGEST = 200
"""Most letters of the client's own words."""
_ADVICE = re.compile(r"\(Request ID: [^)]*\) ?|\b(?:Please|If you are) .*")


def why_refused(error: BaseException, place: str) -> str:
    """Why nothing was loaded from a place, as one line, and what to do.

    Args:
        error: of the client of the hub, or of what read the files.
        place: that was given; a folder or file of this name is read, and every other name is an id on the hub.
    """
    words = _ADVICE.sub("", " ".join(str(error).split())).strip() or type(error).__name__
    shown = words.rstrip(".") if len(words) <= LONGEST else f"{words[:LONGEST]}…"
    if Path(place).exists():
        return f"it is damaged or not whole: {shown}; copy or download it again"
    return (
        f"there is no such folder, and nothing was loaded from the hub under this id: {shown}; check the name "
        "and the network, unset HF_HUB_OFFLINE, and for a private or gated repository accept its terms and log in with "
        "`hf auth login`"
    )
