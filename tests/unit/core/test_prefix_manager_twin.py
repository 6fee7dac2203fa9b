"""The prefix cache behind vllm-omni's interface against a naive twin: a dict from slot to row, copied for each step."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from omnireuse.errors import StateError

from .prefix_batch import slots_of
from .test_prefix_manager import SIZE, WIDTH, Engine

BLOCKS = 4


class Twin(RuleBasedStateMachine):
    """An engine that computes, hits, ends and reuses blocks; its steps are asked for late, in any order, or never.

    A prefix is a list of whole blocks that a request filled. It may be hit while it is unchanged, and also in the step
    that fills it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(BLOCKS, staging_depth=3, staging_claim_timeout_s=0.0)
        self.rows: dict[tuple[str, int], torch.Tensor] = {}
        self.alive: dict[str, tuple[list[int], int]] = {}  # blocks and computed tokens
        self.prefixes: list[list[int]] = []
        self.expected: dict[int, dict[str, dict[str, list[torch.Tensor | None]]]] = {}
        self.gone: list[str] = []
        self.counter = 0

    def free(self) -> list[int]:
        held = {block for blocks, _ in self.alive.values() for block in blocks}
        return [block for block in range(BLOCKS) if block not in held]

    @rule(data=st.data(), with_k=st.booleans(), with_hidden=st.booleans(), padding=st.integers(0, 2))
    def step(self, data: st.DataObject, with_k: bool, with_hidden: bool, padding: int) -> None:
        """Let some requests go on and some arrive, on a prefix or not."""
        while len(self.expected) >= 3:
            self.ask(data)
        plan: dict[str, tuple[list[int], int, int]] = {}
        for name, (blocks, computed) in self.alive.items():
            count = data.draw(st.integers(0, len(blocks) * SIZE - computed), label=f"tokens of {name}")
            plan[name] = (blocks, computed, count)
        hits, new = [], []
        for _ in range(data.draw(st.integers(0, 2), label="arrivals")):
            # Blocks that a request of this step fills may be hit in this step.
            filled = [blocks[: (start + count) // SIZE] for blocks, start, count in plan.values()]
            known = [prefix for prefix in (*self.prefixes, *filled) if prefix]
            prefix = data.draw(st.sampled_from([[], *known]), label="prefix")
            held = {block for each, _, _ in plan.values() for block in each}
            fresh = [block for block in self.free() if block not in held and block not in prefix]
            if not fresh:
                break
            name = f"q{self.counter}"
            self.counter += 1
            blocks = [*prefix, data.draw(st.sampled_from(fresh), label="fresh block")]
            count = data.draw(st.sampled_from((SIZE, 1, 3)), label=f"tokens of {name}")
            plan[name] = (blocks, len(prefix) * SIZE, count)
            self.prefixes = [each for each in self.prefixes if blocks[-1] not in each]
            new.append(name)
            hits += [name] * bool(prefix)
        self.run(plan, hits, new, with_k=with_k, with_hidden=with_hidden, padding=padding)

    def run(
        self,
        plan: dict[str, tuple[list[int], int, int]],
        hits: list[str],
        new: list[str],
        *,
        with_k: bool,
        with_hidden: bool,
        padding: int,
    ) -> None:
        total = self.engine.begin(plan, hits, new, self.gone)
        self.gone = []
        with_k, with_hidden = with_k and total > 0, with_hidden and total > 0
        self.counter += 1
        hidden = self.counter * 1000 + torch.arange((total + padding) * WIDTH).float().reshape(-1, WIDTH)
        outputs = {"hidden": hidden[:total].clone()} if with_hidden else {}
        outputs |= {"k": -hidden[:total]} if with_k else {}
        parts = [slots_of(blocks, start, count, SIZE).tolist() for blocks, start, count in plan.values()]
        for row, slot in enumerate(itertools.chain(*parts)):
            for key in ("hidden", "k"):
                self.rows.pop((key, slot), None)  # the slot has other content now
                if key in outputs:
                    self.rows[key, slot] = outputs[key][row]
        saved = self.engine.manager.save_outputs(
            hidden if with_hidden else None,
            {"k": -hidden} if with_k else {},
            num_tokens_unpadded=total,
            num_tokens_padded=total + padding,
        )
        hidden.fill_(7e7)
        self.expected[saved] = {}
        for (name, (blocks, start, _)), slots in zip(plan.items(), parts, strict=True):
            read = [*slots_of(blocks, 0, start * (name in hits), SIZE).tolist(), *slots]
            self.expected[saved][name] = {key: [self.rows.get((key, slot)) for slot in read] for key in outputs}
        for name, (blocks, start, count) in plan.items():
            self.alive[name] = (blocks, start + count)
            self.prefixes.append(blocks[: (start + count) // SIZE])

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Finish or abort: the engine frees the blocks at once and says so in the next step."""
        for name in data.draw(st.permutations(list(self.alive)).map(lambda each: each[: len(each) // 2 + 1])):
            del self.alive[name]
            self.gone.append(name)

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        if not self.expected:
            return
        saved = data.draw(st.sampled_from(list(self.expected)), label="step")
        parts = self.expected.pop(saved)
        if data.draw(st.booleans(), label="discard"):
            self.engine.manager.discard_step(saved)
            return
        names = data.draw(st.permutations(list(parts)).map(lambda each: each[: len(each) // 2 + 1]), label="requests")
        if any(row is None for name in names for row in parts[name].get("hidden", ())):
            with pytest.raises(StateError, match="never written"):
                self.engine.manager.materialize(saved, names)
            return
        out = self.engine.manager.materialize(saved, names)
        found = {**out.mm_outputs, **({} if out.hidden_states is None else {"hidden": out.hidden_states})}
        for name in names:
            assert found.keys() == parts[name].keys()
            for key in found:
                rows = [torch.zeros(WIDTH) if row is None else row for row in parts[name][key]]
                assert torch.equal(found[key][name], torch.stack(rows) if rows else torch.empty(0, WIDTH))

    def teardown(self) -> None:
        stats = self.engine.manager.stats()
        assert stats["steps_waiting"] == len(self.expected)
        assert stats["keys_revoked"] == 0


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
