"""The text encoders learn to read before the flow is trained: from a caption to what stands where.

Trained with the flow alone they stayed a bag of words for thousands of steps: colours and places came out right, which
colour belongs to which shape did not. Real pipelines start from encoders that can read, and so does this one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from reference.captions import caption, sample_split
from reference.drawing import BACKGROUND_COLOURS, OBJECT_COLOURS, PATTERNS, SHAPES
from reference.models import TEXT_WIDTH, FlowModel
from reference.scenes import PLACES, RELATIONS, SIZES, Scene
from reference.tokenizers import IMAGE_TOKENIZERS, token_ids, write_tokenizers
from reference.train.loop import Loop, descend, learning_rate_factor, save_atomically, set_learning_rates

BATCH_SIZE = 128
PEAK_LR = 1e-3

_THING = {"shape": tuple(SHAPES), "colour": tuple(OBJECT_COLOURS), "size": tuple(SIZES)}

#: What is read from a caption: each question's possible answers; the last is "none".
QUESTIONS: dict[str, tuple[str, ...]] = {
    "background": (*BACKGROUND_COLOURS, "none"),
    "pattern": (*PATTERNS, "none"),
    "place": (*PLACES, "none"),
    "direction": ("horizontal", "vertical", "none"),
    **{f"{field} {index}": (*names, "none") for index in (1, 2) for field, names in _THING.items()},
}


def answers(scene: Scene) -> list[int]:
    """The answer to each of `QUESTIONS`; the first of two things is the left or the upper one, however it was said."""
    things, direction = list(scene.things), "none"
    if scene.relation is not None:
        x, y = RELATIONS[scene.relation]
        direction = "horizontal" if x else "vertical"
        if x + y > 0:
            things.reverse()
    said = {"background": scene.background, "pattern": scene.pattern, "place": scene.place, "direction": direction}
    for index, thing in enumerate(things, start=1):
        said |= {f"{field} {index}": getattr(thing, field) for field in _THING}
    return [names.index(said.get(question) or "none") for question, names in QUESTIONS.items()]


class Reader(nn.Module):
    """Answers from T5's tokens, by attention without positions, and from CLIP's pooled state, linearly."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(len(QUESTIONS), TEXT_WIDTH))
        self.attention = nn.MultiheadAttention(TEXT_WIDTH, 4, batch_first=True)
        self.from_tokens = nn.ModuleList(nn.Linear(TEXT_WIDTH, len(names)) for names in QUESTIONS.values())
        self.from_pooled = nn.ModuleList(nn.Linear(TEXT_WIDTH, len(names)) for names in QUESTIONS.values())

    def forward(
        self, tokens_BTD: torch.Tensor, pooled_BD: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Logits of every question, from the tokens and from the pooled state."""
        query = self.query.expand(len(tokens_BTD), -1, -1)
        read = self.attention(query, tokens_BTD, tokens_BTD, need_weights=False)[0]
        from_tokens = [head(read[:, index]) for index, head in enumerate(self.from_tokens)]
        return from_tokens, [head(pooled_BD) for head in self.from_pooled]


def _loss_and_accuracy(logits: list[torch.Tensor], answers_BQ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = list(zip(logits, answers_BQ.unbind(1), strict=True))
    loss = torch.stack([nn.functional.cross_entropy(logit, answer) for logit, answer in pairs]).mean()
    right = torch.stack([logit.argmax(-1) == answer for logit, answer in pairs]).all(0)
    return loss, right.float().mean()


def train_text(folder: Path, *, num_steps: int, seed: int = 0, batch_size: int = BATCH_SIZE) -> None:
    """Teach both encoders to read training captions, and keep their weights in ``folder/text.pt``."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 5])
    clip_tokenizer, t5_tokenizer = write_tokenizers(folder, IMAGE_TOKENIZERS).values()
    model, reader = FlowModel().train(), Reader()
    parameters = [*model.clip.parameters(), *model.t5.parameters(), *reader.parameters()]
    optimizers = [torch.optim.AdamW(parameters, lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)]
    loop = Loop("text", num_steps)
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=100))
        scenes = [sample_split(rng, held_out=False) for _ in range(batch_size)]
        captions, wanted = [caption(scene, rng) for scene in scenes], torch.tensor([answers(scene) for scene in scenes])
        tokens = model.t5(token_ids(t5_tokenizer, captions))[0]
        pooled = model.clip(token_ids(clip_tokenizer, captions)).pooler_output
        (t5_loss, t5_right), (clip_loss, clip_right) = (_loss_and_accuracy(x, wanted) for x in reader(tokens, pooled))
        descend(t5_loss + clip_loss, optimizers)
        loop.note(t5_loss=t5_loss, clip_loss=clip_loss, t5_right=t5_right, clip_right=clip_right)
    save_atomically({"clip": model.clip.state_dict(), "t5": model.t5.state_dict()}, folder / "text.pt")
