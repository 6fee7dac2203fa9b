"""Reuse beside ControlNets, adapters, threads and faults: each does its work as it would alone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import omnireuse
from omnireuse import EveryNth, Steps
from omnireuse.arguments.targets import strategy_of
from omnireuse.forecasters import FORECASTERS
from tests.helpers.sweep import crossed
from tests.helpers.tiny import FLUX_CALL, TINY, Tiny, flux_control, stable_diffusion_control

from .test_hooks import FORCED, REGIONS, traces

# -- ControlNet ---------------------------------------------------------------------------------------------------


CONTROLLED = [(flux_control, region) for region in REGIONS]
CONTROLLED += [(stable_diffusion_control, region) for region in ("step", "call")]


@pytest.mark.filterwarnings("ignore:.*FluxPosEmbed")  # deprecated, and used by the ControlNet of diffusers
@pytest.mark.parametrize(("make", "region"), CONTROLLED)
def test_a_controlnet_beside_reuse(make: Callable[[], Tiny], region: str) -> None:
    tiny = make()
    scale = {"controlnet_conditioning_scale": 1.0}
    full, uncontrolled = tiny.run(**scale), tiny.run(controlnet_conditioning_scale=0.0)
    assert not torch.equal(full, uncontrolled)
    with omnireuse.enable(tiny.pipe, policy="never", region=region):
        assert torch.equal(tiny.run(**scale), full)
    with omnireuse.enable(tiny.pipe, **FORCED, region=region) as handle:
        reused = tiny.run(**scale)
        assert torch.isfinite(reused).all()
        # The ControlNet is heard, also where all that is reused was computed with it.
        assert not torch.equal(reused, tiny.run(controlnet_conditioning_scale=0.0))
        # A ControlNet that ends in the middle of the run ends.
        assert not torch.equal(reused, tiny.run(**scale, control_guidance_end=0.4))
    assert handle.summary().reused_calls > 0
    assert torch.equal(tiny.run(**scale), full)


# -- branches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", REGIONS)
def test_two_threads_in_lockstep_on_one_transformer(region: str) -> None:
    pair = [TINY["flux"](), TINY["flux"]()]
    pair[1].pipe.transformer = pair[0].pipe.transformer
    choice = {"policy": EveryNth(every=2), "forecaster": "polynomial", "region": region}
    alone = []
    for seed, tiny in enumerate(pair):
        with omnireuse.enable(tiny.pipe, **choice):
            alone.append(tiny.run(seed=seed))
    handles = [omnireuse.enable(tiny.pipe, **choice) for tiny in pair]
    barrier = threading.Barrier(2, timeout=60)

    def together(*_: Any) -> dict[str, Any]:
        barrier.wait()
        return {}

    # Both wait for each other in the middle of every forward that runs, and at the end of every step.
    def waiting(*_: Any) -> None:
        barrier.wait()

    hook = pair[0].pipe.transformer.x_embedder.register_forward_pre_hook(waiting)
    results: dict[int, torch.Tensor] = {}

    def work(seed: int) -> None:
        results[seed] = pair[seed].run(seed=seed, callback_on_step_end=together)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hook.remove()
    for handle in handles:
        assert handle.summary().reused_calls > 0
        handle.disable()
    assert torch.equal(results[0], alone[0])
    assert torch.equal(results[1], alone[1])


# -- adapters -----------------------------------------------------------------------------------------------------

LORA = LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)


def lora_life(tiny: Tiny) -> list[torch.Tensor]:
    """Results without, with, with a scaled, and again without a LoRA."""
    transformer = tiny.pipe.transformer
    results = [tiny.run()]
    torch.manual_seed(0)
    transformer.add_adapter(LORA, adapter_name="a")
    results.append(tiny.run())
    transformer.set_adapters(["a"], [0.3])
    results.append(tiny.run())
    results.append(tiny.run(joint_attention_kwargs={"scale": 0.5}))
    transformer.delete_adapters("a")
    tiny.pipe.unload_lora_weights()
    results.append(tiny.run())
    return results


@pytest.fixture(scope="module")
def without_reuse() -> tuple[Tiny, list[torch.Tensor]]:
    untouched = TINY["flux"]()
    plain = lora_life(untouched)
    assert torch.equal(plain[0], plain[-1])
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(plain))
    return untouched, plain


@pytest.mark.parametrize("region", REGIONS)
def test_a_lora_comes_and_goes_under_reuse(
    flux: Tiny, without_reuse: tuple[Tiny, list[torch.Tensor]], region: str
) -> None:
    untouched, plain = without_reuse
    with omnireuse.enable(flux.pipe, policy="never", region=region):
        assert all(torch.equal(a, b) for a, b in zip(lora_life(flux), plain, strict=True))
    with omnireuse.enable(flux.pipe, policy="fixed", region=region) as handle:
        reused = lora_life(flux)
    assert handle.summary().reused_calls > 0
    assert torch.equal(reused[0], reused[-1])
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(reused))
    assert [kind for kind, *_ in traces(flux)] == [kind for kind, *_ in traces(untouched)]
    assert [names for _, names, _ in traces(flux)] == [names for _, names, _ in traces(untouched)]


@pytest.mark.parametrize(("region", "wrap"), crossed(REGIONS, [False, True]))
def test_no_forecast_mixes_scales_of_an_adapter(flux: Tiny, region: str, wrap: bool) -> None:
    if wrap:
        flux.pipe.transformer = get_peft_model(flux.pipe.transformer, LORA).eval()
    else:
        flux.pipe.transformer.add_adapter(LORA, "default")

    def weaker(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
        for layer in pipe.transformer.modules():
            if "scaling" in vars(layer):
                layer.set_scale("default", 1.0 if step < 4 else 0.2)
        return {}

    # Steps 5 and 6 would be reused with what step 4 has left, which had another scale.
    policy = Steps(steps=(0, 1, 4, 8, 9))
    with omnireuse.enable(flux.pipe, policy=policy, region=region) as handle:
        flux.run(steps=10, callback_on_step_end=weaker)
    computed = {(event.step, event.reason) for event in handle.events if not event.reused}
    assert computed == {(0, "first"), *((step, "policy") for step in (1, 4, 8)), (5, "layout"), (9, "last")}
    assert "or an adapter changed" in str(handle.summary())


@pytest.mark.parametrize("region", REGIONS)
def test_a_transformer_wrapped_for_data_parallelism_is_served_in_a_loop_of_ones_own(flux: Tiny, region: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    given = FLUX_CALL

    @torch.no_grad()
    def sample() -> torch.Tensor:
        flux.pipe.scheduler.set_timesteps(6)
        latents = torch.ones(1, 16, 16)
        for t in flux.pipe.scheduler.timesteps:
            output = flux.pipe.transformer(hidden_states=latents, timestep=t[None] / 1000, **given)[0]
            latents = flux.pipe.scheduler.step(output, t, latents).prev_sample
        return latents

    try:
        full = sample()
        flux.pipe.transformer = DistributedDataParallel(flux.pipe.transformer)
        with omnireuse.enable(flux.pipe, policy="never", region=region):
            assert torch.equal(sample(), full)
        with omnireuse.enable(flux.pipe, policy="fixed", region=region) as handle:
            assert not torch.equal(sample(), full)
        assert handle.summary().reused_calls > 0
        assert torch.equal(sample(), full)
    finally:
        dist.destroy_process_group()


# -- the host -----------------------------------------------------------------------------------------------------


class NoReading(TorchDispatchMode):
    """Fails where a value is read back to the host, which would wait for an accelerator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in {"_local_scalar_dense", "nonzero", "equal", "is_nonzero"}, func
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def unread_steps(flux: Tiny, monkeypatch: pytest.MonkeyPatch, **choice: Any) -> omnireuse.Handle:
    """A run whose steps read nothing, as if on an accelerator, but for the first, which reads the schedule, the second,
    which finds out which inputs are conditions, and the last, after which the run is checked for NaN."""
    monkeypatch.setattr(
        "omnireuse.loop.branch_state.measures_errors",
        lambda strategy, _value: strategy.measure_errors or strategy.policy.needs_error,
    )
    monkeypatch.setattr("omnireuse.hooks.clock.reads_at_once", lambda _tensor: False)
    transformer, scheduler = flux.pipe.transformer, flux.pipe.scheduler
    given = FLUX_CALL
    with omnireuse.enable(flux.pipe, strategy_of(**choice)) as handle, monkeypatch.context() as patch:
        scheduler.set_timesteps(8)
        scheduler.set_begin_index(0)
        timesteps = list(scheduler.timesteps)
        latents = torch.ones(1, 16, 16)

        def step(index: int, latents: torch.Tensor) -> torch.Tensor:
            output = transformer(hidden_states=latents, timestep=timesteps[index][None] / 1000, **given)[0]
            return scheduler.step(output, timesteps[index], latents).prev_sample

        latents = step(1, step(0, latents))

        def fail(*_: Any) -> None:
            raise AssertionError("read back to the host")

        for name in ("tolist", "item", "numpy", "cpu", "__bool__", "__float__", "__int__"):
            patch.setattr(torch.Tensor, name, fail)
        with NoReading():
            for index in range(2, 7):
                latents = step(index, latents)
        reads: list[torch.Tensor] = []
        patch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tensor) or [1.0] * len(tensor))
        step(7, latents)
        assert len(reads) == 1
    return handle


