"""The engine: requests in, steps, results out, and a record of what happened in which step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch

from omnireuse.base.validation import field_error
from omnireuse.errors import ConfigError, StateError
from omnireuse_engines.vllm.engine.config import EngineConfig
from omnireuse_engines.vllm.engine.model import IMAGE_TOKEN, TinyOmniModel
from omnireuse_engines.vllm.engine.request import Request, Result, Sequence
from omnireuse_engines.vllm.engine.runner import ModelRunner
from omnireuse_engines.vllm.engine.scheduler import ScheduledStep, Scheduler
from omnireuse_engines.vllm.vllm_manager import VllmEncoderCacheManager

__all__ = ["Engine", "Mark"]


class Mark(NamedTuple):
    """Something that a request did in a step.

    Args:
        kind: prefill or decode (tokens computed), prefix hit (tokens not computed), encode, encoder hit or load
            (images), preempt, abort, finish.
        number: of these.
    """

    step: int
    request_id: str
    kind: str
    number: int = 1


class Engine:
    """Serve requests with a thinker and a talker, on the CPU.

    Args:
        model: the model.
        config: sizes and switches.

    Attributes:
        marks: what happened, in order.
        counts: the sums of the marks by kind.
        num_steps: steps done.
        seconds: time spent in steps.

    Raises:
        ConfigError: an image of the model fits into no step, or not into the encoder cache.
    """

    def __init__(self, model: TinyOmniModel, config: EngineConfig | None = None) -> None:
        self.model, self.config = model, config or EngineConfig()
        for name in ("encoder_step_embeds", "encoder_cache_embeds"):
            if getattr(self.config, name) < model.num_image_embeds:
                raise field_error(self.config, name, f"be at least {model.num_image_embeds}, as one image has")
        cache = VllmEncoderCacheManager(self.config.encoder_cache_embeds)
        self.scheduler = Scheduler(self.config, cache)
        self.runner = ModelRunner(model, self.config)
        self.marks: list[Mark] = []
        self.counts: Counter[str] = Counter()
        self.num_steps, self.seconds, self._num_added = 0, 0.0, 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is alive."""
        return not self.scheduler.running and not self.scheduler.waiting

    def add(self, request: Request) -> None:
        """Take a request.

        Raises:
            StateError: one of that name is alive.
            ConfigError: it could never be served.
        """
        if self.scheduler.find(request.request_id) is not None:
            raise StateError(f"request {request.request_id!r}: must not be alive already; abort it or name it anew")
        self._require_servable(request)
        self._num_added += 1
        salt = "" if self.config.share_encodes else str(self._num_added)
        self.scheduler.waiting.append(Sequence(request=request, salt=salt, token_ids=list(request.token_ids)))

    def abort(self, request_id: str) -> bool:
        """Let a request go; False if none of that name is alive."""
        sequence = self.scheduler.find(request_id)
        if sequence is None:
            return False
        self.scheduler.abort(sequence)
        self._mark(request_id, "abort")
        return True

    @torch.inference_mode()
    def step(self) -> list[Result]:
        """Compute one step; returns what it finished."""
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        assert plan.scheduled or self.is_idle, "requests are alive and none of them can go on"
        output = self.runner.execute(plan)
        self._record(plan, output.encoder)
        results = [self._finish(sequence) for sequence in self.scheduler.update(plan, output.sampled)]
        self.num_steps += 1
        self.seconds += time.perf_counter() - start
        return results

    def run(self) -> Iterator[Result]:
        """Step until no request is alive."""
        while not self.is_idle:
            yield from self.step()

    def assert_invariants(self) -> None:
        """Assert that nothing leaks and that nobody relies on what is not there."""
        self.scheduler.blocks.assert_invariants()
        self.runner.outputs.assert_invariants()
        shared = self.scheduler.encoder_cache.shared
        shared.assert_invariants()
        outputs, stats = self.runner.outputs.on_device, shared.stats()
        assert len(outputs) == stats["entries"], "the runner has other outputs than the cache says"
        assert all(shared.is_ready(key.content) for key in outputs), "the runner has an output that is no hit"
        if self.is_idle:
            assert stats["entries"] == stats["idle_entries"], "an encoder output is held by nobody alive"
            assert self.scheduler.blocks.num_free == self.config.num_blocks, "a block is used by nobody alive"

    def _finish(self, sequence: Sequence) -> Result:
        hidden, embeds = torch.cat(sequence.hidden), torch.cat(sequence.embeds)
        request = sequence.request
        self._mark(request.request_id, "finish")
        return Result(
            request_id=request.request_id,
            token_ids=tuple(sequence.token_ids[len(request.token_ids) :]),
            hidden=hidden,
            embeds=embeds,
            codes=tuple(self.model.speak(hidden, embeds, request.num_codes)),
            num_preemptions=sequence.num_preemptions,
        )

    def _record(self, plan: ScheduledStep, encoder: list[tuple[str, str]]) -> None:
        for name in plan.preempted:
            self._mark(name, "preempt")
        for each in plan.scheduled:
            name = each.sequence.request_id
            self._mark(name, "prefix hit", len(each.hit_blocks) * self.config.block_size)
            self._mark(name, "encoder hit", len(each.reused))
            self._mark(name, "decode" if each.is_decode else "prefill", each.stop - each.start)
        for (name, kind), count in Counter(encoder).items():
            self._mark(name, kind, count)

    def _mark(self, request_id: str, kind: str, count: int = 1) -> None:
        if count:
            self.marks.append(Mark(self.num_steps, request_id, kind, count))
            self.counts[kind] += count

    def _require_servable(self, request: Request) -> None:
        name, room = f"request {request.request_id!r}", self.config.num_blocks * self.config.block_size
        if not request.token_ids or request.max_new_tokens < 1:
            raise ConfigError(f"{name}: must have a prompt and max_new_tokens of at least 1")
        if len(request.token_ids) + request.max_new_tokens - 1 > room:
            raise ConfigError(
                f"{name}: must fit in the KV cache alone, got {len(request.token_ids)} + {request.max_new_tokens} "
                f"tokens with room for {room}"
            )
        placeholders = {n for n, token in enumerate(request.token_ids) if token == IMAGE_TOKEN}
        shown = [n for image in request.images for n in range(image.offset, image.stop)]
        if len(shown) != len(set(shown)) or set(shown) != placeholders:
            raise ConfigError(f"{name}: every placeholder must belong to one image, and the reverse")
