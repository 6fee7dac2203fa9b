"""What the answers of a comparison say, for people."""

from __future__ import annotations

__all__ = ["target_words"]

WORDS = {
    "steps_over_best_peer_worst": "share of the best other cache's steps at equal PSNR, worst",
    "steps_over_best_peer_median": "share of the best other cache's steps at equal PSNR, median",
    "steps_over_best_peer_share": "share of 30 to 50 dB where both can be compared",
    "db_over_best_peer_at": "dB above the best other cache, {} fewer steps",
    "db_over_best_floor_at": "dB above the best without a cache, {} fewer steps",
    "attributes_over_full_at": "attributes right less the full run's, {} fewer steps",
}
"""For people, by the stem of a target's name."""


def target_words(name: str) -> str:
    """What a target says, for people."""
    stem, _, fewer = name.rpartition("_") if name.endswith("x") else (name, "", "")
    return WORDS.get(stem, stem).format(fewer)
