"""The prefix cache behind vllm-omni's interface against a naive twin: a dict from slot to row, copied for each step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from omnireuse.errors import StateError

from .prefix_batch import slots_of
from .test_prefix_manager import SIZE, WIDTH, Engine

BLOCKS = 4

Rows = dict[str, torch.Tensor]

ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float": torch.neg,
    "double": lambda hidden: -hidden.double(),
    "3-D": lambda hidden: -hidden[:, :2, None].expand(-1, 2, 3).contiguous(),
    "no width": lambda hidden: hidden[:, :0].clone(),
}
"""Outputs with a row for each token, made from the hidden states."""

OTHERS: dict[str, Callable[[int], object]] = {
    "none": lambda _: None,
    "list": lambda count: [torch.ones(count, WIDTH)],
    "scalar": lambda _: torch.tensor(4.0),
    "flat": lambda count: torch.arange(count).float(),
    "longer": lambda count: torch.ones(count + 9, WIDTH),
    "shorter": lambda count: torch.ones(max(count - 1, 0), WIDTH),
}
"""Outputs without, made from the number of tokens."""


class Oracle:
    """What is due of an output: the rows of each step that gives it with a row for each token."""

    def __init__(self) -> None:
        self.sizes: dict[str, set[int]] = {}
        self.misfits: set[str] = set()
        self.was_cached: set[str] = set()

    def is_constant(self, key: str) -> bool:
        """All values had one size, and a step had another number of tokens."""
        return key in self.misfits and len(self.sizes[key]) == 1

    def is_cached(self, key: str, value: object, counts: tuple[int, int]) -> bool:
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return False
        self.sizes.setdefault(key, set()).add(len(value))
        if len(value) not in counts:
            self.misfits.add(key)
            return False
        if self.is_constant(key):
            return False
        self.was_cached.add(key)
        return True

    def lacks(self, key: str, value: object, num_tokens: int) -> bool:
        return not self.is_constant(key) and (key in self.was_cached or has_rows(value, num_tokens))

    def pick(self, key: str, values: torch.Tensor, slots: list[Rows]) -> torch.Tensor | None:
        """The rows of these slots that look like this step's, and zeros for others; None if a hidden one lacks."""
        fits = [
            key in each and each[key].shape == values.shape[1:] and each[key].dtype == values.dtype for each in slots
        ]
        if key == "hidden" and not all(fits):
            return None
        rows = [each[key] if fit else values.new_zeros(values.shape[1:]) for each, fit in zip(slots, fits, strict=True)]
        return torch.stack(rows) if rows else values[:0]


def has_rows(value: object, num_tokens: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == num_tokens


def is_same(left: object, right: object) -> bool:
    if isinstance(left, list):
        return isinstance(right, list) and all(map(is_same, left, right))
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return left is right


class Twin(RuleBasedStateMachine):
    """An engine that computes, hits, ends and reuses blocks; its steps are asked for late, in any order, or never.

    A prefix is a list of whole blocks that a request filled. It may be hit while it is unchanged, and also in the step
    that fills it. The output "k" is of every kind, now this and now that, or missing; "table" is a constant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(BLOCKS, staging_depth=3, staging_claim_timeout_s=0.0)
        self.rows: dict[int, Rows] = {}  # by slot and output
        self.alive: dict[str, tuple[list[int], int]] = {}  # blocks and computed tokens
        self.prefixes: list[list[int]] = []
        self.expected: dict[int, dict[str, dict[str, object]]] = {}  # by step, request and output
        self.oracle = Oracle()
        self.num_lacking = 0
        self.gone: list[str] = []
        self.counter = 0

    def free(self) -> list[int]:
        held = {block for blocks, _ in self.alive.values() for block in blocks}
        return [block for block in range(BLOCKS) if block not in held]

    @rule(
        data=st.data(),
        kind=st.sampled_from(["missing", *ROWS, *ROWS, *OTHERS]),
        with_hidden=st.booleans(),
        padding=st.integers(0, 2),
    )
    def step(self, data: st.DataObject, kind: str, with_hidden: bool, padding: int) -> None:
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
        self.run(plan, hits, new, kind=kind, with_hidden=with_hidden, padding=padding)

    def run(
        self,
        plan: dict[str, tuple[list[int], int, int]],
        hits: list[str],
        new: list[str],
        *,
        kind: str,
        with_hidden: bool,
        padding: int,
    ) -> None:
        total = self.engine.begin(plan, hits, new, self.gone)
        self.gone = []
        self.counter += 1
        hidden = self.counter * 1000 + torch.arange((total + padding) * WIDTH).float().reshape(-1, WIDTH)
        given: dict[str, Any] = {"table": torch.arange(6.0).reshape(3, 2)}
        if kind in ROWS:
            given["k"] = ROWS[kind](hidden)
        elif kind in OTHERS:
            given["k"] = OTHERS[kind](total)
        cached = {key for key in given if total and self.oracle.is_cached(key, given[key], (total, total + padding))}
        outputs = {key: given[key][:total].clone() for key in cached}
        if with_hidden and total:
            outputs["hidden"] = hidden[:total].clone()
        slots_of_request = {
            n: slots_of(blocks, start, count, SIZE).tolist() for n, (blocks, start, count) in plan.items()
        }
        for row, slot in enumerate(itertools.chain(*slots_of_request.values())):
            # Rows of other outputs are gone: the slot has other content now.
            self.rows[slot] = {key: rows[row] for key, rows in outputs.items()}
        num_hits = sum(plan[name][1] > 0 for name in hits)
        self.num_lacking += num_hits * sum(
            self.oracle.lacks(key, given.get(key), total) for key in {"k", "table"} - cached
        )
        saved = self.engine.manager.save_outputs(
            hidden if "hidden" in outputs else None,
            given,
            num_tokens_unpadded=total,
            num_tokens_padded=total + padding,
        )
        self.expected[saved] = {}
        stop = 0
        for name, (blocks, start, count) in plan.items():
            read = [*slots_of(blocks, 0, start * (name in hits), SIZE).tolist(), *slots_of_request[name]]
            rows = {
                key: self.oracle.pick(key, values, [self.rows.get(slot, {}) for slot in read])
                for key, values in outputs.items()
            }
            part = slice(stop, stop := stop + count)
            whole = {
                key: value[part] if has_rows(value, total) else value
                for key, value in given.items()
                if key not in cached
            }
            self.expected[saved][name] = {**rows, **whole}
        for name, (blocks, start, count) in plan.items():
            self.alive[name] = (blocks, start + count)
            self.prefixes.append(blocks[: (start + count) // SIZE])
        for buffer in (hidden, *(given[key] for key in cached - {"table"})):
            buffer.fill_(7)  # the engine uses its buffers again

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
        if any(parts[name].get("hidden", ()) is None for name in names):
            with pytest.raises(StateError, match="never written"):
                self.engine.manager.materialize(saved, names)
            return
        out = self.engine.manager.materialize(saved, names)
        found = {**out.mm_outputs, **({} if out.hidden_states is None else {"hidden": out.hidden_states})}
        for name in names:
            assert found.keys() == parts[name].keys()
            for key in found:
                assert is_same(found[key][name], parts[name][key]), (key, name, found[key][name], parts[name][key])

    def teardown(self) -> None:
        stats = self.engine.manager.stats()
        assert stats["steps_waiting"] == len(self.expected)
        assert stats["uncached_on_hits"] == self.num_lacking


TestTwin = Twin.TestCase
TestTwin.settings = settings(stateful_step_count=20)