@pytest.mark.parametrize(("forecaster", "region"), crossed(sorted(FORECASTERS), REGIONS))
def test_a_schedule_reads_nothing_back(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, forecaster: str, region: str
) -> None:
    choice = {"policy": EveryNth(every=2), "forecaster": forecaster, "region": region}
    assert unread_steps(flux, monkeypatch, **choice).summary().reused_calls == 3


def test_what_measures_reads_back(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        unread_steps(flux, monkeypatch, policy=EveryNth(every=2), measure_errors=True)


# -- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("region", "at"), crossed(REGIONS, [0, 1, 2]))
def test_ctrl_c_in_the_middle_leaves_nothing(flux: Tiny, region: str, at: int) -> None:
    # Where nothing is left to interrupt on a reused step, the interrupt comes between steps.
    where = flux.pipe.transformer.single_transformer_blocks[0] if region == "blocks" else flux.pipe.transformer
    choice = {"policy": Steps(steps=(0, 2)), "forecaster": "polynomial", "region": region}
    with omnireuse.enable(flux.pipe, **choice):
        expected = flux.run()
        calls: list[int] = []

        def interrupt(*_: Any) -> None:
            calls.append(1)
            if len(calls) == at + 1:
                raise KeyboardInterrupt

        hook = where.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            flux.run()
        hook.remove()
        assert torch.equal(flux.run(), expected)


@pytest.mark.parametrize("region", REGIONS)
def test_callbacks_may_change_the_latents(flux: Tiny, region: str) -> None:
    def in_place(_pipe: Any, _index: int, _t: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        tensors["latents"].mul_(0.9)
        return {}

    def replaced(_pipe: Any, _index: int, _t: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        return {"latents": tensors["latents"] * 0.9}

    full = flux.run(callback_on_step_end=replaced)
    with omnireuse.enable(flux.pipe, policy="never", region=region):
        assert torch.equal(flux.run(callback_on_step_end=in_place), full)
        assert torch.equal(flux.run(callback_on_step_end=replaced), full)
    with omnireuse.enable(flux.pipe, policy="fixed", forecaster="polynomial", region=region) as handle:
        reused = flux.run(callback_on_step_end=replaced)
        assert torch.equal(flux.run(callback_on_step_end=in_place), reused)
        assert handle.summary().reused_calls > 0
    assert not torch.equal(reused, full)
