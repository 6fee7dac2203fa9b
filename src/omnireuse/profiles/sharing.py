"""Profiles in folders and on the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from omnireuse import messages
from omnireuse.base.loading import why_refused
from omnireuse.errors import ConfigError

__all__ = ["check_place", "found"]

FILE = "profile.json"
"""Name of the profile in a folder or repository. Nothing else of it is read."""
_ID = re.compile(r"(?P<id>\w[\w.-]*/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def check_place(place: str | os.PathLike[str]) -> None:
    """Refuse, without asking the hub, what is neither a file, a folder with a profile, nor like an id on the hub.

    Raises:
        ConfigError: none of them.
    """
    path = Path(place)
    if path.is_dir():
        if not (path / FILE).is_file():
            others = sorted(each.name for each in path.glob("*.json") if each.name != "model_index.json")
            do = "write one with Profile.save"
            if others:
                more = f" and {len(others) - 4} more" if len(others) > 4 else ""
                do = f"it has {', '.join(others[:4])}{more}: give one of them, such as {str(path / others[0])!r}"
            raise ConfigError(f"{path}: a folder of a profile must hold {FILE}; {do}")
    elif not path.is_file() and (path.suffix == ".json" or not _ID.fullmatch(str(place))):
        raise ConfigError(messages.NO_PROFILE, path=path)


def found(place: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The file of the profile in this place; downloaded, or taken from the hub's cache, if it is an id.

    Args:
        place: a file, a folder with `FILE`, ``owner/name`` or ``owner/name@revision``.
        revision: branch, tag or commit; None for what the id says, else the main branch.

    Raises:
        ConfigError: nothing there, a revision of something that has none, or the hub refuses; one sentence says why.
    """
    check_place(place)
    path = Path(place)
    if path.exists():
        if revision is not None:
            raise ConfigError(messages.NO_REVISION, revision=revision, path=path)
        return path / FILE if path.is_dir() else path
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    match = _ID.fullmatch(str(place))
    assert match is not None, "checked above"
    try:
        # The client's errors are OSErrors and ValueErrors; those of the connection depend on its version.
        return Path(hf_hub_download(match["id"], FILE, revision=revision or match["revision"]))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ConfigError(f"profile {str(place)!r}: {why_refused(error, str(place))}") from error
