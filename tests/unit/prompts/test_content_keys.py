"""Token tensors, arrays and images are known by their content, up to a size."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from omnireuse.diffusion.cache.prompt_embed_cache import (
    PromptCacheOptions,
    install_prompt_embed_cache,
)
from omnireuse.errors import ConfigError

from .conftest import Pipeline


def image(value=1, mode="RGB", size=(4, 3)):
    return Image.new(mode, size, value)


CONTENTS = [
    (lambda: torch.arange(6), lambda: torch.arange(6) + 1),
    (lambda: torch.tensor([True, False]), lambda: torch.tensor([True, True])),
    (lambda: torch.arange(6)[::2], lambda: torch.arange(6)[1::2]),
    (lambda: np.arange(6).reshape(2, 3).T, lambda: np.arange(6).reshape(3, 2)),
    (lambda: np.array([0.5, np.nan]), lambda: np.array([0.5, 1])),
    (lambda: np.arange(3, dtype=">i4"), lambda: np.arange(3, dtype="<i4")),
    (lambda: image(), lambda: image(2)),
    (lambda: image(mode="L"), lambda: image()),
    (lambda: image(size=(4, 3)), lambda: image(size=(3, 4))),
    (lambda: [image(), torch.arange(2)], lambda: [image(), torch.arange(3)]),
]


@pytest.mark.parametrize(("make", "other"), CONTENTS)
def test_content_decides(make, other):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    for value in (make(), make(), other()):
        pipeline.encode_prompt("p", extra=value)
    assert (cache.hits, cache.misses, cache.bypassed) == (1, 2, 0)


def test_content_changed_in_place_is_other_content():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    tokens = torch.arange(4)
    pipeline.encode_prompt("p", extra=tokens)
    tokens[0] = 9
    pipeline.encode_prompt("p", extra=tokens)
    assert cache.misses == 2


def test_a_palette_is_content():
    one, other = image(mode="P"), image(mode="P")
    one.putpalette([0, 0, 0, 255, 0, 0])
    other.putpalette([0, 0, 0, 0, 255, 0])
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p", extra=one)
    pipeline.encode_prompt("p", extra=other)
    assert cache.misses == 2


def oriented(orientation):
    made = image()
    made.getexif()[0x112] = orientation
    return made


def transparent(alpha):
    made = image(mode="P")
    made.putpalette([10, 20, 30, alpha], "RGBA")
    return made


def noted(**info):
    made = image()
    made.info.update(info)
    return made


def animated(second):
    file = io.BytesIO()
    image().save(file, "GIF", save_all=True, append_images=[image(second)])
    return Image.open(file)


RECORD, SWAPPED = np.dtype([("a", "<i4"), ("b", "<i4")]), np.dtype([("b", "<i4"), ("a", "<i4")])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: oriented(1), lambda: oriented(6)),
        (lambda: transparent(255), lambda: transparent(0)),
        (lambda: noted(icc_profile=b"a"), lambda: noted(icc_profile=b"b")),
        (lambda: np.zeros(2, RECORD), lambda: np.zeros(2, SWAPPED)),
        (lambda: np.zeros(2, RECORD)[0], lambda: np.zeros(2, SWAPPED)[0]),
        (lambda: animated(50), lambda: animated(200)),
    ],
)
def test_whatever_can_be_read_from_an_array_or_image_is_content(one, other):
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p", extra=one())
    pipeline.encode_prompt("p", extra=other())
    assert pipeline.num_encodes == 2


def test_an_animation_bypasses():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p", extra=animated(50))
    assert cache.bypassed_by["type"] == 1


@pytest.mark.parametrize(
    "value", [torch.zeros(9 << 20, dtype=torch.int64), np.zeros(9 << 20), image(size=(4100, 4100))]
)
def test_content_above_the_size_bypasses(value):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p", extra=value)
    assert cache.details()["bypassed_large_content"] == 1


def test_bad_rules_are_refused():
    with pytest.raises(ConfigError, match="max_bytes=0"):
        PromptCacheOptions(max_bytes=0)


@pytest.mark.parametrize("name", ["pooled_prompt_embeds", "prompt_embeds_2", "negative_prompt_embeds_mask"])
def test_embeddings_among_surplus_keywords_bypass(name):
    class Open(Pipeline):
        def encode_prompt(self, prompt, **kwargs):
            self.num_encodes += 1
            return torch.ones(1)

    pipeline = Open()
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(2):
        pipeline.encode_prompt("p", **{name: torch.ones(1)})
    assert (pipeline.num_encodes, cache.stats()["bypassed"], cache.bypassed_by["embeds"]) == (2, 2, 2)
    pipeline.encode_prompt("p", **{name: None})
    pipeline.encode_prompt("p", **{name: None})
    assert cache.hits == 1
