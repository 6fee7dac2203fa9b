"""The prefix cache behind vllm-omni's interface: what its manager promises, on an engine's batch that is played."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omnireuse.core.prefix_cache import OmniPrefixCacheManager
from omnireuse.errors import StateError

from .conftest import Copy
from .prefix_batch import slots_of

SIZE, WIDTH = 4, 3


class View:
    """The batch of one step."""

    def __init__(self) -> None:
        self.plan: dict[str, tuple[list[int], int, int]] = {}

    def batch_req_ids(self) -> list[str]:
        return list(self.plan)

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: dict[str, int]) -> torch.Tensor:
        parts = [slots_of(self.plan[n][0], self.plan[n][1], num_scheduled.get(n, 0), SIZE) for n in req_ids]
        return torch.cat(parts).long()


class Engine:
    """A manager, and steps that are told by request: its blocks, its first token, and how many tokens."""

    def __init__(self, num_blocks: int = 16, **options: Any) -> None:
        defaults = {"staging_depth": 4, "staging_claim_timeout_s": 5.0}
        config = SimpleNamespace(num_blocks=num_blocks, block_size=SIZE, **{**defaults, **options})
        self.view = View()
        self.manager = OmniPrefixCacheManager(config, self.view)

    def step(
        self,
        plan: dict[str, tuple[list[int], int, int]],
        value: float = 0.0,
        *,
        hits: Sequence[str] = (),
        new: Sequence[str] | None = None,
        finished: Sequence[str] = (),
        mm: dict[str, Any] | None = None,
        hidden: torch.Tensor | None = None,
        padding: int = 0,
    ) -> int:
        """Run a step; the hidden state of a token is its position plus `value`, in each feature."""
        total = self.begin(plan, hits, list(plan) if new is None else new, finished)
        if hidden is None:
            hidden = torch.cat([states(start, start + count, value) for _, start, count in plan.values()])
            hidden = torch.cat([hidden, torch.full((padding, WIDTH), 7e7)])
        number = self.manager.save_outputs(hidden, mm, num_tokens_unpadded=total, num_tokens_padded=total + padding)
        hidden.fill_(99)  # the engine reuses its buffers
        for each in (mm or {}).values():
            if isinstance(each, torch.Tensor):
                each.fill_(7)
        return number

    def begin(
        self,
        plan: dict[str, tuple[list[int], int, int]],
        hits: Sequence[str] = (),
        new: Sequence[str] = (),
        finished: Sequence[str] = (),
    ) -> int:
        """Tell the manager of a step; returns its number of tokens."""
        self.view.plan = plan
        arrivals = [
            SimpleNamespace(req_id=n, num_computed_tokens=plan[n][1] if n in hits else 0, block_ids=(plan[n][0],))
            for n in new
        ]
        scheduled = {name: count for name, (_, _, count) in plan.items()}
        self.manager.new_step_starts(
            SimpleNamespace(scheduled_new_reqs=arrivals, finished_req_ids=set(finished), num_scheduled_tokens=scheduled)
        )
        return sum(scheduled.values())

    def hidden(self, number: int, name: str) -> torch.Tensor:
        found = self.manager.materialize(number, [name]).hidden_states
        assert found is not None
        return found[name]


def states(start: int, stop: int, value: float = 0.0) -> torch.Tensor:
    """Hidden states of these positions."""
    return (torch.arange(start, stop) + value).reshape(-1, 1).expand(-1, WIDTH).clone()


def test_a_hit_has_its_prefix_before_this_steps_rows() -> None:
    engine = Engine()
    assert torch.equal(engine.hidden(engine.step({"a": ([5, 2], 0, 8)}, padding=3), "a"), states(0, 8))
    both = engine.step({"c": ([9], 0, 2), "b": ([5, 2, 7], 8, 3)}, hits=["b"], finished=["a"])
    out = engine.manager.materialize(both, ["b", "c"])  # in any order
    assert torch.equal(out.hidden_states["b"], states(0, 11))
    assert torch.equal(out.hidden_states["c"], states(0, 2))


@pytest.mark.parametrize("how", ["finished", "aborted", "alive"])
def test_deferred_rows_are_there_however_the_request_ended(how: str) -> None:
    engine = Engine()
    engine.manager.register_policy(SimpleNamespace(needs_full_hidden_states=False, deferred_keys=frozenset({"codes"})))
    for start in (0, 4):  # two steps
        number = engine.step({"a": ([5, 2], start, 4)}, mm={"codes": states(start, start + 4)}, new=["a"][: 4 - start])
        assert engine.manager.materialize(number, ["a"]).hidden_states is None
    gone = [] if how == "alive" else ["a"]  # vLLM names aborted requests among the finished
    number = engine.step({"b": ([5, 2, 7], 8, 1)}, hits=["b"], finished=gone, mm={"codes": states(8, 9)})
    assert torch.equal(engine.manager.materialize(number, ["b"]).mm_outputs["codes"]["b"], states(0, 9))


def test_a_live_request_that_arrives_again_has_no_hit() -> None:
    engine = Engine()
    engine.manager.discard_step(engine.step({"a": ([5], 0, 4)}))
    assert torch.equal(engine.hidden(engine.step({"a": ([5, 2], 4, 2)}, hits=["a"]), "a"), states(4, 6))
    number = engine.step({"a": ([5, 6], 4, 1)}, hits=["a"], finished=["a"])  # another request of its name
    assert torch.equal(engine.hidden(number, "a"), states(0, 5))


def test_an_absent_hidden_row_is_an_error_for_its_request_alone_and_an_absent_output_is_zero() -> None:
    engine = Engine()
    engine.manager.discard_step(engine.step({"a": ([5], 0, 4)}, mm={"k": states(0, 4)}))
    engine.manager.discard_step(engine.step({"a": ([5, 2], 4, 4)}, new=[]))  # without "k"
    plan = {"b": ([5, 9, 7], 8, 1), "c": ([5, 2, 8], 8, 1)}
    number = engine.step(plan, hits=["b", "c"], new=["b", "c"], mm={"k": states(8, 10)})
    with pytest.raises(StateError, match=r"request='b'.*4 were never written"):
        engine.manager.materialize(number, ["b", "c"])
    number = engine.step({"d": ([5, 2, 8], 8, 1)}, hits=["d"], mm={"k": states(8, 9)})
    out = engine.manager.materialize(number, ["d"])
    assert torch.equal(out.mm_outputs["k"]["d"], torch.cat([states(0, 4), torch.zeros(4, WIDTH), states(8, 9)]))
    assert torch.equal(out.hidden_states["d"], states(0, 9))
    assert engine.manager.stats()["absent_rows"] == 16  # of b hidden states and "k", of c and d "k"


def test_other_outputs_are_this_steps_and_copied_when_the_step_is_saved() -> None:
    engine, listed = Engine(), [torch.ones(2), torch.zeros(5)]
    mm = {"list": listed, "whole": torch.arange(15.0).reshape(5, 3), "flat": torch.arange(3.0), "none": None, "n": 4}
    number = engine.step({"a": ([1], 0, 2), "b": ([2], 0, 1)}, mm=mm)
    listed[0].fill_(7)
    out = engine.manager.materialize(number, ["b"]).mm_outputs
    assert torch.equal(out["list"]["b"][0], torch.ones(2))
    assert torch.equal(out["whole"]["b"], torch.arange(15.0).reshape(5, 3))
    assert torch.equal(out["flat"]["b"], torch.tensor([2.0]))  # a row for each token
    assert out["none"]["b"] is None
    assert out["n"]["b"] == 4


def test_an_output_that_does_not_fit_in_a_step_is_passed_on_and_stops_nothing() -> None:
    engine = Engine()
    for start, count in ((0, 2), (2, 3), (5, 1)):  # a row for each token in the first two
        value = states(0, count) if count > 1 else torch.arange(8.0).reshape(4, 2)
        number = engine.step({"a": ([1, 2], start, count)}, mm={"k": value.clone()}, new=["a"][: 1 - start])
        assert torch.equal(engine.manager.materialize(number, ["a"]).mm_outputs["k"]["a"], value)


def test_a_constant_is_not_cached_even_if_it_has_as_many_rows_as_the_step_has_tokens() -> None:
    engine, table = Engine(), states(5, 7)
    engine.manager.discard_step(engine.step({"a": ([1], 0, 4)}, mm={"k": table.clone()}))
    number = engine.step({"b": ([1, 2], 4, 2)}, hits=["b"], mm={"k": table.clone()})
    assert torch.equal(engine.manager.materialize(number, ["b"]).mm_outputs["k"]["b"], table)
    assert engine.manager.stats()["uncached_on_hits"] == 0  # a hit lacks nothing of a constant


def test_rows_of_another_width_or_dtype_are_kept_beside_those_before_and_the_least_recent_form_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    forms = [states(0, 4), states(0, 4).double(), states(0, 4)[:, :1], states(0, 4)[:, :0], states(0, 4).long()]
    waiting = engine.step({"a0": ([0], 0, 4)}, mm={"k": forms[0].clone()})
    for block, value in [*enumerate(forms)][1:]:
        engine.manager.discard_step(engine.step({f"a{block}": ([block], 0, 4)}, mm={"k": value.clone()}))
    assert torch.equal(engine.manager.materialize(waiting, ["a0"]).mm_outputs["k"]["a0"], forms[0])
    for block, value in [*enumerate(forms)][1:]:
        name = f"b{block}"
        number = engine.step({name: ([block, 9], 4, 1)}, hits=[name], mm={"k": value[:1].clone()})
        assert torch.equal(engine.manager.materialize(number, [name]).mm_outputs["k"][name], value[[0, 1, 2, 3, 0]])
    number = engine.step({"c": ([0, 9], 4, 1)}, hits=["c"], mm={"k": forms[0][:1].clone()})  # the form that went
    assert not engine.manager.materialize(number, ["c"]).mm_outputs["k"]["c"].any()
    assert engine.manager.stats()["lacking multimodal_outputs['k']"] == 4
    assert [record.message for record in caplog.records] == [
        "prefix cache: a hit lacks rows of multimodal_outputs['k']: 4 were not computed as those of this step, and are "
        "zero; from now on only counted"
    ]


def test_an_uncached_output_with_a_row_for_each_token_is_counted_for_hits() -> None:
    engine = Engine()
    engine.manager.discard_step(engine.step({"a": ([1], 0, 4)}))
    engine.manager.discard_step(engine.step({"b": ([1, 2], 4, 2)}, hits=["b"], mm={"flat": torch.arange(2.0)}))
    assert engine.manager.stats()["uncached_on_hits"] == 1
    assert engine.manager.stats()["lacking multimodal_outputs['flat']"] == 4


@pytest.mark.parametrize("mm", [{}, {"k": None}, {"k": [states(0, 1)]}, {"k": states(0, 2)}], ids=str)
def test_an_output_that_was_cached_and_is_not_in_the_step_of_a_hit_is_counted(
    mm: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    for start, count in (0, 1), (1, 3):
        number = engine.step({"a": ([1], start, count)}, mm={"k": states(start, start + count)}, new=["a"][start:])
        engine.manager.discard_step(number)
    engine.manager.discard_step(engine.step({"b": ([1, 2], 4, 1)}, hits=["b"], mm=mm))
    assert engine.manager.stats()["lacking multimodal_outputs['k']"] == 4
    assert "let the model return it in each step as a tensor" in caplog.text


def test_a_step_is_asked_for_once_and_for_its_own_requests() -> None:
    engine = Engine()
    first, second = engine.step({"a": ([1], 0, 2)}), engine.step({"b": ([2], 0, 2)})
    engine.manager.discard_step(second)
    engine.hidden(first, "a")
    for again in (engine.manager.discard_step, lambda n: engine.manager.materialize(n, ["a"])):
        for number in (first, second, 99):
            with pytest.raises(StateError, match=f"step={number}"):
                again(number)
    third = engine.step({"b": ([2], 2, 1)}, new=[])
    with pytest.raises(StateError, match=r"outside the save snapshot.*late"):
        engine.manager.materialize(third, ["b", "late"])
    assert engine.manager.stats()["steps_waiting"] == 0


def test_a_save_waits_while_too_many_steps_were_not_asked_for() -> None:
    engine = Engine(staging_depth=2, staging_claim_timeout_s=20.0)
    first = engine.step({"a": ([1], 0, 1)})
    engine.step({"a": ([1], 1, 1)}, new=[])
    threading.Timer(0.05, engine.manager.discard_step, [first]).start()
    engine.step({"a": ([1], 2, 1)}, new=[])
    engine = Engine(staging_depth=1, staging_claim_timeout_s=0.0)
    engine.step({"a": ([1], 0, 1)})
    with pytest.raises(StateError, match=r"at most 1 steps.*ids=\[1\]"):
        engine.step({"a": ([1], 1, 1)}, new=[])


@pytest.mark.parametrize(
    ("hit", "message"),
    [
        (([5, 2], 6, 1), "not block aligned: it must be a multiple of 4 tokens, got 6"),
        (([5], 8, 1), "8 tokens must name 2 blocks, got 1"),
        (([], 4, 1), "must name 1 blocks, got 0"),
        (([99, 2], 4, 1), r"block id must lie in \[0, 16\), got 99"),
    ],
)
def test_a_hit_that_cannot_be_read_is_refused_when_it_arrives(hit: tuple[list[int], int, int], message: str) -> None:
    with pytest.raises(StateError, match=message):
        Engine().step({"a": hit}, hits=["a"])


def test_a_step_that_does_not_fit_the_batch_is_refused_and_leaves_the_rest() -> None:
    engine = Engine()
    engine.begin({"a": ([1], 0, 2)})
    with pytest.raises(StateError, match="must cover the step's 3 tokens, got 2"):
        engine.manager.save_outputs(states(0, 3), {}, num_tokens_unpadded=3, num_tokens_padded=3)
    with pytest.raises(StateError, match="slot must lie in"):
        engine.step({"a": ([16], 0, 2)})
    with pytest.raises(StateError, match="rows for 2 tokens"):
        engine.step({"a": ([1], 0, 2)}, hidden=torch.zeros(2))
    engine.manager.discard_step(engine.step({"a": ([1], 0, 2)}))
    with pytest.raises(StateError, match="as cached"):
        engine.step({"a": ([1], 2, 1)}, hidden=torch.zeros(1, WIDTH + 1), new=[])
    assert torch.equal(engine.hidden(engine.step({"a": ([1], 2, 1)}, new=[]), "a"), states(2, 3))


def test_steps_without_tokens_or_hidden_states_have_an_id_too() -> None:
    engine = Engine()
    assert engine.manager.materialize(engine.step({"a": ([1], 0, 0)}, mm={"n": 1}), ["a"]).mm_outputs["n"]["a"] == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_inference_tensors_of_any_dtype_come_back_as_they_were(dtype: torch.dtype) -> None:
    engine = Engine()
    with torch.inference_mode():
        first = torch.arange(4 * WIDTH).reshape(4, WIDTH).to(dtype)
        engine.manager.discard_step(engine.step({"a": ([1], 0, 4)}, hidden=first.clone()))
        number = engine.step({"b": ([1, 2], 4, 1)}, hits=["b"], hidden=first[:1].clone())
    assert torch.equal(engine.hidden(number, "b"), torch.cat([first, first[:1]]))


# --- writes off the critical path, on a played device (conftest)


def test_a_step_is_read_once_its_copy_is_there_and_without_waiting_for_the_next(copies: list[Copy]) -> None:
    engine = Engine()
    first = engine.step({"a": ([5, 2], 0, 8)})
    second = engine.step({"b": ([5, 2, 7], 8, 1)}, hits=["b"])
    third = engine.step({"c": ([7, 2, 5], 0, 12)}, 100.0, finished=["a", "b"])
    for copy in copies[:2]:
        copy.finish()
    assert torch.equal(engine.hidden(second, "b"), states(0, 9))  # the third step still computes
    copies[2].finish()
    assert torch.equal(engine.hidden(third, "c"), states(0, 12, 100.0))
    assert torch.equal(engine.hidden(first, "a"), states(0, 8))  # read before the third step was written
    engine.manager.shutdown()


def test_a_write_that_failed_is_an_error_for_ever(copies: list[Copy]) -> None:
    engine = Engine()
    number = engine.step({"a": ([5, 2], 0, 8)})
    copies[0].is_broken = True
    copies[0].finish()
    with pytest.raises(StateError, match=r"a write failed \(gone\)"):
        engine.manager.materialize(number, ["a"])
    for _ in range(2):
        with pytest.raises(StateError, match="a write failed"):
            engine.step({"b": ([1], 0, 1)})
    engine.manager.shutdown()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_step_is_saved_without_synchronising() -> None:
    engine, listed = Engine(), [torch.ones(3).cuda()]
    for width in (8, 1):  # the first allocates pinned memory
        hidden, k = states(0, 8)[:width].cuda(), states(0, 8)[:width].cuda()
        plan = {f"r{width}": ([5, 2, 7], 8 - 8 * (width == 8), width)}
        total = engine.begin(plan, [] if width == 8 else list(plan), list(plan))
        torch.cuda.set_sync_debug_mode("default" if width == 8 else "error")
        try:
            number = engine.manager.save_outputs(
                hidden, {"k": k, "list": listed}, num_tokens_unpadded=total, num_tokens_padded=total
            )
        finally:
            torch.cuda.set_sync_debug_mode("default")
        hidden.zero_(), k.zero_(), listed[0].zero_()
        out = engine.manager.materialize(number, list(plan))
        listed[0].fill_(1)
        assert torch.equal(out.mm_outputs["list"][f"r{width}"][0], torch.ones(3))
    expected = torch.cat([states(0, 8), states(0, 1)])
    assert torch.equal(out.hidden_states["r1"], expected)
    assert torch.equal(out.mm_outputs["k"]["r1"], expected)
    engine.manager.shutdown()
