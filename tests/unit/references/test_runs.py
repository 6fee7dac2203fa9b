"""Whole runs with full and lean calls: branches, batches, threads, step reuse, memory and the summary."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch
from accelerate import cpu_offload_with_hook
from diffusers.models.attention_dispatch import attention_backend

import omnireuse
from omnireuse import EveryNth, Policy, Steps
from omnireuse.policies.base import StepView
from omnireuse.references import DECLARED, References
from omnireuse.references.attention import FullPass
from omnireuse.summary.summary import ReferenceCalls
from tests.helpers.editing import EDITING
from tests.helpers.tiny import TINY, Tiny

ALWAYS = EveryNth(every=1)


def run(tiny: Tiny, plan: Any, **call: Any) -> tuple[torch.Tensor, ReferenceCalls]:
    with omnireuse.enable(tiny.pipe, policy=ALWAYS, references=plan) as handle:
        latents = tiny.run(steps=5, **call)
        calls = handle.summary().references
    assert calls is not None
    return latents, calls


def test_each_branch_has_keys_of_its_own() -> None:
    tiny = EDITING["kontext"]()
    _, calls = run(tiny, References(full_every=None, full_last=False))
    assert (calls.full, calls.lean) == (2, 8)
    model = tiny.pipe.transformer
    attentions = DECLARED["FluxTransformer2DModel"].attentions(model)
    assert attentions == 4
    # 64 tokens of a picture of 16 by 16 pixels, in two branches.
    branches, width, tokens = 2, 2 * 16, 64
    assert calls.kept_bytes == branches * attentions * 2 * width * tokens * 4, (
        "a key and a value of each token, float32"
    )


@pytest.mark.parametrize("name", ["kontext", "qwen_edit", "flux_2"])
def test_a_batch_has_lean_calls(name: str) -> None:
    tiny = EDITING[name]()
    expected = tiny.run(steps=5, batch=2)
    latents, calls = run(tiny, References(full_every=1), batch=2)
    assert torch.equal(latents, expected)
    latents, calls = run(tiny, True, batch=2)
    assert calls.lean > 0
    assert latents.shape == expected.shape


@dataclass(frozen=True, kw_only=True)
class Apart(Policy):
    """Decides on the samples of a batch by digits that differ between them."""

    needs_drift: ClassVar[bool] = True

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return view.drift is not None and int(view.drift * 1e6) % 2 == 0


def test_samples_that_are_computed_apart_use_no_keys_of_each_other(caplog: pytest.LogCaptureFixture) -> None:
    tiny = EDITING["kontext"]()
    seen: list[tuple[int, ...]] = []
    tiny.pipe.transformer.x_embedder.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape[:2])))
    with omnireuse.enable(tiny.pipe, policy=Apart(), region="call", references=True) as handle:
        # They have the text and the reference in common.
        tiny.run(steps=14, num_images_per_prompt=2, true_cfg_scale=1.0)
        assert handle.summary().fallbacks == {"full calls": 1}
    target, whole = 16, 16 + 64
    assert {(2, target), (2, whole), (1, whole)} == set(seen), "calls of one sample are full"
    assert caplog.text.count("some samples of a batch are computed apart; such calls are full") == 1


@pytest.mark.parametrize("name", ["kontext", "qwen_edit", "flux_2", "longcat"])
def test_keys_on_the_host_give_the_same_latents(name: str) -> None:
    tiny = EDITING[name]()
    expected, calls = run(tiny, True)
    latents, on_host = run(tiny, "host")
    assert torch.equal(latents, expected)
    assert calls == on_host


def test_another_attention_backend_serves_both_kinds_of_calls() -> None:
    tiny = EDITING["qwen_edit"]()
    expected, _ = run(tiny, True)
    with attention_backend("_native_math"):
        latents, calls = run(tiny, True)
    assert calls.lean == 6
    torch.testing.assert_close(latents, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("region", ["step", "call"])
def test_reused_steps_are_forecast_and_computed_ones_are_full_or_lean(region: Any) -> None:
    tiny = EDITING["kontext"]()
    policy = Steps(steps=(0, 2, 4, 6))
    with omnireuse.enable(tiny.pipe, policy=policy, region=region, references=References(full_every=2)) as handle:
        tiny.run(steps=8)
        summary = handle.summary()
    assert summary.references is not None
    assert (summary.references.full, summary.references.lean) == (6, 4), "steps 0, 4 and 7; steps 2 and 6"
    assert summary.reused_calls == (3 if region == "step" else 6)
    assert not summary.fallbacks


def test_what_forecasts_keep_is_counted_beside_the_keys() -> None:
    tiny = EDITING["kontext"]()
    policy = EveryNth(every=2)
    with omnireuse.enable(tiny.pipe, policy=policy, forecaster="hold", references=True) as handle:
        latents = tiny.run(steps=6)
        # The value that is held, and the last output of each branch.
        assert handle.summary().kept_bytes == 3 * latents.nbytes


def test_region_call_forecasts_the_targets_latents_alone() -> None:
    tiny = EDITING["kontext"]()
    policy = Steps(steps=(0, 1, 2, 3, 5, 7))
    with omnireuse.enable(tiny.pipe, policy=policy, forecaster="polynomial", region="call", references=True) as handle:
        tiny.run(steps=8)
        assert handle.summary().mean_error is not None
        assert not handle.summary().fallbacks


def test_pictures_that_are_measured_are_equal_and_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    tiny = EDITING["kontext"]()
    expected = tiny.run(steps=20)
    with omnireuse.enable(tiny.pipe, references=True) as handle:
        assert torch.equal(tiny.run(steps=20), expected)
        assert handle.tuning.state == "measuring"
        assert handle.summary().references == ReferenceCalls()


def test_two_pipelines_of_one_class_do_not_meet() -> None:
    first, second, other = EDITING["kontext"](), EDITING["kontext"](), TINY["flux"]()
    plain, of_other, of_first = second.run(steps=5), other.run(steps=5), first.run(steps=5)
    expected, _ = run(first, True)
    handle = omnireuse.enable(first.pipe, policy=ALWAYS, references=True)
    assert torch.equal(second.run(steps=5), plain)
    assert torch.equal(other.run(steps=5), of_other)
    lean, _ = run(second, References(full_every=None))
    assert not torch.equal(lean, plain)
    assert torch.equal(first.run(steps=5), expected), "the second has ended, the first goes on"
    handle.disable()
    assert torch.equal(first.run(steps=5), of_first)


def test_threads_have_calls_of_their_own() -> None:
    tinies = [EDITING["kontext"](), EDITING["kontext"](), EDITING["qwen_edit_plus"]()]

    def started(number: int, results: dict[int, torch.Tensor]) -> threading.Thread:
        def work() -> None:
            results[number] = run(tinies[number], True, seed=number)[0]

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    # One after the other, in threads, too: a new thread may begin with another number of threads for its first
    # products of matrices, and that moves their last digits.
    expected, results = dict[int, torch.Tensor](), dict[int, torch.Tensor]()
    for number in range(3):
        started(number, expected).join()
    for thread in [started(number, results) for number in range(3)]:
        thread.join()
    for number in range(3):
        difference = (results[number] - expected[number]).abs().max()
        assert torch.equal(results[number], expected[number]), f"{number} differs by {difference}"


def test_another_thread_may_call_the_same_denoiser_within_a_lean_call() -> None:
    tiny = EDITING["qwen_edit_plus"]()
    model, calls, results = tiny.pipe.transformer, list[dict[str, Any]](), list[torch.Tensor]()
    hook = model.register_forward_pre_hook(lambda _module, _args, given: calls.append(given), with_kwargs=True)
    tiny.run(steps=2)
    hook.remove()
    tokens = calls[0]["hidden_states"].shape[1]

    @torch.no_grad()
    def compute() -> None:
        results.append(model.forward(**calls[0])[0])

    def meanwhile(_module: Any, given: Any) -> None:
        if given[0].shape[1] < tokens:
            thread = threading.Thread(target=compute)
            thread.start()
            thread.join()

    compute()
    model.img_in.register_forward_pre_hook(meanwhile)
    _, summary = run(tiny, True)
    assert len(results) == 1 + summary.lean > 1
    assert all(torch.equal(each, results[0]) for each in results)


def test_an_interrupted_run_leaves_nothing_behind() -> None:
    tiny = EDITING["kontext"]()
    expected = tiny.run(steps=5)

    def stop(pipe: Any, step: int, _timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            raise KeyboardInterrupt
        return values

    with omnireuse.enable(tiny.pipe, policy=ALWAYS, references=True) as handle:
        first = tiny.run(steps=5)
        with pytest.raises(KeyboardInterrupt):
            tiny.run(steps=5, callback_on_step_end=stop)
        assert torch.equal(tiny.run(steps=5), first)
        assert handle.summary().aborted == 1
    assert torch.equal(tiny.run(steps=5), expected)


def _whole(model: torch.nn.Module) -> None:
    cpu_offload_with_hook(model, torch.device("cpu"))


def _by_groups(model: Any) -> None:
    model.enable_group_offload(torch.device("cpu"), torch.device("cpu"), offload_type="leaf_level")


@pytest.mark.parametrize("offload", [_whole, _by_groups])
@pytest.mark.parametrize("name", ["kontext", "qwen_edit_plus"])
def test_weights_may_be_elsewhere_between_calls(name: str, offload: Callable[[Any], None]) -> None:
    tiny = EDITING[name]()
    expected, calls = run(tiny, True)
    offload(tiny.pipe.transformer)
    latents, offloaded = run(tiny, True)
    assert torch.equal(latents, expected)
    assert offloaded == calls
    assert calls.lean == 6


def test_the_summary_tells_calls_and_bytes() -> None:
    tiny = EDITING["kontext"]()
    with omnireuse.enable(tiny.pipe, policy=ALWAYS, references=True) as handle:
        tiny.run(steps=5)
        text = str(handle.summary())
    assert "references: 4 full calls and 6 lean; kept keys and values took 0.12 MiB at most" in text


def test_another_denoiser_is_watched_in_its_place() -> None:
    tiny, other = EDITING["kontext"](), EDITING["kontext"]()
    with omnireuse.enable(tiny.pipe, policy=ALWAYS, references=True) as handle:
        expected = tiny.run(steps=5)
        tiny.pipe.transformer = other.pipe.transformer
        assert torch.equal(tiny.run(steps=5), expected)
        calls = handle.summary().references
    assert calls is not None
    assert (calls.full, calls.lean) == (8, 12)


def test_a_callback_may_change_the_text() -> None:
    tiny = EDITING["kontext"]()

    def change(pipe: Any, step: int, _timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        return {"prompt_embeds": values["prompt_embeds"] + 1} if step == 1 else {}

    given = {"callback_on_step_end": change, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}
    _, calls = run(tiny, References(full_every=None, full_last=False), **given)
    assert (calls.full, calls.lean) == (4, 6)  # what both branches have kept is forgotten


def test_what_was_kept_is_freed_before_the_next_full_call() -> None:
    tiny = EDITING["kontext"]()
    kept: list[weakref.ref[torch.Tensor]] = []
    held: list[int] = []
    original = FullPass.take

    def take(self: FullPass, *given: Any) -> Any:
        if not self.keys:
            held.append(sum(each() is not None for each in kept))
        result = original(self, *given)
        kept.append(weakref.ref(self.keys[-1]))
        return result

    with patch.object(FullPass, "take", take):
        run(tiny, References(full_every=2), true_cfg_scale=1.0)
    assert held == [0, 0, 0]
