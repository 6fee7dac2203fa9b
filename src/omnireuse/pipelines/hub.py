"""Why a pipeline could not be loaded, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["why_not_loaded"]

GATED = "the repository is gated; accept its terms on its page, and log in with `hf auth login`"
NOT_FOUND = (
    "there is neither such a folder here nor such a repository on the hub, or it is private; check the name, or log in "
    "with `hf auth login`"
)
OFFLINE = (
    "there is no such folder here, the hub's cache holds no whole copy of such a repository, and HF_HUB_OFFLINE "
    "forbids to download it; unset it, or download it beforehand with `hf download`"
)
UNREACHED = (
    "there is no such folder here, the hub's cache holds no whole copy of such a repository, and the hub cannot be "
    "reached; check the name and the network"
)
NO_PIPELINE = (
    "the repository holds no diffusers pipeline, or lacks a file of it; give package:function for a function that "
    "loads it"
)


def why_not_loaded(name: str, error: BaseException) -> str:
    """What stands behind an error of `from_pretrained`, and what to do.

    Args:
        name: the folder or the id.
        error: as it came; errors of the hub are looked for in its causes.
    """
    if Path(name).is_dir():
        return f"the pipeline in this folder cannot be loaded ({_first_line(error)}); save it anew, or complete it"
    from huggingface_hub import errors

    causes = list(_causes(error))
    for kind, sentence in (
        (errors.GatedRepoError, GATED),
        (errors.RepositoryNotFoundError, NOT_FOUND),
        (errors.OfflineModeIsEnabled, OFFLINE),
        ((errors.LocalEntryNotFoundError, ConnectionError), UNREACHED),
    ):
        if any(isinstance(cause, kind) for cause in causes):
            return sentence
    # Which library makes the connection depends on the version of the hub's.
    if any(word in type(cause).__name__ for cause in causes for word in ("Connect", "Network", "Timeout")):
        return UNREACHED
    if any(isinstance(cause, errors.EntryNotFoundError) for cause in causes):
        return NO_PIPELINE
    return f"it cannot be loaded ({_first_line(error)})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _first_line(error: BaseException) -> str:
    text = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
