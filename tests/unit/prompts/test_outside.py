"""Embeddings outlive the process, belong to the very weights that made them, and no tier can hurt a request."""

import json
import logging
import re
import subprocess
import sys

import pytest
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import PromptCacheOptions, install_prompt_embed_cache
from omnireuse.fingerprints.checksums import checksums
from omnireuse.stores.disk import DiskTier
from omnireuse.stores.redis import RedisTier
from tests import TOP

from .conftest import Pipeline


def installed(tier, **kwargs):
    pipeline = Pipeline()
    return pipeline, install_prompt_embed_cache(pipeline, options=PromptCacheOptions(outside=tier), **kwargs)


@pytest.fixture(params=["disk", "redis"])
def tier(request, tmp_path):
    if request.param == "disk":
        yield DiskTier(tmp_path, max_bytes=1 << 20, namespace="t")
    else:
        made = RedisTier(request.getfixturevalue("redis_url"), namespace=request.node.name, timeout_s=5.0)
        yield made
        made.close()


def test_another_pipeline_of_the_same_weights_starts_warm(tier):
    first, _ = installed(tier, model_tag="tiny")
    want = first.encode_prompt("abc", "bad")
    second, cache = installed(tier, model_tag="tiny")
    got = second.encode_prompt("abc", "bad")
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert second.num_encodes == 0
    details = cache.details()
    assert (details["hits"], details["misses"], details["outside_hits"], details["coalesced"]) == (1, 0, 1, 0)
    assert second.encode_prompt("abc", "bad")[0] is second.encode_prompt("abc", "bad")[0]


@pytest.mark.parametrize("change", ["weights", "dtype", "style", "tag"])
def test_other_weights_dtype_settings_or_tag_do_not_meet(tier, change):
    first, _ = installed(tier, model_tag="tiny")
    first.encode_prompt("abc")
    second, _ = installed(tier, model_tag="other" if change == "tag" else "tiny")
    if change == "weights":
        with torch.no_grad():
            second.text_encoder.table.weight[77, 2] += 1e-3
    elif change == "dtype":
        second.text_encoder.double()
    elif change == "style":
        second.style = "x"
    second.encode_prompt("abc")
    assert second.num_encodes == 1


def test_a_second_process_starts_warm(tmp_path, monkeypatch):
    for library in ("diffusers", "transformers"):  # the versions count, and that process does without
        monkeypatch.setitem(sys.modules, library, None)
    pipeline, _ = installed(DiskTier(tmp_path, max_bytes=1 << 20))
    want = pipeline.encode_prompt("abc")[0]
    code = (
        "import sys, json\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from tests.unit.prompts.test_outside import installed\n"
        "from omnireuse.stores.disk import DiskTier\n"
        "pipeline, cache = installed(DiskTier(sys.argv[1], max_bytes=1 << 20))\n"
        "print(json.dumps([pipeline.encode_prompt('abc')[0].tolist(), pipeline.num_encodes]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(TOP)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert json.loads(done.stdout) == [want.tolist(), 0]


def test_a_corrupt_file_is_encoded_again(tmp_path, caplog):
    tier = DiskTier(tmp_path, max_bytes=1 << 20)
    first, _ = installed(tier)
    want = first.encode_prompt("abc")[0]
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    second, _ = installed(tier)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(second.encode_prompt("abc")[0], want)
    assert second.num_encodes == 1
    assert "checksum differs" in caplog.text


def test_a_dead_tier_costs_a_miss_and_no_more(tmp_path):
    (tmp_path / "file").write_text("in the way", "utf-8")
    tier = DiskTier(tmp_path / "file", max_bytes=1 << 20)
    pipeline, cache = installed(tier)
    for prompt in "abcabc":
        pipeline.encode_prompt(prompt)
    assert (cache.hits, cache.misses) == (3, 3)
    assert tier.counts["failed_read"] + tier.counts["failed_write"] == 3


def test_the_checksum_sees_order_and_every_byte():
    base = torch.arange(30, dtype=torch.uint8)
    sums = {*checksums([base, base.flip(0)])}
    for i in range(30):
        changed = base.clone()
        changed[i] += 1
        sums |= {*checksums([changed])}
    assert len(sums) == 32
    assert checksums([base[1:]]) == checksums([base[1:].clone()])


def test_a_compiled_pattern_is_known_by_its_content(tier):
    def made(pattern):
        pipeline, cache = installed(tier)
        pipeline.text_encoder.renames = [re.compile(pattern)]  # as models of transformers keep them
        return pipeline, cache

    first, _ = made("^visual")
    first.encode_prompt("abc")
    pipeline, cache = made("^visual")
    pipeline.encode_prompt("abc")
    assert (pipeline.num_encodes, cache.details()["outside_hits"]) == (0, 1)
    other, cache = made("^model")
    other.encode_prompt("abc")
    assert (other.num_encodes, cache.details()["outside_hits"]) == (1, 0)
