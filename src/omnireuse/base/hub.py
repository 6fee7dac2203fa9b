"""The reason of a failed download from the Hugging Face Hub, in one sentence."""

from __future__ import annotations

from pathlib import Path

__all__ = ["why_not_loaded", "why_refused"]

GATED = "the repository is gated; accept its terms on its page, and log in with `hf auth login`"
NOT_FOUND = (
    "there is neither such a folder here nor such a repository on the hub, or it is private; check the name, or log in "
    "with `hf auth login`"
)
NO_REVISION = "the repository has no such revision; give a branch, a tag or a commit of it"
_NOT_HERE = "there is no such folder here, the hub's cache holds no whole copy of such a repository, and "
OFFLINE = f"{_NOT_HERE}HF_HUB_OFFLINE forbids to download it; unset it, or download it beforehand with `hf download`"
UNREACHED = f"{_NOT_HERE}the hub cannot be reached; check the name and the network"
NO_PIPELINE = (
    "the repository holds no diffusers pipeline, or lacks a file of it; give package:function for a function that "
    "loads it"
)


def why_not_loaded(name: str, error: BaseException) -> str:
    """The reason behind an error of a pipeline's `from_pretrained`, and what to do."""
    if Path(name).is_dir():
        return f"the pipeline in this folder cannot be loaded ({_line(error)}); save it anew, or complete it"
    return why_refused(error, NO_PIPELINE)


def why_refused(error: BaseException, no_file: str) -> str:
    """The reason behind an error of the hub's client, and what to do; `no_file` where the repository lacks the file."""
    from huggingface_hub import errors

    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for kind, sentence in (
        (errors.GatedRepoError, GATED),
        (errors.RepositoryNotFoundError, NOT_FOUND),
        (errors.RevisionNotFoundError, NO_REVISION),
        (errors.OfflineModeIsEnabled, OFFLINE),
        ((errors.LocalEntryNotFoundError, ConnectionError), UNREACHED),
    ):
        if any(isinstance(cause, kind) for cause in causes):
            return sentence
    # The library that makes the connection depends on the version of huggingface_hub.
    if any(word in type(cause).__name__ for cause in causes for word in ("Connect", "Network", "Timeout")):
        return UNREACHED
    if any(isinstance(cause, errors.EntryNotFoundError) for cause in causes):
        return no_file
    return f"it cannot be loaded ({_line(error)})"


def _line(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return line if len(line) <= 200 else f"{line[:200]}…"
