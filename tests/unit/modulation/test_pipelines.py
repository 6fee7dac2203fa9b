"""With the cache, every picture of many kinds of pipelines has the bits of the pipeline without."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import omnireuse
from tests.helpers import tiny
from tests.helpers.tiny import Tiny
from tests.models.diffusion.pipelines import image, modular, unet, video

KINDS: dict[str, Callable[[], Tiny]] = {
    "qwen_image": tiny.qwen_image,
    "flux": tiny.flux,
    "wan": tiny.wan,
    "stable_diffusion": tiny.stable_diffusion,
    "minimax_h3": modular.minimax_h3,
    **{name: image.PIPELINES[name] for name in ("aura_flow", "bria", "cogview_4", "ovis_image", "sd3")},
    "mochi": video.PIPELINES["mochi"],
    "hunyuan_video_15": video.PIPELINES["hunyuan_video_15"],
    "sd_img2img": unet.PIPELINES["sd_img2img"],
}
REFUSED = {"stable_diffusion", "sd_img2img"}
"""Their tiny projections are smaller than the rows of a schedule."""


def denoiser(pipe: Any) -> Any:
    return getattr(pipe, "transformer", None) or pipe.unet


SLOW = pytest.mark.slow
CASES = [pytest.param(kind, "disk", marks=[SLOW] * (kind == "hunyuan_video_15")) for kind in KINDS]


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi's own
@pytest.mark.parametrize(("kind", "release"), [*CASES, ("flux", None)])
def test_pictures_keep_their_bits_and_the_second_computes_nothing(kind: str, release: Any) -> None:
    t = KINDS[kind]()
    usual = {"steps": 6 if kind in REFUSED else 3}
    calls: list[dict[str, Any]] = [usual, usual, {"steps": 4}, {**usual, "seed": 1}]
    if kind not in ("minimax_h3", "sd_img2img"):
        calls += [{"steps": 2, "batch": 2}, {"steps": 2, "guided": False}, usual]
    with torch.no_grad():
        want = [t.run(**call) for call in calls]
        state = {name: each.clone() for name, each in denoiser(t.pipe).state_dict().items()}
        cache = omnireuse.install_modulation_cache(t.pipe, release=release)
        assert cache is not None
        assert torch.equal(t.run(**usual), want[0])
        computed = cache.details()["computed"]
        assert computed
        assert torch.equal(t.run(**usual), want[1])
        assert cache.details()["computed"] == computed or kind in REFUSED
        for call, each in list(zip(calls, want, strict=True))[2:]:
            assert torch.equal(t.run(**call), each), call
        now = denoiser(t.pipe).state_dict()
        assert state.keys() == now.keys()
        assert all(torch.equal(each, now[name]) for name, each in state.items())
        if kind in REFUSED:
            assert "rows of one schedule" in cache.summary()
        else:
            found = cache.details()
            assert found["reused"]
            assert (found["released_bytes"] > 0) == (release == "disk")  # host memory is where they are already
        assert omnireuse.uninstall_modulation_cache(t.pipe)
        assert not omnireuse.uninstall_modulation_cache(t.pipe)
        assert torch.equal(t.run(**usual), want[0])
    assert all("_compiled_call_impl" not in vars(each) for each in denoiser(t.pipe).modules())


def test_beside_step_reuse_whichever_comes_first() -> None:
    t = tiny.qwen_image()
    with torch.no_grad():
        with omnireuse.enable(t.pipe, policy=omnireuse.EveryNth(every=2)):
            want = t.run(steps=4)
        cache = omnireuse.install_modulation_cache(t.pipe, release="disk")
        assert cache is not None
        for _ in range(2):
            with omnireuse.enable(t.pipe, policy=omnireuse.EveryNth(every=2)):
                assert torch.equal(t.run(steps=4), want)
                assert torch.equal(t.run(steps=4), want)
        assert cache.details()["reused"]
        omnireuse.uninstall_modulation_cache(t.pipe)
        with omnireuse.enable(t.pipe, policy=omnireuse.EveryNth(every=2)):
            omnireuse.install_modulation_cache(t.pipe, release="disk")
            assert torch.equal(t.run(steps=4), want)
            assert torch.equal(t.run(steps=4), want)
        assert torch.equal(t.run(steps=4), tiny.qwen_image().run(steps=4))
