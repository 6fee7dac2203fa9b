"""Scores by networks, with small stand-ins for what must be downloaded."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

from bench import _scores as scores
from reference.load import find_image_pipeline

PICTURE = np.random.default_rng(0).random((32, 32, 3)).astype(np.float32)
FULL = np.full((32, 32, 3), 0.5, np.float32)


def test_the_clip_score_is_a_hundred_times_the_cosine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = AutoTokenizer.from_pretrained(find_image_pipeline() / "tokenizer")
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={**size, "image_size": 32, "patch_size": 8}))
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = CLIPProcessor(images, tokenizer)
    pixels = np.rint(PICTURE * 255).astype(np.uint8)
    with torch.no_grad():
        given = processor(text=["a red circle"], images=[pixels], return_tensors="pt")
        cosine = float(model.eval()(**given).logits_per_image / model.logit_scale.exp())
        # A random model may find any sign.
        model.text_projection.weight.mul_(np.sign(cosine))
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    monkeypatch.setattr(scores, "CLIP", str(tmp_path))
    score = scores.SCORES["clip"]()
    assert score(PICTURE, FULL, "a red circle") == pytest.approx(100 * abs(cosine), abs=1e-3)
    assert score(np.stack([PICTURE, PICTURE]), FULL, "a red circle") == pytest.approx(100 * abs(cosine), abs=1e-3)
    with torch.no_grad():
        model.text_projection.weight.neg_()
    model.save_pretrained(tmp_path)
    opposite = scores.SCORES["clip"]()
    assert opposite(PICTURE, FULL, "a red circle") == 0.0


def test_what_is_not_installed_is_left_out_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("lpips", "ImageReward"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(scores, "CLIP", str(tmp_path / "nowhere"))
    with caplog.at_level(logging.WARNING, "omnireuse"):
        assert scores.load_scores() == {}
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "score lpips is left out",
        "score clip is left out",
        "score image_reward is left out",
    ]
