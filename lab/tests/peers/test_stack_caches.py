"""TC-Padé and SpeCa on a tiny Flux, beside what a naive loop over the plain model's features gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omnireuse.models import block_stack_for
from omnireuse_lab.compare.restore import restored
from omnireuse_lab.peers.speca import Speculation
from omnireuse_lab.peers.stack_cache import stack_caches
from omnireuse_lab.peers.tc_pade import PadeResiduals, staged
from tests.helpers.tiny import flux

STEPS = 16
Streams = list[torch.Tensor]


@pytest.fixture(scope="module")
def pipe() -> Any:
    return flux().pipe


def feed(step: int) -> dict[str, Any]:
    """The denoiser's arguments at a step: latents that move along an arc, and do not depend on what it gave before."""
    draw = torch.Generator().manual_seed(5)
    here, there, text = (torch.randn(1, *shape, generator=draw) for shape in ((16, 16), (16, 16), (6, 32)))
    turn = 1.5 * step / STEPS
    return {
        "hidden_states": math.cos(turn) * here + math.sin(turn) * there,
        "encoder_hidden_states": text,
        "pooled_projections": text.mean(1),
        "timestep": torch.tensor([0.5]),  # with random weights the features jump from one timestep to the next
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(6, 3),
    }


@contextmanager
def hooked(handles: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def plain(pipe: Any) -> list[SimpleNamespace]:
    """For each step the streams before the stack, before its last block and behind it, and that block's arguments."""
    model = pipe.transformer
    blocks = block_stack_for(type(model).__name__).blocks_of(model)
    seen = list[SimpleNamespace]()

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        seen.append(SimpleNamespace(entry=[each.clone() for each in blocks[0].entering(kwargs)]))

    def leave(_: Any, args: Any, kwargs: Any, result: Any) -> None:
        seen[-1].given = dict(kwargs)
        seen[-1].up_to_last = [each.clone() for each in blocks[-1].entering(kwargs)]
        seen[-1].behind = [each.clone() for each in result]

    first = blocks[0].module.register_forward_pre_hook(enter, with_kwargs=True)
    last = blocks[-1].module.register_forward_hook(leave, with_kwargs=True)
    with hooked([first, last]):
        for step in range(STEPS):
            model(**feed(step))
    return seen


@torch.no_grad()
def run(pipe: Any, kind: Callable[..., Any], **options: Any) -> tuple[list[torch.Tensor], list[int]]:
    """The image tokens behind the stack at every step, and the steps whose first block ran."""
    model, behind, ran = pipe.transformer, list[torch.Tensor](), list[int]()
    hooks = [
        model.norm_out.register_forward_pre_hook(lambda _, args: behind.append(args[0].clone())),
        model.transformer_blocks[0].attn.register_forward_hook(lambda *_: ran.append(step)),
    ]
    with hooked(hooks), restored(pipe), stack_caches(pipe, kind, steps=STEPS, count=1, **options):
        for step in range(STEPS):
            before = len(behind)
            model(**feed(step))
            # A rejected draft goes through the whole denoiser, and is thrown away.
            del behind[before:-1]
    return behind, ran


# -- TC-Padé ----------------------------------------------------------------------------------------------------------


def turned(first: Streams, second: Streams, third: Streams) -> float:
    """The sine of half of the angle at the second point of the image tokens' path."""
    cosine = torch.nn.functional.cosine_similarity((second[1] - first[1]).ravel(), (third[1] - second[1]).ravel(), 0)
    return math.sqrt((1 - float(cosine)) / 2)


@pytest.mark.parametrize(("interval", "threshold"), [(3, 2.0), (8, 2.0), (8, 0.5)])
def test_tc_pade_does_what_a_naive_loop_does(pipe: Any, interval: int, threshold: float) -> None:
    behind, ran = run(pipe, PadeResiduals, interval=interval, threshold=threshold)
    residuals, computed = list[Streams](), list[int]()
    features = plain(pipe)
    for step, now in enumerate(features):
        must = step < 5 or step % interval == 0 or step == STEPS - 1
        if must or turned(*residuals[-3:]) >= threshold:
            computed.append(step)
            leaving = now.behind
        else:
            moved = [0.2 * (a - b) for a, b in zip(now.entry, features[step - 1].entry, strict=True)]
            pairs = zip(residuals[-2], residuals[-1], strict=True)
            forecast = [staged(a, b, step / STEPS) for a, b in pairs]
            leaving = [a + b + c for a, b, c in zip(now.entry, forecast, moved, strict=True)]
        residuals.append([a - b for a, b in zip(leaving, now.entry, strict=True)])
        torch.testing.assert_close(behind[step], leaving[1], rtol=1e-3, atol=1e-3)
    assert ran == computed
    assert len(computed) < STEPS


# -- SpeCa ------------------------------------------------------------------------------------------------------------


def taylor(history: Sequence[tuple[int, Streams]], step: int) -> Streams:
    """The line through the last two computed values."""
    (before, first), (last, second) = history[-2:]
    return [b + (b - a) / (last - before) * (step - last) for a, b in zip(first, second, strict=True)]


def less(after: Streams, before: Streams) -> Streams:
    return [a - b for a, b in zip(after, before, strict=True)]


@pytest.mark.parametrize("redo", [True, False])
@torch.no_grad()
def test_speca_does_what_a_naive_loop_does(pipe: Any, redo: bool) -> None:
    threshold = 0.02
    behind, ran = run(pipe, Speculation, threshold=threshold, order=1, warmup=3, redo=redo)
    last = pipe.transformer.single_transformer_blocks[-1]
    up_to_last, whole = list[tuple[int, Streams]](), list[tuple[int, Streams]]()
    computed, accepted, rejected = list[int](), 0, False
    for step, now in enumerate(plain(pipe)):
        leaving = now.behind
        drafts = 3 <= step < STEPS - 1 and step - computed[-1] <= 8 and not rejected
        if drafts:
            handed, drafted = (
                [a + b for a, b in zip(now.entry, taylor(each, step), strict=True)] for each in (up_to_last, whole)
            )
            text, image = handed
            checked = last(**{**now.given, "hidden_states": image, "encoder_hidden_states": text})[1]
            error = float((drafted[1] - checked).norm() / checked.norm())
            rejected = error > threshold * 0.3 ** (step / STEPS)
            accepted += not rejected
        if drafts and not (rejected and redo):
            leaving = drafted
        else:
            computed.append(step)
            rejected = False
            up_to_last.append((step, less(now.up_to_last, now.entry)))
            whole.append((step, less(now.behind, now.entry)))
        torch.testing.assert_close(behind[step], leaving[1], rtol=1e-3, atol=1e-3)
    assert ran == computed
    assert accepted, "no draft was accepted, so nothing was tried"
    assert len(computed) > 5, "no draft was rejected, so nothing was tried"


# -- both -------------------------------------------------------------------------------------------------------------

KINDS = [
    (PadeResiduals, {"interval": 8, "threshold": 2.0}),
    (Speculation, {"threshold": math.inf, "order": 1, "warmup": 3, "redo": True}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_each_branch_and_each_run_begins_with_nothing(kind: Callable[..., Any], options: dict[str, Any]) -> None:
    tiny = flux()
    with restored(tiny.pipe), stack_caches(tiny.pipe, kind, steps=10, count=2, **options) as kept:
        first, other, again = (tiny.run(steps=10, seed=seed) for seed in (0, 1, 0))
        assert kept() > 0
    assert torch.equal(first, again), "the run before left something behind"
    assert not torch.equal(first, other)
    # Of branches that see the same, guidance makes nothing, whatever was reused.
    same = tiny.inputs(guided=False, batch=1)
    twice = same | {f"negative_{name}": value for name, value in same.items() if name.endswith("embeds")}
    with restored(tiny.pipe), stack_caches(tiny.pipe, kind, steps=10, count=2, **options):
        guided = tiny.pipe(
            **twice,
            true_cfg_scale=3.0,
            num_inference_steps=10,
            output_type="latent",
            generator=torch.Generator().manual_seed(0),
        ).images
    with restored(tiny.pipe), stack_caches(tiny.pipe, kind, steps=10, count=1, **options):
        torch.testing.assert_close(guided, tiny.run(steps=10, guided=False))
