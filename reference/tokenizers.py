"""Word-level tokenizers for the two text encoders, in files that every supported transformers version reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from reference.captions import vocabulary as image_vocabulary

#: Tokens of a padded caption; the longest caption has 17 words, a start and an end.
MAX_SEQUENCE_LENGTH = 20

# CLIPTextModel takes an end token of id 2 for a defect of early configurations and then pools at the highest id;
# with any other id it pools at the end token, so the end token is 1 here.
SPECIAL_TOKENS = ("<pad>", "<end>", "<start>", "<unknown>")
PAD_ID, END_ID, START_ID, UNKNOWN_ID = range(4)


def words(vocabulary: Sequence[str] | None = None) -> list[str]:
    """The token of each id, for `vocabulary` or for that of the image captions."""
    return [*SPECIAL_TOKENS, *(image_vocabulary() if vocabulary is None else vocabulary)]


def save_tokenizer(
    folder: Path, *, starts: bool, vocabulary: Sequence[str] | None = None, max_length: int = MAX_SEQUENCE_LENGTH
) -> None:
    """Write a tokenizer; ``starts`` puts the start token first, as CLIP has it and T5 has not."""
    ids = {word: index for index, word in enumerate(words(vocabulary))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unknown>"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="<start> $A <end>" if starts else "$A <end>",
        pair=None,
        special_tokens=[("<start>", START_ID), ("<end>", END_ID)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    # Written by hand: what transformers 5 saves names classes that 4.57 does not have.
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "bos_token": "<start>",
        "eos_token": "<end>",
        "pad_token": "<pad>",
        "unk_token": "<unknown>",
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


#: The tokenizers of the image pipeline: what writes each into a folder.
IMAGE_TOKENIZERS = {
    "tokenizer": partial(save_tokenizer, starts=True),
    "tokenizer_2": partial(save_tokenizer, starts=False),
}


def token_ids(tokenizer: PreTrainedTokenizerFast, captions: list[str]) -> torch.Tensor:
    """Padded token ids (B, T) of ``captions``, as the pipeline makes them."""
    ids: torch.Tensor = tokenizer(captions, padding="max_length", return_tensors="pt").input_ids
    return ids


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that `save_tokenizer` wrote."""
    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def write_tokenizers(folder: Path, writers: Mapping[str, Callable[[Path], None]]) -> dict[str, PreTrainedTokenizerFast]:
    """The tokenizers of ``writers``, written into ``folder`` in place of what is there under their names."""
    for name, write in writers.items():
        shutil.rmtree(folder / name, ignore_errors=True)
        write(folder / name)
    return {name: load_tokenizer(folder / name) for name in writers}
