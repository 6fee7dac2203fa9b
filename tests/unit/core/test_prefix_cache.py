from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from omnireuse.core.prefix_cache import OmniTensorPrefixCache, PrefixCacheOptions
from omnireuse.errors import ConfigError, StateError, UnknownNameError, UnsupportedModelError, WrongTypeError

from .conftest import Copy
from .prefix_batch import make_batch, slots_of

BLOCKS, SIZE, WIDTH = 10, 4, 3


def make_cache(**options: object) -> OmniTensorPrefixCache:
    return OmniTensorPrefixCache(BLOCKS, SIZE, WIDTH, torch.float32, options=PrefixCacheOptions(**options))


def rows(count: int, width: int = WIDTH, start: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(start, start + count * width).reshape(count, width).to(dtype)


def merge_hidden(cache: OmniTensorPrefixCache, batch: object, new: torch.Tensor, **scheduled: int) -> dict:
    starts = torch.tensor([0, *scheduled.values()]).cumsum(0)
    return cache.get_merged_hidden_states(starts, batch, new, scheduled)


def merge_mm(cache: OmniTensorPrefixCache, batch: object, outputs: dict | None, **scheduled: int) -> dict:
    starts = [0]
    for count in scheduled.values():
        starts.append(starts[-1] + count)
    return cache.get_merged_multimodal_states(starts, batch, outputs, scheduled)


# --- shape and storage


def test_attributes_have_the_specified_shapes() -> None:
    cache = make_cache()
    assert (cache.num_blocks, cache.block_size, cache.default_hidden_size) == (BLOCKS, SIZE, WIDTH)
    assert cache.hidden_states_cache.shape == (BLOCKS, SIZE, WIDTH)
    assert cache.hidden_states_cache.dtype == torch.float32
    assert cache.mm_outputs_cache == {}
    assert cache.mm_cache_keys == set()


def test_bytes_in_use_follow_the_blocks_that_hold_rows() -> None:
    cache = OmniTensorPrefixCache(4096, 16, 2048, torch.bfloat16)
    tokens = torch.ones(16 * 64, 2048, dtype=torch.bfloat16)
    cache.update_omni_tensor_prefix_cache(tokens, None, len(tokens), torch.arange(len(tokens)))
    assert cache.stats()["bytes_in_use"] == 64 * 16 * 2048 * 2
    cache.free_blocks(range(64))
    assert cache.stats()["bytes_in_use"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allocate the pool at once")
def test_memory_is_committed_as_rows_are_written_and_comes_back() -> None:
    """The pool is larger than the memory of the machine; pages that were returned read as zeros."""
    cache = OmniTensorPrefixCache(1 << 22, 16, 8192, torch.bfloat16)  # 1 TiB of address space
    tokens, slots = torch.ones(64, 8192, dtype=torch.bfloat16), torch.arange(64) + (1 << 25)
    cache.update_omni_tensor_prefix_cache(tokens, None, 64, slots)
    cache.free_blocks((slots // 16).unique().tolist())
    assert not cache.hidden_states_cache.view(-1, 8192)[slots].any()


def test_small_blocks_that_share_a_page_keep_their_neighbours() -> None:
    cache = OmniTensorPrefixCache(64, 4, 3, torch.float32)
    data = rows(256)
    cache.update_omni_tensor_prefix_cache(data, None, 256, torch.arange(256))
    cache.free_blocks([*range(5), *range(6, 64)])
    assert torch.equal(cache.hidden_states_cache[5].reshape(-1, 3), data[20:24])


# --- writing


def test_rows_land_at_their_slots() -> None:
    cache, data = make_cache(), rows(6)
    slots = torch.tensor([8, 9, 2, 3, 39, 20])
    cache.update_omni_tensor_prefix_cache(data, {"codes": data[:, :2].long()}, 6, slots)
    assert torch.equal(cache.hidden_states_cache.view(-1, WIDTH)[slots], data)
    assert torch.equal(cache.mm_outputs_cache["codes"].view(-1, 2)[slots], data[:, :2].long())
    assert cache.mm_outputs_cache["codes"].shape == (BLOCKS, SIZE, 2)
    assert cache.stats()["rows_written"] == 12


def test_rows_past_the_unpadded_count_are_not_written() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(rows(8), {"a": rows(8, 2)}, 5, torch.arange(8), num_tokens_padded=8)
    assert cache.mm_cache_keys == {"a"}
    assert not cache.hidden_states_cache.view(-1, WIDTH)[5:].any()
    assert not cache.mm_outputs_cache["a"].view(-1, 2)[5:].any()


def test_either_input_may_be_none() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(None, {"a": rows(4, 2)}, 4, torch.arange(4))
    cache.update_omni_tensor_prefix_cache(rows(4), None, 4, torch.arange(4))
    cache.update_omni_tensor_prefix_cache(None, None, 4, torch.arange(4))
    assert cache.stats()["rows_written"] == 8


def test_padding_slots_write_nothing() -> None:
    cache = make_cache()
    slots = torch.tensor([0, -1, 1, -1])
    cache.update_omni_tensor_prefix_cache(rows(4), {"a": rows(4, 2)}, 4, slots)
    assert torch.equal(cache.hidden_states_cache.view(-1, WIDTH)[:2], rows(4)[[0, 2]])
    assert not cache.hidden_states_cache.view(-1, WIDTH)[2:].any()
    assert not cache.mm_outputs_cache["a"][-1].any()
    cache.update_omni_tensor_prefix_cache(rows(2), None, 2, torch.tensor([-1, -1]))
    assert cache.stats()["padding_rows"] == 4


@pytest.mark.parametrize("slot", [40, -2])
def test_a_slot_outside_the_pool_is_refused_and_nothing_is_written(slot: int) -> None:
    cache = make_cache()
    with pytest.raises(StateError, match=rf"\[0, 40\).*got {slot}"):
        cache.update_omni_tensor_prefix_cache(rows(2), None, 2, torch.tensor([0, slot]))
    assert cache.stats()["rows_written"] == 0


def test_the_cpu_copy_is_the_source() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(torch.zeros(4, 3), None, 4, torch.arange(4), hidden_states_cpu=rows(5))
    assert torch.equal(cache.hidden_states_cache[0], rows(4))


@pytest.mark.parametrize(
    "copy",
    [rows(3), rows(4, dtype=torch.float16), rows(4, 4), rows(3, 4).t(), torch.zeros(4, 3, device="meta")],
    ids=["short", "dtype", "width", "strided", "device"],
)
def test_a_cpu_copy_that_cannot_be_the_source_is_refused(copy: torch.Tensor) -> None:
    cache = make_cache()
    with pytest.raises(RuntimeError, match="hidden_states_cpu"):
        cache.update_omni_tensor_prefix_cache(rows(4), {"a": rows(4)}, 4, torch.arange(4), hidden_states_cpu=copy)
    with pytest.raises(RuntimeError, match="hidden_states_cpu"):
        cache.get_merged_hidden_states([0, 4], make_batch([0], [[0]]), rows(4), {"r0": 4}, hidden_states_cpu=copy)
    assert cache.stats()["rows_written"] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_any_dtype_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    cache = OmniTensorPrefixCache(4, 4, 6, dtype)
    data = torch.randn(8, 6).to(dtype)
    cache.update_omni_tensor_prefix_cache(data, None, 8, torch.arange(8))
    cache.add_prefix_cached_new_req_id("r0")
    merged = merge_hidden(cache, make_batch([8], [[0, 1]]), data[:1], r0=1)["r0"]
    assert torch.equal(merged.view(torch.uint8), torch.cat([data, data[:1]]).view(torch.uint8))


# --- which outputs become keys


def test_init_makes_keys_of_tensors_with_a_row_per_token_and_is_idempotent() -> None:
    cache = make_cache()
    outputs = {
        "a": torch.ones(5, 7, dtype=torch.float16), "deep": torch.ones(5, 2, 3), "flat": torch.ones(5),
        "other": torch.ones(4, 7), "text": "x", "list": [torch.ones(5, 7)],
    }  # fmt: skip
    cache.maybe_init_missing_mm_cache_keys(outputs, 5)
    assert cache.mm_cache_keys == {"a", "deep"}
    assert cache.mm_outputs_cache["a"].shape == (BLOCKS, SIZE, 7)
    assert cache.mm_outputs_cache["a"].dtype == torch.float16
    cache.mm_outputs_cache["a"].fill_(1)
    cache.maybe_init_missing_mm_cache_keys(outputs, 5)
    assert cache.mm_outputs_cache["a"].all()


def test_rows_of_more_dimensions_keep_their_shape() -> None:
    cache = make_cache()
    deep = torch.arange(48).reshape(8, 2, 3)
    cache.update_omni_tensor_prefix_cache(rows(8), {"deep": deep}, 8, torch.arange(8))
    cache.add_prefix_cached_new_req_id("r0")
    assert torch.equal(merge_mm(cache, make_batch([8], [[0, 1]]), {"deep": deep[:1]}, r0=1)["deep"]["r0"][:8], deep)


def test_a_constant_with_as_many_rows_as_the_step_has_tokens_is_not_cached_from_the_first_contradiction() -> None:
    cache, table = make_cache(), torch.ones(4, 9)
    for count, num_written in (4, 8), (3, 11), (4, 15):  # hidden states, and the table in the first step only
        cache.reset_prefix_cached_new_req_ids()
        cache.update_omni_tensor_prefix_cache(rows(count), {"table": table}, count, torch.arange(8, 8 + count))
        assert cache.stats()["rows_written"] == num_written
    cache.add_prefix_cached_new_req_id("r0")
    merged = merge_mm(cache, make_batch([4], [[0]]), {"table": table}, r0=4)  # of rows that are absent
    assert torch.equal(merged["table"]["r0"], table)
    assert cache.stats()["uncached_on_hits"] == 0  # a hit lacks nothing of a constant


@pytest.mark.parametrize(
    "second", [None, [torch.ones(2, 3)], rows(1, 3), rows(5, 3), torch.tensor(1.0), torch.ones(2)], ids=str
)
@pytest.mark.parametrize("padding", [0, 2])
def test_an_output_without_a_row_for_each_token_is_passed_on_and_cached_in_the_other_steps(
    second: object, padding: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache, codes = make_cache(), rows(4, 3)
    for blocks, value in ([1], codes), ([2], second), ([3], codes + 50):
        count = 2 if blocks == [2] else 4
        cache.reset_prefix_cached_new_req_ids()
        slots = slots_of(blocks, 0, count, SIZE)
        padded = torch.cat([value, value[:padding]]) if count == 4 else value
        cache.update_omni_tensor_prefix_cache(rows(count), {"codes": padded}, count, slots, count + padding)
        merged = merge_mm(cache, make_batch([0], [blocks]), {"codes": padded}, r0=count)
        if isinstance(value, torch.Tensor) and value.ndim:
            assert torch.equal(merged["codes"]["r0"], value)
    for blocks, value in ([1], codes), ([3], codes + 50):
        cache.reset_prefix_cached_new_req_ids()
        cache.add_prefix_cached_new_req_id("r0")
        merged = merge_mm(cache, make_batch([4], [blocks]), {"codes": codes[:1]}, r0=1)
        assert torch.equal(merged["codes"]["r0"], torch.cat([value, codes[:1]]))
        lacking = merge_mm(cache, make_batch([4], [blocks]), {"codes": [codes[:1]]}, r0=1)
        assert torch.equal(lacking["codes"]["r0"][0], codes[:1])
    assert cache.stats()["lacking multimodal_outputs['codes']"] == 8
    assert "not a row for each token (list)" in caplog.text
    assert len(caplog.records) == 1


def test_rows_of_no_width_are_rows_and_steps_are_numbered_beyond_32_bits() -> None:
    cache = make_cache()
    cache._pool.step = 2**31 + 5
    cache.update_omni_tensor_prefix_cache(rows(4), {"a": torch.ones(4, 0)}, 4, torch.arange(4))
    cache.add_prefix_cached_new_req_id("r0")
    assert merge_mm(cache, make_batch([4], [[0]]), {"a": torch.ones(1, 0)}, r0=1)["a"]["r0"].shape == (5, 0)
    assert torch.equal(merge_hidden(cache, make_batch([4], [[0]]), rows(1), r0=1)["r0"][:4], rows(4))


def test_declared_keys_are_the_only_ones() -> None:
    cache = make_cache(mm_keys={"codes": (2, torch.float32)})
    cache.update_omni_tensor_prefix_cache(None, {"codes": rows(4, 2), "b": rows(4, 2)}, 4, torch.arange(4))
    assert cache.mm_cache_keys == {"codes"}
    with pytest.raises(StateError, match="must cover 4 tokens"):
        cache.update_omni_tensor_prefix_cache(None, {"codes": rows(3, 2)}, 4, torch.arange(4))


@pytest.mark.parametrize("changed", [rows(4, 5), rows(4, 2, dtype=torch.float16)], ids=["width", "dtype"])
def test_a_known_key_may_change_neither_width_nor_dtype(changed: torch.Tensor) -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(None, {"a": rows(4, 2)}, 4, torch.arange(4))
    with pytest.raises(StateError, match="as cached"):
        cache.update_omni_tensor_prefix_cache(rows(4), {"a": changed}, 4, torch.arange(4))
    assert cache.stats()["rows_written"] == 4


# --- reading


@pytest.mark.parametrize("computed", [1, 3, 4, 5, 7, 8])
def test_a_start_in_the_middle_of_a_block_gets_the_rows_of_the_begun_block(computed: int) -> None:
    cache, blocks, data = make_cache(), [6, 1], rows(8)
    cache.update_omni_tensor_prefix_cache(data, {"a": data[:, :2]}, 8, slots_of(blocks, 0, 8, SIZE))
    cache.add_prefix_cached_new_req_id("r1")
    batch, new = make_batch([0, computed, 0], [[9], [*blocks, 3], [4]]), rows(4, start=500)
    merged = merge_hidden(cache, batch, new, r0=1, r1=2, r2=1)
    assert torch.equal(merged["r1"], torch.cat([data[:computed], new[1:3]]))
    assert torch.equal(merged["r0"], new[:1])
    assert torch.equal(merged["r2"], new[3:])
    merged = merge_mm(cache, batch, {"a": new[:, :2]}, r0=1, r1=2, r2=1)["a"]
    assert torch.equal(merged["r1"], torch.cat([data[:computed, :2], new[1:3, :2]]))
    assert cache.stats()["rows_read"] == 2 * computed


@pytest.mark.parametrize("absent", ["raise", "miss", "zeros"])
@pytest.mark.parametrize("blocks", [[2, 7], [2]], ids=["not written", "not in the block table"])
def test_rows_of_the_begun_block_that_are_not_there_are_absent_rows(
    absent: str, blocks: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    cache = make_cache(absent=absent)
    cache.update_omni_tensor_prefix_cache(rows(5), None, 5, slots_of([2, 7], 0, 5, SIZE))
    cache.free_blocks([7])
    cache.add_prefix_cached_new_req_id("r0")
    batch = make_batch([5], [blocks])
    if absent == "raise":
        match = "1 of 5 cached rows" if len(blocks) == 2 else "must have 2 blocks for its 5 computed tokens, got 1"
        with pytest.raises(StateError, match=match):
            merge_hidden(cache, batch, rows(2), r0=2)
        return
    for _ in range(2):
        merged = merge_hidden(cache, batch, rows(2), r0=2)["r0"]
        zeros = torch.cat([rows(4), torch.zeros(1, WIDTH), rows(2)])
        assert torch.equal(merged, rows(2) if absent == "miss" else zeros)
    assert cache.stats()["absent_rows"] == 2
    (said,) = (record.message for record in caplog.records)
    assert f"answered as absent={absent!r} says" in said


def test_the_write_of_a_step_is_visible_to_a_hit_in_the_same_step() -> None:
    cache, batch = make_cache(), make_batch([0, 4], [[3], [3, 6]])
    cache.reset_prefix_cached_new_req_ids()
    cache.add_prefix_cached_new_req_id("r1", block_ids=[3])
    now = rows(6)
    cache.update_omni_tensor_prefix_cache(now, None, 6, torch.tensor([12, 13, 14, 15, 24, 25]))
    assert torch.equal(merge_hidden(cache, batch, now, r0=4, r1=2)["r1"], now)


@pytest.mark.parametrize("which", ["hidden", "mm"])
def test_results_survive_the_next_step_over_the_same_buffers(which: str) -> None:
    cache, batch, live = make_cache(), make_batch([0], [[0]]), rows(2)
    if which == "mm":
        cache.maybe_init_missing_mm_cache_keys({"a": live}, 2)
        merged = merge_mm(cache, batch, {"a": live}, r0=2)["a"]["r0"]
    else:
        merged = merge_hidden(cache, batch, live, r0=2)["r0"]
    live.zero_()
    assert torch.equal(merged, rows(2))


def test_results_that_are_kept_survive_later_steps_and_memory_of_dropped_ones_is_used_again() -> None:
    cache, batch = make_cache(), make_batch([4, 0], [[0], [1]])
    cache.update_omni_tensor_prefix_cache(rows(4), None, 4, torch.arange(4))
    cache.add_prefix_cached_new_req_id("r0")
    kept = merge_hidden(cache, batch, rows(2), r0=1, r1=1)["r1"]  # a view of what the requests of a step share
    for start in (100, 200, 300):
        merged = merge_hidden(cache, batch, rows(2, start=start), r0=1, r1=1)
        assert torch.equal(merged["r0"], torch.cat([rows(4), rows(1, start=start)]))
        del merged
    assert torch.equal(kept, rows(2)[1:])
    assert cache.stats()["merge_buffer_bytes"] == 2 * 6 * WIDTH * 4


def test_a_view_of_a_view_keeps_its_memory_from_being_used_again() -> None:
    cache, batch = make_cache(), make_batch([0], [[0]])
    kept = merge_hidden(cache, batch, rows(4), r0=4)["r0"][1:3].view(torch.int32)[:, 1]
    as_numpy = merge_hidden(cache, batch, rows(4, start=50), r0=4)["r0"].numpy()
    before = kept.clone()
    for start in (100, 200):
        merge_hidden(cache, batch, rows(4, start=start), r0=4)
    assert torch.equal(kept, before)
    assert torch.equal(torch.from_numpy(as_numpy), rows(4, start=50))


@pytest.mark.parametrize("hidden_first", [True, False])
def test_the_parts_of_a_step_may_be_written_in_any_order(hidden_first: bool) -> None:
    cache, batch = make_cache(), make_batch([4], [[0]])
    parts = [(rows(4), None), (None, {"a": rows(4, 2)})]
    for hidden, outputs in parts if hidden_first else parts[::-1]:
        cache.update_omni_tensor_prefix_cache(hidden, outputs, 4, torch.arange(4))
    cache.add_prefix_cached_new_req_id("r0")
    assert torch.equal(merge_mm(cache, batch, {"a": rows(1, 2)}, r0=1)["a"]["r0"][:4], rows(4, 2))


@pytest.mark.parametrize("absent", ["raise", "miss", "zeros"])
def test_a_block_reused_between_the_plan_and_the_read_is_not_served(absent: str) -> None:
    cache, batch = make_cache(absent=absent), make_batch([4], [[0]])
    cache.update_omni_tensor_prefix_cache(rows(4), None, 4, torch.arange(4))
    cache.reset_prefix_cached_new_req_ids()
    cache.add_prefix_cached_new_req_id("r0", block_ids=[0])
    cache.free_blocks([0])
    cache.update_omni_tensor_prefix_cache(rows(4, start=500), None, 4, torch.arange(4))
    if absent == "raise":
        with pytest.raises(StateError, match="block 0 was freed after the hit was planned"):
            merge_hidden(cache, batch, rows(1), r0=1)
    else:
        merged = merge_hidden(cache, batch, rows(1), r0=1)["r0"]
        expected = rows(1) if absent == "miss" else torch.cat([torch.zeros(4, WIDTH), rows(1)])
        assert torch.equal(merged, expected)


# --- what passes through


def test_uncached_values_pass_through_per_request() -> None:
    token_aligned, other, nested = torch.arange(5), torch.ones(7, 2), torch.arange(10).reshape(5, 2)
    shared = object()
    outputs = {
        "aligned": token_aligned, "other": other, "text": "x", "none": None, "shared": shared,
        "list": [nested, "y"], "dict": {"in": nested, "deep": {"list": [other]}}, "scalar": torch.tensor(3),
    }  # fmt: skip
    cache = make_cache(mm_keys={})
    cache.add_prefix_cached_new_req_id("r0")
    cache.update_omni_tensor_prefix_cache(rows(4), None, 4, torch.arange(4))
    merged = merge_mm(cache, make_batch([4, 0], [[0], [1]]), outputs, r0=3, r1=2)
    assert merged["aligned"]["r0"].tolist() == [0, 1, 2]
    assert merged["aligned"]["r1"].tolist() == [3, 4]
    assert torch.equal(merged["other"]["r1"], other)
    assert merged["text"] == {"r0": "x", "r1": "x"}
    assert "none" not in merged
    assert merged["shared"]["r0"] is shared
    assert torch.equal(merged["list"]["r0"][0], nested)
    assert merged["list"]["r0"][1] == "y"
    assert torch.equal(merged["dict"]["r1"]["in"], nested[3:])
    assert torch.equal(merged["dict"]["r1"]["deep"]["list"][0], other)
    assert merged["scalar"]["r0"] == 3
    for name, before in (("aligned", [0, 1, 2]), ("other", None)):
        outputs[name].fill_(77)
        assert (merged[name]["r0"] != 77).all(), (name, before)
    nested.fill_(77)
    assert (merged["list"]["r0"][0] != 77).all()
    assert (merged["dict"]["r0"]["in"] != 77).all()


def test_what_a_hit_lacks_of_an_uncached_output_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cache = make_cache(mm_keys={})
    cache.update_omni_tensor_prefix_cache(rows(4), None, 4, torch.arange(4))
    batch, outputs = make_batch([4, 4, 0], [[0], [1], [2]]), {"pcm": rows(5, 2), "nested": {"deep": torch.arange(5)}}
    whole = {"table": rows(9, 2), "list": [rows(5)], "text": "x", "scalar": torch.tensor(1)}
    merge_mm(cache, batch, outputs | whole, r0=3, r1=1, r2=1)
    assert cache.stats()["uncached_on_hits"] == 0  # nobody is on a hit
    for step in (1, 2):
        cache.reset_prefix_cached_new_req_ids()
        cache.add_prefix_cached_new_req_id("r0")
        cache.add_prefix_cached_new_req_id("r2")  # a hit on nothing lacks nothing
        merged = merge_mm(cache, batch, outputs | whole, r0=3, r1=1, r2=1)
        assert torch.equal(merged["pcm"]["r0"], outputs["pcm"][:3])
        assert cache.stats()["uncached_on_hits"] == 2 * step
    said = [record.message.split(": in this step")[0] for record in caplog.records]
    assert said == [f"prefix cache: a hit lacks rows of multimodal_outputs['{key}']" for key in ("pcm", "nested")]
    assert caplog.text.count("declare it in PrefixCacheOptions") == 2


def test_no_outputs_count_as_none_at_all() -> None:
    assert merge_mm(make_cache(), make_batch([0], [[0]]), None, r0=1) == {}


# --- deferred outputs


def stage(cache: OmniTensorPrefixCache, batch: object, value: object, **kw: object) -> None:
    count = value.shape[0] if isinstance(value, torch.Tensor) else 4
    cache.stage_deferred_mm_outputs([0, count], batch, {"codes": value}, {"r0": count}, {"codes"}, **kw)


def test_a_counter_read_before_the_step_says_so() -> None:
    cache, batch, data = make_cache(), make_batch([0], [[1]]), rows(4, 2)
    stage(cache, batch, data, counter_includes_step=False)
    batch.num_computed_tokens_cpu = [4]
    late = rows(2, 2, start=90)
    stage(cache, make_batch([4], [[1, 3]]), late, counter_includes_step=False)
    cache.commit_deferred_mm_outputs(["r0"], make_batch([6], [[1, 3]]))
    flat = cache.mm_outputs_cache["codes"].view(-1, 2)
    assert torch.equal(flat[4:8], data)
    assert torch.equal(flat[12:14], late)


def test_discarded_chunks_are_gone_and_the_id_may_be_used_again() -> None:
    cache, batch = make_cache(), make_batch([4], [[0]])
    stage(cache, batch, rows(4, 2, start=50))
    cache.discard_deferred_mm_outputs("r0")
    cache.discard_deferred_mm_outputs("r0")
    cache.commit_deferred_mm_outputs(["r0"], batch)
    assert cache.mm_cache_keys == set()
    stage(cache, batch, rows(4, 2))
    cache.commit_deferred_mm_outputs(["r0"], batch)
    assert torch.equal(cache.mm_outputs_cache["codes"][0], rows(4, 2))


def test_rows_that_no_longer_fit_their_key_are_dropped() -> None:
    cache, batch = make_cache(), make_batch([4], [[0]])
    stage(cache, batch, rows(4, 2))
    cache.update_omni_tensor_prefix_cache(None, {"codes": rows(4, 5)}, 4, torch.arange(8, 12))
    cache.commit_deferred_mm_outputs(["r0"], batch)
    assert cache.stats()["deferred_rows_dropped"] == 4
    stage(cache, batch, rows(4, 5))
    with pytest.raises(StateError, match="as cached"):
        stage(cache, batch, rows(4, 2))
    other = make_cache()
    stage(other, batch, rows(4, 2))
    with pytest.raises(StateError, match=r"must stay \(2,\) torch.float32, got \(5,\) torch.float32"):
        stage(other, batch, rows(4, 5))


def test_an_output_that_is_none_counts_as_not_given() -> None:
    cache, batch = make_cache(), make_batch([4], [[0]])
    cache.update_omni_tensor_prefix_cache(rows(4), {"codes": rows(4, 2)}, 4, torch.arange(4))
    cache.update_omni_tensor_prefix_cache(rows(3), {"codes": None}, 3, torch.arange(4, 7))
    assert cache.mm_cache_keys == {"codes"}
    cache.stage_deferred_mm_outputs([0, 4], batch, {"codes": None}, {"r0": 4}, {"codes"})
    assert cache.stats()["deferred_bytes"] == 0
    cache.add_prefix_cached_new_req_id("r0")
    assert merge_mm(cache, batch, {"codes": None, "text": None}, r0=3) == {}


# --- mistakes


def update(hidden: torch.Tensor | None, slots: int = 4, tokens: int = 4, mm: object = None, **more: object) -> None:
    cache = make_cache(mm_keys={"codes": (2, torch.float32)})
    cache.update_omni_tensor_prefix_cache(hidden, mm, tokens, torch.arange(slots), **more)


def hit(computed: int, blocks: list[int], starts: object = (0, 1), counts: object = None, **more: int) -> None:
    cache = make_cache()
    cache.add_prefix_cached_new_req_id("r0")
    batch = make_batch([computed], [blocks], **more)
    cache.get_merged_hidden_states(starts, batch, rows(1), counts or {"r0": 1})


def defer(value: object) -> None:
    stage(make_cache(mm_keys={"codes": (2, torch.float32)}), make_batch([4], [[0]]), value)


@pytest.mark.parametrize(
    ("error", "says", "mistake"),
    [
        (ConfigError, "num_blocks", lambda: OmniTensorPrefixCache(0, 4, 3, torch.float32)),
        (ConfigError, "block_size", lambda: OmniTensorPrefixCache(10, -1, 3, torch.float32)),
        (WrongTypeError, "hidden_size", lambda: OmniTensorPrefixCache(10, 4, 1.5, torch.float32)),
        (WrongTypeError, "hs_dtype", lambda: OmniTensorPrefixCache(10, 4, 3, "bf16")),
        (UnknownNameError, "unknown absent 'zero'; did you mean 'zeros'", lambda: PrefixCacheOptions(absent="zero")),
        (ConfigError, "max_pending_writes must", lambda: PrefixCacheOptions(max_pending_writes=0)),
        (WrongTypeError, r"mm_keys\['codes'\]", lambda: PrefixCacheOptions(mm_keys={"codes": 8})),
        (ConfigError, r"mm_keys\['codes'\]", lambda: PrefixCacheOptions(mm_keys={"codes": (0, torch.long)})),
        (StateError, "must cover 4 tokens, got 3 rows", lambda: update(rows(3))),
        (StateError, r"\(3,\).*\(2,\)", lambda: update(rows(4, 2))),
        (StateError, "float16", lambda: update(rows(4, dtype=torch.float16))),
        (StateError, "slot_mapping", lambda: update(rows(4), slots=3)),
        (StateError, "must come with", lambda: update(None, hidden_states_cpu=rows(4))),
        (StateError, "must cover 5 tokens, got 4 rows", lambda: update(None, 5, 5, {"codes": rows(4, 2)})),
        (StateError, "must stay a tensor", lambda: update(None, mm={"codes": [rows(4, 2)]})),
        (UnsupportedModelError, "got 2", lambda: hit(0, [0], num_groups=2)),
        (StateError, "must have 3 blocks", lambda: hit(12, [0, 1])),
        (StateError, "num_computed_tokens_cpu: must be ≥ 0, got -1", lambda: hit(-1, [0, 1])),
        (StateError, r"\[0, 10\), got 10", lambda: hit(4, [10])),
        (ConfigError, "query_start_loc", lambda: hit(0, [0], [])),
        (WrongTypeError, "num_scheduled_tokens", lambda: hit(0, [0], counts=[1])),
        (StateError, "block id", lambda: make_cache().free_blocks([10])),
        (StateError, "a deferred key must be a tensor", lambda: defer([1, 2, 3, 4])),
        (StateError, "a deferred key must be a tensor", lambda: defer(torch.ones(4))),
        (StateError, "as cached", lambda: defer(rows(4, 5))),
    ],
)
def test_a_mistake_is_refused(error: type[Exception], says: str, mistake: Callable[[], None]) -> None:
    with pytest.raises(error, match=says):
        mistake()


# --- copies off the critical path, on a played device (conftest)


def test_update_returns_before_the_copy_is_done_and_a_hit_waits_for_it(copies: list[Copy]) -> None:
    cache, live = make_cache(), rows(4)
    slots = torch.arange(4)
    cache.update_omni_tensor_prefix_cache(live, None, 4, slots)
    live.zero_()
    slots.fill_(39)
    assert not copies[0].done.is_set()
    cache.add_prefix_cached_new_req_id("r0")
    threading.Timer(0.05, copies[0].finish).start()
    merged = merge_hidden(cache, make_batch([4], [[0]]), rows(1), r0=1)["r0"]
    assert torch.equal(merged[:4], rows(4))


def test_writes_in_flight_land_in_order(copies: list[Copy]) -> None:
    cache = make_cache()
    for k in range(3):
        cache.update_omni_tensor_prefix_cache(rows(4, start=100 * k), None, 4, torch.arange(4))
    for copy in reversed(copies):
        copy.finish()
    assert torch.equal(cache.hidden_states_cache[0], rows(4, start=200))


def test_a_full_queue_waits_and_counts_it(copies: list[Copy]) -> None:
    cache = make_cache(max_pending_writes=1)
    cache.update_omni_tensor_prefix_cache(rows(4), None, 4, torch.arange(4))
    threading.Timer(0.05, copies[0].finish).start()
    cache.update_omni_tensor_prefix_cache(rows(4, start=50), None, 4, torch.arange(4))
    copies[1].finish()
    assert torch.equal(cache.hidden_states_cache[0], rows(4, start=50))
    assert cache.stats()["stalls"] == 1


def test_a_write_that_failed_in_the_background_is_raised_by_the_next_call(copies: list[Copy]) -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(rows(2), None, 2, torch.tensor([0, 99]))
    copies[0].finish()
    with pytest.raises(StateError, match="got 99"):
        cache.stats()


def test_deferred_rows_are_copied_off_the_critical_path_too(copies: list[Copy]) -> None:
    cache, batch = make_cache(), make_batch([4], [[0]])
    stage(cache, batch, rows(4, 2))
    cache.commit_deferred_mm_outputs(["r0"], batch)
    copies[0].finish()
    assert torch.equal(cache.mm_outputs_cache["codes"][0], rows(4, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_step_is_cached_without_synchronising() -> None:
    cache, live = OmniTensorPrefixCache(64, 16, 256, torch.bfloat16), torch.randn(512, 256).bfloat16().cuda()
    expected, slots = live.cpu(), torch.arange(512, device="cuda")
    cache.update_omni_tensor_prefix_cache(live, {"a": live[:, :8]}, 512, slots)  # allocates pinned memory
    cache.stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        cache.update_omni_tensor_prefix_cache(live, {"a": live[:, :8]}, 512, slots)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    live.zero_()
    assert torch.equal(cache.hidden_states_cache.view(-1, 256)[:512], expected)
    assert torch.equal(cache.mm_outputs_cache["a"].view(-1, 8)[:512], expected[:, :8])


def test_hits_last_for_the_step() -> None:
    cache = make_cache()
    assert not cache.has_prefix_cached_new_req_ids()
    cache.add_prefix_cached_new_req_id("r0")
    assert cache.has_prefix_cached_new_req_ids()
    cache.reset_prefix_cached_new_req_ids()
    assert not cache.has_prefix_cached_new_req_ids()


def test_rows_of_a_request_that_left_are_dropped_where_its_slots_are_not_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache, batch = make_cache(), make_batch([4], [[3]])
    del batch.block_table
    stage(cache, batch, rows(4, 2))
    with caplog.at_level(logging.INFO, logger="omnireuse.core.prefix_cache"):
        cache.commit_deferred_mm_outputs(["r0"], make_batch([], []))
    assert "4 deferred rows of request 'r0' dropped: the slots of these rows of 'codes' are not known" in caplog.text
    assert cache.mm_cache_keys == set()
    assert (cache.stats()["deferred_rows_dropped"], cache.stats()["deferred_bytes"]) == (4, 0)
