"""The prefix cache against a naive dense twin that keeps one Python value per (slot, key)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from omnireuse.core.prefix_cache import OmniTensorPrefixCache, PrefixCacheOptions
from omnireuse.errors import StateError

from .prefix_batch import make_batch, slots_of

BLOCKS, SIZE, WIDTH = 4, 2, 2
KEYS = ("a", "late")


class Engine(RuleBasedStateMachine):
    """An engine that allocates, computes, hits, preempts, finishes and reuses blocks; contents are told by content id.

    The twin knows nothing of steps or versions: it empties a slot when its content changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = OmniTensorPrefixCache(BLOCKS, SIZE, WIDTH, torch.float32)
        self.twin: dict[tuple[str, int], torch.Tensor] = {}
        self.free = list(range(BLOCKS))
        self.alive: dict[str, list[int]] = {}  # request → blocks
        self.computed: dict[str, int] = {}
        self.staged: dict[str, list[tuple[int, torch.Tensor]]] = {}
        self.finished: list[tuple[list[int], int]] = []  # blocks and number of tokens; the last block may be begun only
        self.counter = 0

    @initialize()
    def declare(self) -> None:
        options = PrefixCacheOptions(mm_keys=dict.fromkeys(KEYS, (WIDTH, torch.float32)))
        self.cache = OmniTensorPrefixCache(BLOCKS, SIZE, WIDTH, torch.float32, options=options)

    def batch(self) -> tuple[list[str], object]:
        names = list(self.alive)
        batch = make_batch([self.computed[n] for n in names], [self.alive[n] for n in names])
        batch.req_id_to_index = {name: index for index, name in enumerate(names)}
        return names, batch

    @rule(num_blocks=st.integers(1, 2), told=st.booleans())
    def admit(self, num_blocks: int, told: bool) -> None:
        """Give free blocks, least recently freed first, to a new request; the engine may or may not tell the cache."""
        if num_blocks > len(self.free) or self.alive:
            return  # at most one stays, or nothing is left to change hands
        self.take(num_blocks, told)

    def take(self, num_blocks: int, told: bool) -> str:
        blocks, self.free = self.free[:num_blocks], self.free[num_blocks:]
        name = f"q{self.counter}"
        self.counter += 1
        self.alive[name], self.computed[name] = blocks, 0
        self.finished = [prefix for prefix in self.finished if not set(prefix[0]) & set(blocks)]
        if told:
            self.cache.free_blocks(blocks)
            self.forget(blocks)
        return name

    def forget(self, blocks: list[int]) -> None:
        for block in blocks:
            for slot in range(block * SIZE, block * SIZE + SIZE):
                for key in ("hidden", *KEYS):
                    self.twin.pop((key, slot), None)

    @rule(data=st.data(), with_a=st.booleans(), padding=st.integers(0, 2))
    def step(self, data: st.DataObject, with_a: bool, padding: int) -> None:
        """Compute some tokens of some requests."""
        left = {name: len(blocks) * SIZE - self.computed[name] for name, blocks in self.alive.items()}
        plan = {name: data.draw(st.integers(0, count), label=f"tokens of {name}") for name, count in left.items()}
        self.compute(plan, with_a=with_a, padding=padding)

    @rule(num_blocks=st.integers(1, 2), with_a=st.booleans(), told=st.booleans(), late_rival=st.booleans())
    def serve(self, num_blocks: int, with_a: bool, told: bool, late_rival: bool) -> None:
        """Serve a whole request, so that blocks change hands often; its blocks may be given away before it commits."""
        if num_blocks > len(self.free):
            return
        name = self.take(num_blocks, told)
        self.compute({name: num_blocks * SIZE}, with_a=with_a, padding=0)
        blocks = self.alive[name]
        if late_rival:
            self.alive["rival"], self.computed["rival"] = blocks, 0
            self.compute({"rival": SIZE}, with_a=False, padding=0)
            del self.alive["rival"], self.computed["rival"], self.staged["rival"]
            self.cache.discard_deferred_mm_outputs("rival")
            self.staged[name] = [(SIZE, rows[SIZE:]) for _, rows in self.staged[name]]
        self.finish(name)

    def compute(self, plan: dict[str, int], *, with_a: bool, padding: int) -> None:
        """Run a step: hidden states always, "a" sometimes, "late" deferred."""
        self.cache.reset_prefix_cached_new_req_ids()
        names = list(self.alive)
        plan = {name: plan.get(name, 0) for name in names}
        total = sum(plan.values())
        self.counter += 1
        hidden = self.counter * 1000 + torch.arange((total + padding) * WIDTH).float().reshape(-1, WIDTH)
        late = -hidden
        slots = [slots_of(self.alive[n], self.computed[n], plan[n], SIZE) for n in names]
        slot_mapping = torch.cat([*slots, torch.full((padding,), -1)]).long()
        outputs = {"late": late, **({"a": hidden + 0.5} if with_a else {})}
        # With padding inside the unpadded count, −1 has to be masked and not only cut off.
        self.cache.update_omni_tensor_prefix_cache(
            hidden, outputs, total + padding, slot_mapping, skip_mm_cache_keys={"late"}
        )
        for row, slot in enumerate(slot_mapping.tolist()[:total]):
            for key in ("hidden", *KEYS):
                self.twin.pop((key, slot), None)
            self.twin["hidden", slot] = hidden[row].clone()
            if with_a:
                self.twin["a", slot] = hidden[row] + 0.5
        starts = torch.tensor([0, *plan.values()]).cumsum(0)
        for name, start in zip(names, starts.tolist(), strict=False):
            if plan[name]:
                rows = late[start : start + plan[name]].clone()
                self.staged.setdefault(name, []).append((self.computed[name], rows))
            self.computed[name] += plan[name]
        self.cache.stage_deferred_mm_outputs(starts, self.batch()[1], outputs, plan, {"late"})
        late.fill_(7e7)  # the engine reuses its buffers
        hidden.fill_(7e7)

    @rule(data=st.data(), how=st.sampled_from(["finish", "abort", "preempt"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        if not self.alive:
            return
        name = data.draw(st.sampled_from(list(self.alive)))
        blocks = self.alive[name]
        if how == "preempt":
            if len(self.free) < len(blocks):
                return
            taken, self.free = self.free[: len(blocks)], self.free[len(blocks) :] + blocks
            self.finished = [prefix for prefix in self.finished if not set(prefix[0]) & set(taken)]
            self.alive[name], self.computed[name] = taken, 0
            self.cache.discard_deferred_mm_outputs(name)
            self.staged.pop(name, None)
            return
        if how == "finish":
            self.finish(name)
        else:
            self.cache.discard_deferred_mm_outputs(name)
            self.drop(name)

    def finish(self, name: str) -> None:
        blocks = self.alive[name]
        self.cache.commit_deferred_mm_outputs([name], self.batch()[1])
        for start, rows in self.staged.get(name, []):
            for slot, row in zip(slots_of(blocks, start, len(rows), SIZE).tolist(), rows, strict=True):
                self.twin["late", slot] = row
        if self.computed[name]:
            self.finished.append((blocks[: -(-self.computed[name] // SIZE)], self.computed[name]))
        self.drop(name)

    def drop(self, name: str) -> None:
        self.free += self.alive.pop(name)
        del self.computed[name]
        self.staged.pop(name, None)

    @rule(
        data=st.data(), key=st.sampled_from(["hidden", *KEYS]), new=st.lists(st.integers(0, 2), min_size=2, max_size=3)
    )
    def hit(self, data: st.DataObject, key: str, new: list[int]) -> None:
        """Start requests somewhere in finished prefixes and compare with the twin: the same rows, or both say absent.

        The first request of the batch has no hit. The block table may lack a request's last block.
        """
        if not self.finished:
            return
        tables, computed, expected = [[0]], [SIZE], [[]]
        for _ in new[1:]:
            blocks, num_tokens = data.draw(st.sampled_from(self.finished))
            computed.append(data.draw(st.integers(0, num_tokens), label="computed"))
            known = blocks[: data.draw(st.integers(max(0, len(blocks) - 1), len(blocks)), label="known blocks")]
            slots = slots_of(blocks, 0, computed[-1], SIZE).tolist()
            expected.append([self.twin.get((key, slot)) if slot // SIZE in known else None for slot in slots])
            self.cache.add_prefix_cached_new_req_id(f"r{len(tables)}", block_ids=blocks)
            tables.append(known)
        batch = make_batch(computed, tables)
        batch.block_table[0].num_blocks_per_row = [len(table) for table in tables]
        counts = {f"r{number}": count for number, count in enumerate(new)}
        starts = torch.tensor([0, *new]).cumsum(0)
        rows = 0.25 + torch.arange(sum(new) * WIDTH).float().reshape(-1, WIDTH)

        def read() -> dict[str, torch.Tensor]:
            if key == "hidden":
                return self.cache.get_merged_hidden_states(starts, batch, rows, counts)
            return self.cache.get_merged_multimodal_states(starts, batch, {key: rows}, counts)[key]

        if any(row is None for each in expected for row in each):
            with pytest.raises(StateError, match="must be present"):
                read()
        else:
            merged = read()
            for each, own, (name, row) in zip(expected, rows.split(new), merged.items(), strict=True):
                assert torch.equal(
                    row, torch.cat([torch.tensor([]).reshape(0, WIDTH), *(r[None] for r in each), own])
                ), name


TestEngine = Engine.TestCase
TestEngine.settings = settings(stateful_step_count=25)
