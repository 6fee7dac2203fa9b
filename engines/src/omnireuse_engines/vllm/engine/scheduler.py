"""Who computes what in the next step: chunked prefill, prefix hits, encoder inputs, preemption."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from omnireuse_engines.vllm.engine.blocks import BlockPool
from omnireuse_engines.vllm.engine.config import EngineConfig
from omnireuse_engines.vllm.engine.request import Sequence
from omnireuse_engines.vllm.vllm_manager import VllmEncoderCacheManager

__all__ = ["Scheduled", "ScheduledStep", "Scheduler"]


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """What one request does in a step: compute the tokens [start, stop).

    Args:
        to_encode: images to encode before.
        reused: images whose output is there already and that this request begins to use.
        hit_blocks: blocks that the request starts on, because somebody computed the same prefix.
    """

    sequence: Sequence
    start: int
    stop: int
    to_encode: tuple[int, ...] = ()
    reused: tuple[int, ...] = ()
    hit_blocks: tuple[int, ...] = ()

    @property
    def is_decode(self) -> bool:
        """Whether it computes just the token that was generated last."""
        return self.start >= len(self.sequence.request.token_ids) and self.stop - self.start == 1


@dataclass(kw_only=True)
class ScheduledStep:
    """One step.

    Args:
        freed_outputs: names of the encoder outputs that the runner drops first.
        evicted_blocks: blocks that were given to other content.
        preempted: requests that lost their blocks and start again later.
    """

    scheduled: list[Scheduled] = field(default_factory=list)
    freed_outputs: list[str] = field(default_factory=list)
    evicted_blocks: list[int] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)


class Scheduler:
    """First come, first served. Requests that run go on before waiting ones start; the youngest is preempted first.

    Args:
        config: sizes and switches.
        encoder_cache: decides which encoder outputs stay.
    """

    def __init__(self, config: EngineConfig, encoder_cache: VllmEncoderCacheManager) -> None:
        self.config, self.encoder_cache = config, encoder_cache
        self.blocks = BlockPool(config.num_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def find(self, request_id: str) -> Sequence | None:
        """Return a request that is alive."""
        return next((s for s in (*self.running, *self.waiting) if s.request_id == request_id), None)

    def schedule(self) -> ScheduledStep:
        """Plan a step; what it needs is taken."""
        plan = ScheduledStep()
        self._tokens_left = self.config.max_step_tokens
        self._embeds_left = self.config.encoder_step_embeds
        for sequence in list(self.running):
            if sequence in self.running:  # it may have been preempted for one before it
                self._continue(sequence, plan)
        while self.waiting and not plan.preempted and len(self.running) < self.config.max_running:
            if not self._start(self.waiting[0], plan):
                break
        plan.evicted_blocks = self.blocks.drain_evicted()
        plan.freed_outputs = self.encoder_cache.get_freed_mm_hashes()
        return plan

    def update(self, plan: ScheduledStep, sampled: dict[str, int]) -> list[Sequence]:
        """Take note of what a step computed; returns the requests that are finished and have left."""
        finished = []
        for scheduled in plan.scheduled:
            sequence = scheduled.sequence
            sequence.num_computed = scheduled.stop
            for input_id, image in enumerate(sequence.request.images):
                if image.stop <= scheduled.stop:  # its tokens are in the KV cache now
                    self.encoder_cache.free_encoder_input(sequence, input_id)
            if sequence.request_id in sampled:
                sequence.token_ids.append(sampled[sequence.request_id])
            self._publish(sequence)
            if sequence.is_finished:
                self._leave(sequence)
                finished.append(sequence)
        return finished

    def abort(self, sequence: Sequence) -> None:
        """Let a request go, wherever it stands."""
        if sequence in self.running:
            self._leave(sequence)
        else:
            self.waiting.remove(sequence)

    def _continue(self, sequence: Sequence, plan: ScheduledStep) -> None:
        stop, to_encode, reused = self._plan_tokens(sequence, sequence.num_computed)
        if stop == sequence.num_computed:
            return
        while not self._extend_blocks(sequence, stop):
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is sequence:
                return
        self._commit(plan, Scheduled(
            sequence=sequence, start=sequence.num_computed, stop=stop, to_encode=to_encode, reused=reused,
        ))  # fmt: skip

    def _start(self, sequence: Sequence, plan: ScheduledStep) -> bool:
        hit: list[int] = []
        if self.config.share_prefixes:
            # The last token is always computed: its hidden state says what comes next.
            most = (len(sequence.token_ids) - 1) // self.config.block_size
            hit = self.blocks.find_prefix(sequence.hash_blocks(self.config.block_size)[:most])
        self.blocks.take(hit)
        start = len(hit) * self.config.block_size
        sequence.block_ids = list(hit)
        stop, to_encode, reused = self._plan_tokens(sequence, start)
        if stop == start or not self._extend_blocks(sequence, stop):
            self.encoder_cache.free(sequence)
            self.blocks.release(sequence.block_ids)
            sequence.block_ids = []
            return False
        self.running.append(self.waiting.popleft())
        sequence.num_computed = start
        self._commit(plan, Scheduled(
            sequence=sequence, start=start, stop=stop, to_encode=to_encode, reused=reused, hit_blocks=tuple(hit),
        ))  # fmt: skip
        return True

    def _plan_tokens(self, sequence: Sequence, start: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Return up to where a request can compute, and which images it encodes or begins to use for that.

        A chunk of a prompt ends with a block if it can: the arithmetic is then the same wherever it began.
        """
        total, size = len(sequence.token_ids), self.config.block_size
        stop = min(total, start + self._tokens_left)
        if stop < total:
            stop = max(start, stop // size * size)
        held = self.encoder_cache.get_cached_input_ids(sequence)
        to_encode: list[int] = []
        reused: list[int] = []
        num_embeds = 0
        for input_id, image in enumerate(sequence.request.images):
            if image.offset >= stop or image.stop <= start:
                continue
            if self.encoder_cache.check_and_update_cache(sequence, input_id):
                reused += [] if input_id in held else [input_id]
                continue
            left = self._embeds_left - num_embeds
            if not self.encoder_cache.can_allocate(sequence, input_id, left, num_embeds):
                stop = max(start, image.offset)  # the image waits, and everything after it
                break
            num_embeds += image.num_embeds
            to_encode.append(input_id)
        return stop, tuple(to_encode), tuple(reused)

    def _extend_blocks(self, sequence: Sequence, stop: int) -> bool:
        count = -(-stop // self.config.block_size) - len(sequence.block_ids)
        if count > self.blocks.num_free:
            return False
        sequence.block_ids += self.blocks.allocate(max(0, count))
        return True

    def _commit(self, plan: ScheduledStep, scheduled: Scheduled) -> None:
        for input_id in scheduled.to_encode:
            self.encoder_cache.allocate(scheduled.sequence, input_id)
            self._embeds_left -= scheduled.sequence.get_num_encoder_embeds(input_id)
        self._tokens_left -= scheduled.stop - scheduled.start
        plan.scheduled.append(scheduled)

    def _preempt(self, sequence: Sequence, plan: ScheduledStep) -> None:
        self._leave(sequence)
        sequence.restart()
        self.waiting.appendleft(sequence)
        plan.preempted.append(sequence.request_id)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.encoder_cache.free(sequence)
        self.blocks.release(sequence.block_ids)
        sequence.block_ids = []

    def _publish(self, sequence: Sequence) -> None:
        if not self.config.share_prefixes:
            return
        size = self.config.block_size
        hashes = sequence.hash_blocks(size)
        for number in range(sequence.num_computed // size):
            self.blocks.publish(sequence.block_ids[number], hashes[number])
