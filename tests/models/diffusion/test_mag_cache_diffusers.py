"""MagCache against diffusers' own: every decision, the final latents, and the ratios of a calibration."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.diffusion.cache.magcache import MagCacheBackend
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.models import block_stack_for
from omnireuse.policies.mag_cache import resampled
from tests.helpers.sweep import sweep
from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.pipelines import image, video

mag_cache = pytest.importorskip("diffusers.hooks.mag_cache", reason="this version of diffusers has no MagCache")
MagCacheConfig, apply_mag_cache, nearest_interp = (
    mag_cache.MagCacheConfig,
    mag_cache.apply_mag_cache,
    mag_cache.nearest_interp,
)

# Those whose blocks diffusers' hook knows, and which tell it the branch: by a context, or by a single call a step.
PIPELINES: dict[str, Callable[[], Tiny]] = {
    "cogview_4": image.PIPELINES["cogview_4"],
    "flux": TINY["flux"],
    "flux_2": image.PIPELINES["flux_2"],
    "hunyuan_video": video.PIPELINES["hunyuan_video"],
    "ltx": video.PIPELINES["ltx"],
    "qwen_image": TINY["qwen_image"],
    "wan": TINY["wan"],
}

STEPS = 12


def drawn(seed: int, steps: int = STEPS) -> list[float]:
    """Ratios of a run: 1.0 for the first step, then between 0.85 and 1.15."""
    ratios = 0.85 + 0.3 * torch.rand(steps, generator=torch.Generator().manual_seed(seed))
    return [1.0, *ratios[1:].tolist()]


# Each once with a limit, a retention or a threshold that decides; the last reuses the last step too.
SETTINGS: list[tuple[list[float], dict[str, Any]]] = [
    (drawn(1), {"threshold": 0.24, "max_skip_steps": 5, "retention_ratio": 0.1}),
    (drawn(3), {"threshold": 0.5, "max_skip_steps": 2, "retention_ratio": 0.0}),
    (drawn(5, steps=28), {"threshold": 0.24, "max_skip_steps": 5, "retention_ratio": 0.1}),
    (drawn(6, steps=5), {"threshold": 0.3, "max_skip_steps": 4, "retention_ratio": 0.25}),
    ([1.0] * STEPS, {"threshold": 0.01, "max_skip_steps": 9, "retention_ratio": 0.45}),
]

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Computed:
    """Which steps computed, for each branch: a module inside the first block runs only then."""

    def __init__(self, pipe: Any) -> None:
        transformer = pipe.transformer
        block = block_stack_for(type(transformer).__name__).blocks_of(transformer)[0].module
        inside = next(child for child in block.modules() if isinstance(child, torch.nn.Linear))
        self.steps: dict[str, list[int]] = defaultdict(list)
        self._calls: dict[str, int] = defaultdict(int)
        self._branch = ""
        inside.register_forward_hook(self._ran)
        transformer.register_forward_pre_hook(self._called, with_kwargs=True)
        inner = transformer.cache_context

        def cache_context(name: str, **told: Any) -> Any:
            self._branch = name
            return inner(name, **told)

        transformer.cache_context = cache_context

    def _called(self, module: Any, args: Any, kwargs: Any) -> None:
        self._calls[self._branch] += 1

    def _ran(self, module: Any, args: Any, result: Any) -> None:
        step = self._calls[self._branch] - 1
        if step not in self.steps[self._branch]:
            self.steps[self._branch].append(step)


@pytest.mark.parametrize("name", sweep(sorted(PIPELINES), quick={"flux", "wan"}))
def test_every_decision_is_that_of_diffusers(name: str) -> None:
    reused_last = computed_within = 0
    for ratios, options in SETTINGS:
        theirs = PIPELINES[name]()
        seen = Computed(theirs.pipe)
        config = MagCacheConfig(**options, num_inference_steps=STEPS, mag_ratios=ratios)
        apply_mag_cache(theirs.pipe.transformer, config)
        expected = theirs.run(steps=STEPS)

        ours = PIPELINES[name]()
        named = {f"mag_{option}": value for option, value in options.items()}
        with omnireuse.enable(ours.pipe, "mag_cache", mag_ratios=ratios, **named) as handle:
            latents = ours.run(steps=STEPS)
        computed: dict[str, list[int]] = defaultdict(list)
        for event in handle.events:
            if not event.reused:
                computed[event.branch].append(event.step)
        assert sorted(computed.values()) == sorted(seen.steps.values()), options
        assert len(handle.events) == len(seen.steps) * STEPS
        torch.testing.assert_close(latents, expected, rtol=1e-4, atol=1e-5)
        for steps in computed.values():
            reused_last += STEPS - 1 not in steps
            computed_within += len([step for step in steps if 0 < step < STEPS - 1])
    assert reused_last
    assert computed_within


@pytest.mark.parametrize(
    "name", sweep(["cogview_4", "flux", "hunyuan_video", "qwen_image", "wan"], quick={"flux", "wan"})
)
def test_calibrated_ratios_are_those_of_diffusers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = PIPELINES[name]()
    apply_mag_cache(theirs.pipe.transformer, MagCacheConfig(calibrate=True, num_inference_steps=STEPS))
    theirs.run(steps=STEPS)
    printed = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines() if line.startswith("[1.0")]

    ours = PIPELINES[name]()
    backend = MagCacheBackend(DiffusionCacheConfig(mag_calibrate=True))
    backend.enable(ours.pipe)
    ours.run(steps=STEPS)
    assert len(printed) == 2
    for measured, expected in zip(backend.calibrated_ratios(), printed, strict=True):
        assert len(expected) == STEPS
        assert measured == pytest.approx(expected, rel=1e-4)
    # What was measured goes back in as it is, here and there.
    config = MagCacheConfig(mag_ratios=list(backend.calibrated_ratios()[0]), num_inference_steps=STEPS)
    assert config.mag_ratios.tolist() == pytest.approx(backend.calibrated_ratios()[0])


@pytest.mark.parametrize("total", [1, 2, 3, 7, 12, 20, 27, 28, 29, 40, 50, 100])
def test_ratios_of_another_step_count_are_those_of_diffusers(total: int) -> None:
    ratios = torch.tensor(drawn(7, steps=28))
    expected = nearest_interp(ratios, total) if total > 1 else ratios[:1]
    assert resampled(tuple(ratios.tolist()), total) == tuple(expected.tolist())
