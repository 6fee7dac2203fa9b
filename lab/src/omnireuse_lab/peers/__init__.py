"""Methods of papers and of other libraries, written here; `omnireuse compare` takes them as it takes a user's own.

    omnireuse compare MODEL --prompts FILE --method omnireuse_lab.peers:SPECTRUM omnireuse_lab.peers:L2P

The head of each file names the paper, its public code and every difference.
"""

from __future__ import annotations

from collections.abc import Collection

from omnireuse_lab.compare.methods.base import Method
from omnireuse_lab.peers.attention import FASTER_CACHE, PYRAMID
from omnireuse_lab.peers.bud_cache import BUD_CACHE
from omnireuse_lab.peers.di_cache import DI_CACHE
from omnireuse_lab.peers.hicache import HICACHE
from omnireuse_lab.peers.l2p import L2P
from omnireuse_lab.peers.lemica import LEMICA
from omnireuse_lab.peers.mean_cache import MEAN_CACHE
from omnireuse_lab.peers.optimal_steps import OPTIMAL_STEPS
from omnireuse_lab.peers.recache import RECACHE
from omnireuse_lab.peers.sen_cache import SEN_CACHE
from omnireuse_lab.peers.speca import SPECA
from omnireuse_lab.peers.spectrum import SPECTRUM
from omnireuse_lab.peers.tc_pade import TC_PADE

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
    """Those of these keys and families; all of them if none is given."""
    return [peer for peer in PEERS.values() if not only or {peer.key, peer.family} & set(only)]
