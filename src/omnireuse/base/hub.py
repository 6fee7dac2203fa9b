"""The reason of a failed download from the Hugging Face Hub, in one sentence."""

from __future__ import annotations

__all__ = ["why_refused"]

LONGEST = 400
"""Most letters of the client's own words."""


def why_refused(error: BaseException) -> str:
    """The words of the hub's client as one line, and what to do."""
    words = " ".join(str(error).split()) or type(error).__name__
    shown = words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
    return (
        f"{shown.rstrip('.')}; check the name and the network, unset HF_HUB_OFFLINE, and for a private or gated "
        "repository accept its terms and log in with `hf auth login`"
    )
