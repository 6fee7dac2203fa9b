"""Made-up requests: random traces with much in common, and the loop that serves them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from omnireuse_engines.vllm.engine.engine import Engine
from omnireuse_engines.vllm.engine.model import TinyOmniModel
from omnireuse_engines.vllm.engine.request import Image, Request, Result, image_tokens

__all__ = ["Arrival", "PromptBuilder", "Trace", "random_trace", "serve"]

Part = torch.Tensor | Sequence[int]


class PromptBuilder:
    """Put prompts together from texts and images.

    Args:
        model: says how large an image is, and how many placeholders it takes.
    """

    def __init__(self, model: TinyOmniModel) -> None:
        self._num_embeds, self._image_size, self._vocab_size = (
            model.num_image_embeds, model.image_size, model.vocab_size,
        )  # fmt: skip

    def text(self, rng: np.random.Generator, length: int) -> list[int]:
        """Return random tokens, none of them a placeholder."""
        return [int(token) for token in rng.integers(2, self._vocab_size, length)]

    def image(self, number: int) -> torch.Tensor:
        """Return image number `number`, (3, height, width)."""
        generator = torch.Generator().manual_seed(number)
        return torch.rand(3, self._image_size, self._image_size, generator=generator)

    def join(self, parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[Image, ...]]:
        """Return the tokens and images of a prompt: an image is its pixels, a text its tokens."""
        token_ids: list[int] = []
        images = []
        for part in parts:
            if isinstance(part, torch.Tensor):
                images.append(Image(pixels=part, offset=len(token_ids), num_embeds=self._num_embeds))
                token_ids += image_tokens(self._num_embeds)
            else:
                token_ids += part
        return tuple(token_ids), tuple(images)


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrival:
    """A request that arrives before a step, and the step before which it is aborted, if it is."""

    step: int
    request: Request
    abort_step: int | None = None


Trace = list[Arrival]


def random_trace(model: TinyOmniModel, seed: int, num_requests: int, *, aborted: float = 0.1) -> Trace:
    """Make requests that share images and beginnings.

    Half of the images are one of four hot ones, two thirds of the prompts begin as one of three others do (one of which
    shows an image), some show an image twice. One in six belongs to another tenant.

    Args:
        aborted: share of requests that are aborted some steps after they came; half of these come again, under the same
            name, in the same step.
    """
    rng, build = np.random.default_rng(seed), PromptBuilder(model)
    beginnings: list[list[Part]] = [
        [build.text(rng, 40)], [build.text(rng, 10), build.image(0), build.text(rng, 22)], [build.text(rng, 70)],
    ]  # fmt: skip
    trace: Trace = []
    for number in range(num_requests):
        parts = list(beginnings[rng.integers(3)]) if rng.random() < 2 / 3 else []
        for _ in range(rng.integers(0, 3)):
            is_hot = rng.random() < 0.5
            parts.append(build.image(int(rng.integers(4)) if is_hot else 1000 + number))
            parts.append(build.text(rng, int(rng.integers(1, 12))))
        if rng.random() < 0.2:
            parts += [part for part in parts if isinstance(part, torch.Tensor)][:1]
        parts.append(build.text(rng, int(rng.integers(1, 8))))
        token_ids, images = build.join(parts)
        request = Request(
            request_id=f"r{number}", token_ids=token_ids, images=images, max_new_tokens=int(rng.integers(1, 10)),
            num_codes=2, tenant="other" if rng.random() < 1 / 6 else "",
        )  # fmt: skip
        step = int(rng.integers(0, 2)) + (trace[-1].step if trace else 0)
        if rng.random() < aborted:
            abort_step = step + int(rng.integers(0, 8))
            trace.append(Arrival(step=step, request=request, abort_step=abort_step))
            if rng.random() < 0.5:
                trace.append(Arrival(step=abort_step, request=request))
        else:
            trace.append(Arrival(step=step, request=request))
    return sorted(trace, key=lambda arrival: arrival.step)


def serve(
    engine: Engine, trace: Trace, *, after_step: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, Result]]:
    """Serve a trace; yields the index in the trace with each result. An aborted one has none, unless it was quicker.

    Args:
        after_step: called after every step.
    """
    todo, alive = deque(enumerate(trace)), dict[str, int]()
    to_abort: dict[int | None, list[int]] = {}
    for index, arrival in enumerate(trace):
        to_abort.setdefault(arrival.abort_step, []).append(index)
    step = 0
    while todo or not engine.is_idle:
        for index in to_abort.get(step, ()):
            name = trace[index].request.request_id
            if alive.get(name) == index:
                engine.abort(name)
                del alive[name]
        while todo and todo[0][1].step <= step and todo[0][1].request.request_id not in alive:
            index, arrival = todo.popleft()
            engine.add(arrival.request)
            alive[arrival.request.request_id] = index
        for result in engine.step():
            yield alive.pop(result.request_id), result
        after_step()
        step += 1
