"""The caches of diffusers that reuse parts of a block: FasterCache and Pyramid Attention Broadcast.

Code: diffusers (`FasterCacheConfig`, `PyramidAttentionBroadcastConfig`). On images neither leaves out more than a
fifth of the steps. On clips without guidance they are at most 1.2 dB above fewer steps, and with guidance 19 to 28 dB
below (`bench/results/compare.json`), so users are not asked to wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omnireuse_lab.compare.methods.base import Method, Setting, Subject
from omnireuse_lab.compare.methods.diffusers import diffusers_setting
from omnireuse_lab.compare.workload import is_distilled

__all__ = ["FASTER_CACHE", "PYRAMID"]


def _faster_cache(subject: Subject) -> Iterator[Setting]:
    # Its guess at the unconditional branch wants both branches in one batch; otherwise its attention cache is left.
    workload = subject.workload
    is_guided = workload.guidance > 1.0 and not is_distilled(workload.pipeline)
    is_in_one_batch = is_guided and subject.calls_per_step == 1
    for skip, bound in ((2, 681), (3, 901)):
        options = {
            "spatial_attention_block_skip_range": skip,
            "spatial_attention_timestep_skip_range": (-1, bound),
            "is_guidance_distilled": not is_in_one_batch,
            "tensor_format": "BCFHW" if subject.probe.ndim == 4 else "BCHW",
        }
        yield diffusers_setting("FasterCacheConfig", options)


def _pyramid(_: Subject) -> Iterator[Setting]:
    for skip, bounds in ((2, (100, 800)), (3, (100, 950))):
        options: dict[str, Any] = {}
        for kind, every in (("spatial", skip), ("cross", skip + 1)):
            options |= {f"{kind}_attention_block_skip_range": every, f"{kind}_attention_timestep_skip_range": bounds}
        yield diffusers_setting("PyramidAttentionBroadcastConfig", options)


FASTER_CACHE = Method(key="faster-cache", name="diffusers FasterCache", family="peer", grid=_faster_cache)
PYRAMID = Method(key="pyramid", name="diffusers Pyramid Attention Broadcast", family="peer", grid=_pyramid)
