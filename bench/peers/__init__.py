"""Methods of papers and of other libraries, written here; `omnireuse compare` takes them as it takes a user's own.

    omnireuse compare MODEL --prompts FILE --method bench.peers:SPECTRUM bench.peers:L2P

The head of each file names the paper, its public code and every difference.
"""

from __future__ import annotations

from collections.abc import Collection

from bench.peers.attention import FASTER_CACHE, PYRAMID
from bench.peers.bud_cache import BUD_CACHE
from bench.peers.di_cache import DI_CACHE
from bench.peers.hicache import HICACHE
from bench.peers.l2p import L2P
from bench.peers.lemica import LEMICA
from bench.peers.mean_cache import MEAN_CACHE
from bench.peers.optimal_steps import OPTIMAL_STEPS
from bench.peers.recache import RECACHE
from bench.peers.sen_cache import SEN_CACHE
from bench.peers.speca import SPECA
from bench.peers.spectrum import SPECTRUM
from bench.peers.tc_pade import TC_PADE
from omnireuse_lab.compare.methods.base import Method

__all__ = ["PEERS", "peers_among"]

PEERS: dict[str, Method] = {
    method.key: method
    for method in (
        OPTIMAL_STEPS,
        HICACHE,
        SPECTRUM,
        DI_CACHE,
        TC_PADE,
        SPECA,
        MEAN_CACHE,
        SEN_CACHE,
        L2P,
        BUD_CACHE,
        LEMICA,
        RECACHE,
        FASTER_CACHE,
        PYRAMID,
    )
}
"""By their keys."""


def peers_among(only: Collection[str]) -> list[Method]:
    """Those of these keys and families; all of them where none is given."""
    return [peer for peer in PEERS.values() if not only or {peer.key, peer.family} & set(only)]
