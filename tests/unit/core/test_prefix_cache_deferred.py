"""Deferred outputs against a plain twin, over random orders of staging, committing, discarding and leaving."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from omnireuse.core.prefix_cache import OmniTensorPrefixCache, PrefixCacheOptions

from .prefix_batch import make_batch, slots_of

BLOCKS, SIZE, WIDTH = 5, 2, 3


class Engine(RuleBasedStateMachine):
    """An engine whose requests pause (leave the batch with their blocks), lose their blocks, come back and finish in
    any order; some finish without ever having been scheduled.

    The twin keeps times: of each row when it was computed, of each slot when it was last computed or freed. A row
    belongs to its token's slot unless that slot has changed since.
    """

    def __init__(self) -> None:
        super().__init__()
        options = PrefixCacheOptions(mm_keys={"codes": (WIDTH, torch.float32)}, absent="zeros")
        self.cache = OmniTensorPrefixCache(BLOCKS, SIZE, WIDTH, torch.float32, options=options)
        self.now = 0
        self.changed = [0] * (BLOCKS * SIZE)  # when each slot changed last
        self.rows: dict[int, tuple[int, float]] = {}  # slot -> when its row was computed, and the row
        self.scheduled: dict[str, list[int]] = {}  # in the batch: request -> blocks
        self.paused: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.staged: dict[str, dict[int, tuple[int, float, int]]] = {}  # request -> token -> time, row, slot
        self.num_held: dict[str, int] = {}  # rows staged, those computed again included
        self.num_requests = self.num_dropped = self.num_stale = 0

    def free(self) -> list[int]:
        taken = {block for held in (self.scheduled, self.paused) for blocks in held.values() for block in blocks}
        return [block for block in range(BLOCKS) if block not in taken]

    def batch(self) -> object:
        names = list(self.scheduled)
        batch = make_batch([self.computed[name] for name in names], list(self.scheduled.values()))
        batch.req_id_to_index = {name: index for index, name in enumerate(names)}
        batch.block_table[0].num_blocks_per_row = [len(blocks) for blocks in self.scheduled.values()]
        return batch

    def change(self, slot: int) -> None:
        self.changed[slot] = self.now
        self.rows.pop(slot, None)

    @rule(num_blocks=st.integers(1, 3), told=st.booleans())
    def admit(self, num_blocks: int, told: bool) -> None:
        blocks = self.free()[:num_blocks]
        if not blocks:
            return
        self.now += 1
        self.scheduled[f"q{self.num_requests}"] = blocks
        self.computed[f"q{self.num_requests}"] = 0
        self.num_requests += 1
        if told:
            self.cache.free_blocks(blocks)
            for block in blocks:
                for slot in range(block * SIZE, block * SIZE + SIZE):
                    self.change(slot)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Compute some tokens of each request in the batch, none for some."""
        self.now += 1
        self.cache.reset_prefix_cached_new_req_ids()
        left = {name: len(blocks) * SIZE - self.computed[name] for name, blocks in self.scheduled.items()}
        plan = {name: data.draw(st.integers(0, max(0, count)), label=name) for name, count in left.items()}
        total = sum(plan.values())
        numbers = self.now * 100 + torch.arange(total).float()
        rows = numbers[:, None].repeat(1, WIDTH)
        slots: list[int] = []
        for name, count in plan.items():
            for token in range(self.computed[name], self.computed[name] + count):
                (slot,) = slots_of(self.scheduled[name], token, 1, SIZE).tolist()
                self.change(slot)
                self.staged.setdefault(name, {})[token] = self.now, float(numbers[len(slots)]), slot
                self.num_held[name] = self.num_held.get(name, 0) + 1
                slots.append(slot)
            self.computed[name] += count
        self.cache.update_omni_tensor_prefix_cache(rows, None, total, torch.tensor(slots, dtype=torch.long))
        starts = torch.tensor([0, *plan.values()]).cumsum(0)
        self.cache.stage_deferred_mm_outputs(starts, self.batch(), {"codes": rows}, plan, {"codes"})
        rows.fill_(-1)  # the engine reuses its buffers

    @rule(data=st.data(), keeps_blocks=st.booleans())
    def leave(self, data: st.DataObject, keeps_blocks: bool) -> None:
        """A request leaves the batch unfinished; what was staged for it stays."""
        if self.scheduled:
            name = data.draw(st.sampled_from(list(self.scheduled)))
            blocks = self.scheduled.pop(name)
            self.paused[name] = blocks if keeps_blocks else []

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A request comes back; one that lost its blocks gets others and computes everything again."""
        if not self.paused:
            return
        name = data.draw(st.sampled_from(list(self.paused)))
        if not self.paused[name]:
            self.paused[name] = self.free()[-1:]
            self.computed[name] = 0
        self.scheduled[name] = self.paused.pop(name)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Any requests finish: in the batch, out of it, finished before, never heard of."""
        known = [f"q{number}" for number in range(self.num_requests)]
        names = data.draw(st.lists(st.sampled_from([*known, "stranger"]), max_size=4), label="finished")
        self.cache.commit_deferred_mm_outputs(names, self.batch())
        for name in dict.fromkeys(names):
            blocks = self.scheduled.get(name)
            for token, (time, row, slot) in sorted(self.staged.pop(name, {}).items()):
                if blocks is not None:
                    if token >= len(blocks) * SIZE:
                        self.num_dropped += 1
                        continue
                    (slot,) = slots_of(blocks, token, 1, SIZE).tolist()
                if self.changed[slot] > time or self.rows.get(slot, (0, 0.0))[0] > time:
                    self.num_stale += 1
                else:
                    self.rows[slot] = time, row
            self.num_held.pop(name, None)
            for held in (self.scheduled, self.paused, self.computed):
                held.pop(name, None)

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([*self.computed, "stranger"]))
        self.cache.discard_deferred_mm_outputs(name)
        self.staged.pop(name, None)
        self.num_held.pop(name, None)

    @invariant()
    def nothing_leaks_and_every_drop_is_counted(self) -> None:
        stats = self.cache.stats()
        assert stats["deferred_bytes"] == sum(self.num_held.values()) * WIDTH * 4
        assert stats["deferred_rows_dropped"] == self.num_dropped
        assert stats["stale_rows_dropped"] == self.num_stale

    @invariant()
    def every_row_is_where_it_belongs(self) -> None:
        batch = make_batch([BLOCKS * SIZE], [list(range(BLOCKS))])
        self.cache.add_prefix_cached_new_req_id("r0")
        outputs = {"codes": torch.zeros(0, WIDTH)}
        found = self.cache.get_merged_multimodal_states([0], batch, outputs, {"r0": 0})["codes"]["r0"]
        expected = [self.rows.get(slot, (0, 0.0))[1] for slot in range(BLOCKS * SIZE)]
        assert found.tolist() == [[row] * WIDTH for row in expected]


TestEngine = Engine.TestCase
TestEngine.settings = settings(stateful_step_count=30)
