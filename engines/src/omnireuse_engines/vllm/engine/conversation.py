"""Conversations over images: every turn's prompt is all that was said and shown before, and something new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from omnireuse_engines.vllm.engine.engine import Engine
from omnireuse_engines.vllm.engine.model import TinyOmniModel
from omnireuse_engines.vllm.engine.request import Request, Result
from omnireuse_engines.vllm.engine.trace import Part, PromptBuilder

__all__ = ["Conversation", "converse", "made_up_conversations"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Conversation:
    """What one user says and shows.

    Args:
        user: names the conversation.
        first_step: the step before which it begins.
        turns: the parts of each turn; the engine's answer comes between.
        answer_length: tokens that the engine answers with.
    """

    user: str
    first_step: int
    turns: tuple[tuple[Part, ...], ...]
    answer_length: int


def made_up_conversations(model: TinyOmniModel, *, users: int, turns: int, seed: int) -> list[Conversation]:
    """Make conversations that begin with the same instructions and talk, in part, about the same images."""
    rng, build = np.random.default_rng(seed), PromptBuilder(model)
    instructions = build.text(rng, 48)
    conversations = []
    for user in range(users):
        said: list[tuple[Part, ...]] = []
        for turn in range(turns):
            parts: list[Part] = [instructions] if turn == 0 else []
            for _ in range(2 if turn == 0 else int(rng.integers(0, 2))):
                is_shared = rng.random() < 0.6
                parts.append(build.image(int(rng.integers(3)) if is_shared else int(rng.integers(1000, 9000))))
            parts.append(build.text(rng, int(rng.integers(6, 20))))
            said.append(tuple(parts))
        name = f"user {user + 1}"
        conversations.append(Conversation(user=name, first_step=2 * user, turns=tuple(said), answer_length=10))
    return conversations


def converse(
    engine: Engine, conversations: Sequence[Conversation], *, advance: Callable[[], object] = lambda: None
) -> dict[str, Result]:
    """Serve conversations side by side, each turn as soon as the one before is answered.

    Args:
        advance: called after every answer.

    Returns:
        The results by request id, "user turn".
    """
    build, results = PromptBuilder(engine.model), dict[str, Result]()
    said: dict[str, list[Part]] = {conversation.user: [] for conversation in conversations}
    turn_of = dict.fromkeys(said, 0)
    by_user = {conversation.user: conversation for conversation in conversations}

    def ask(conversation: Conversation) -> None:
        user = conversation.user
        said[user] += conversation.turns[turn_of[user]]
        token_ids, images = build.join(said[user])
        name = f"{user}, turn {turn_of[user] + 1}"
        engine.add(
            Request(request_id=name, token_ids=token_ids, images=images, max_new_tokens=conversation.answer_length)
        )

    waiting = list(conversations)
    while waiting or not engine.is_idle:
        while waiting and (waiting[0].first_step <= engine.num_steps or engine.is_idle):
            ask(waiting.pop(0))
        for result in engine.step():
            results[result.request_id] = result
            conversation = by_user[result.request_id.partition(",")[0]]
            said[conversation.user].append(list(result.token_ids))
            turn_of[conversation.user] += 1
            if turn_of[conversation.user] < len(conversation.turns):
                ask(conversation)
            advance()
    return results
