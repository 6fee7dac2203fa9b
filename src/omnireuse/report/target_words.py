"""What the answers of a comparison say, for people."""

from __future__ import annotations

__all__ = ["target_words"]

WORDS = {
    "steps_over_best_peer_worst": "computed steps / best cache's at equal PSNR, 30..50 dB, worst",
    "steps_over_best_peer_median": "… median",
    "steps_over_best_peer_share": "… share of the range where both have an answer",
    "db_over_best_peer_at": "dB above the best cache at {} fewer steps",
    "db_over_best_floor_at": "dB above the best floor at {} fewer steps",
    "attributes_over_full_at": "attributes right, less the full run's, at {} fewer steps",
}
"""For people, by the stem of a target's name."""


def target_words(name: str) -> str:
    """What a target says, for people."""
    stem, _, fewer = name.rpartition("_") if name.endswith("x") else (name, "", "")
    return WORDS.get(stem, stem).format(fewer)
