"""Reuse on the modular pipelines of diffusers, and on blocks of one's own."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

import omnireuse
from omnireuse import EveryNth, Spread, Steps
from omnireuse.errors import StateError
from omnireuse.hooks.denoisers import denoisers_of, model_name
from omnireuse.models import BLOCK_STACKS
from tests.helpers.sweep import crossed, sweep

if not hasattr(diffusers, "Krea2ModularPipeline"):
    pytest.skip("these pipelines came with diffusers 0.42", allow_module_level=True)

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxTransformer2DModel,
    LayerSkipConfig,
    ModularPipelineBlocks,
    PerturbedAttentionGuidance,
    SkipLayerGuidance,
)
from diffusers.modular_pipelines import ComponentSpec, InputParam, OutputParam

from tests.helpers.tiny import tensor
from tests.models.diffusion.denoisers import denoiser
from tests.models.diffusion.pipelines.modular import PIPELINES, Modular, minimax_h3, qwen_image, sd3, wan

QUICK = {
    "FluxModularPipeline",
    "HeliosPyramidDistilledModularPipeline",
    "StableDiffusion3ModularPipeline",
    "StableDiffusionXLModularPipeline",
    "Wan22ModularPipeline",
}
SOUND = {"EchoModularPipeline", "LTX25ModularPipeline", "LTX2ModularPipeline", "MiniMaxH3ModularPipeline"}
UNGUIDED = {
    "Cosmos3DistilledModularPipeline",
    "EchoModularPipeline",
    "Flux2KleinModularPipeline",
    "Flux2ModularPipeline",
    "Flux3DistilledModularPipeline",
    "FluxKontextModularPipeline",
    "FluxModularPipeline",
    "Ideogram4ModularPipeline",  # guided by a second transformer
    "Krea2TurboModularPipeline",
    "MiniMaxH3ModularPipeline",
    "QwenImage21TurboModularPipeline",
    "WanAnimate2DistilledModularPipeline",
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def check(made: Modular, region: str) -> omnireuse.Summary:
    """Exact when computing; finite, different and repeatable when half is reused; exact again afterwards."""
    full = made.run()
    with omnireuse.enable(made.pipe, policy="never", region=region) as handle:
        assert torch.equal(made.run(), full)
    assert handle.summary().calls_outside == 0
    with omnireuse.enable(made.pipe, policy=Spread(num_computed=3, by_noise=False, power=1.0), region=region) as handle:
        if getattr(made.pipe, "scheduler", None) is None:
            handle.expect(6)
        reusing = made.run()
        assert torch.equal(made.run(), reusing)
    assert torch.isfinite(reusing).all()
    assert not torch.equal(reusing, full)
    assert torch.equal(made.run(), full)
    assert handle.summary().computed_steps <= 4  # with the first two calls of a branch that begins late
    return handle.summary()


def test_every_modular_pipeline_is_built() -> None:
    known = {name for name in dir(diffusers) if name.endswith("ModularPipeline")} - {"ModularPipeline"}
    assert known == {*PIPELINES}


@pytest.mark.parametrize("name", sweep(sorted(set(PIPELINES) - SOUND), quick=QUICK))
def test_steps(name: str) -> None:
    summary = check(PIPELINES[name](name), "step")
    assert summary.computed_steps == 3
    assert summary.reused_calls > 0


@pytest.mark.parametrize("name", sweep(sorted(PIPELINES), quick=QUICK))
def test_calls_have_the_names_that_the_guider_gives(name: str) -> None:
    made = PIPELINES[name](name)
    check(made, "call")
    with omnireuse.enable(made.pipe, policy="never", region="call") as handle:
        made.run()
    branches = {event.branch for event in handle.events}
    if name in UNGUIDED:
        assert branches <= {"0", "cond", "pred_cond"}
    elif name == "Cosmos3OmniModularPipeline":  # without a guider; its denoiser's cache contexts name them
        assert branches == {"cond", "uncond"}
    else:
        assert {"pred_cond", "pred_uncond"} <= branches


@pytest.mark.parametrize("name", sweep(sorted(PIPELINES), quick=QUICK - {"StableDiffusionXLModularPipeline"}))
def test_blocks(name: str) -> None:
    made = PIPELINES[name](name)
    if any(model_name(denoiser) not in BLOCK_STACKS for denoiser in denoisers_of(made.pipe)):
        pytest.skip("its blocks are not declared")
    assert check(made, "blocks").reused_calls > 0


@pytest.mark.parametrize("name", sorted(SOUND - {"EchoModularPipeline"}))
def test_sound_beside_frames_is_forecast_call_by_call(name: str) -> None:
    made = PIPELINES[name](name)
    full = made.run()
    with omnireuse.enable(made.pipe, computed_steps=3) as handle:
        assert not torch.equal(made.run(), full)
    assert handle.strategy.region == "call"
    assert handle.summary().computed_steps == 3


def test_without_a_scheduler_the_number_of_steps_must_be_told() -> None:
    made = PIPELINES["EchoModularPipeline"]("EchoModularPipeline")
    with omnireuse.enable(made.pipe, computed_steps=3) as handle:
        assert handle.strategy.region == "call"
        with pytest.raises(StateError, match=r"number of steps, which is not known; call handle.expect"):
            made.run()


def test_another_transformer_for_references() -> None:
    summary = check(minimax_h3(workflow="ref2va"), "call")
    assert (summary.steps, summary.computed_steps, summary.reused_calls) == (10, 3, 4)


@pytest.mark.parametrize("cache", ["db_cache", "first_block_cache"])
def test_named_caches_skip_blocks_of_one_sequence_with_sound(cache: str) -> None:
    made = minimax_h3()
    full = made.run(steps=12)
    with omnireuse.enable(made.pipe, cache) as handle:
        reusing = made.run(steps=12)
    assert torch.isfinite(reusing).all()
    assert not torch.equal(reusing, full)
    assert handle.strategy.region in ("blocks", "tail")
    assert handle.summary().reused_calls > 0
    assert handle.summary().computed_calls > 0
    assert torch.equal(made.run(steps=12), full)


@pytest.mark.parametrize("name", ["Cosmos3DistilledModularPipeline", "Cosmos3OmniModularPipeline"])
def test_latents_are_found_among_other_tensors(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """x0 needs them, and so does a signal: positions come before them, and never change."""
    made = PIPELINES[name](name)
    with omnireuse.enable(made.pipe, policy=Spread(num_computed=3, by_noise=False, power=1.0), region="call"):
        made.run()
    assert "raw output" not in caplog.text
    with omnireuse.enable(made.pipe, policy="tea_cache", region="step") as handle:
        made.run()
    assert all(event.drift for event in handle.events if event.drift is not None)
    assert any(event.drift is not None for event in handle.events)


# -- guidance by a branch with layers left out ------------------------------------------------------------------------


class _Named:
    """Notes the name of each batch, as the pipeline goes through them."""

    def prepare_inputs(self, *args: Any) -> Any:
        return self._noted(super().prepare_inputs(*args))  # type: ignore[misc]

    def prepare_inputs_from_block_state(self, *args: Any) -> Any:
        return self._noted(super().prepare_inputs_from_block_state(*args))  # type: ignore[misc]

    def _noted(self, batches: Any) -> Any:
        self.names = [*getattr(self, "names", []), *(getattr(each, self._identifier_key) for each in batches)]
        return batches

    def new(self) -> Any:
        return self

    _identifier_key = "__guidance_identifier__"


class _SkipLayers(_Named, SkipLayerGuidance):
    pass


class _Perturbed(_Named, PerturbedAttentionGuidance):
    pass


def _left_out(kind: Any) -> tuple[Modular, Any]:
    """A pipeline whose guider leaves something of layer 1 out, and the layer that its tokens enter the blocks from.

    The unconditional branch counts in the first half of the run, the branch with a changed layer from its first fifth
    to its last tenth: one, two or three calls a step, and a second call of two kinds. diffusers leaves a whole block
    out on models whose blocks return one stream, and the scores of attention on others.
    """
    if kind is _SkipLayers:
        name, more = "skip_layer", {"skip_layer_config": LayerSkipConfig([1], "blocks")}
    else:
        scores = {"skip_attention": False, "skip_attention_scores": True, "skip_ff": False}
        name, more = "perturbed", {"perturbed_guidance_config": LayerSkipConfig([1], "transformer_blocks", **scores)}
    more |= {f"{name}_guidance_scale": 2.0, f"{name}_guidance_start": 0.2, f"{name}_guidance_stop": 0.9}
    guider = kind(guidance_scale=3.0, stop=0.5, **more)
    made = wan(parts={"guider": guider}) if kind is _SkipLayers else qwen_image(guider=guider)
    model = made.pipe.transformer
    return made, model.patch_embedding if kind is _SkipLayers else model.img_in


@pytest.mark.parametrize(("region", "kind"), crossed(["step", "call", "blocks", "tail"], [_SkipLayers, _Perturbed]))
def test_branches_with_layers_left_out(kind: Any, region: str) -> None:
    made, _ = _left_out(kind)
    full = made.run(steps=10)
    with omnireuse.enable(made.pipe, policy=EveryNth(every=1), region=region) as handle:
        assert torch.equal(made.run(steps=10), full)
    if region != "step":
        assert {event.branch for event in handle.events} == {"pred_cond", "pred_uncond", "pred_cond_skip"}
    with omnireuse.enable(made.pipe, policy=EveryNth(every=2), region=region) as handle:
        reusing = made.run(steps=10)
    assert handle.summary().reused_calls > 0
    assert torch.isfinite(reusing).all()
    assert torch.equal(made.run(steps=10), full)


@pytest.mark.parametrize("kind", [_SkipLayers, _Perturbed])
def test_each_branch_reuses_what_its_own_blocks_have_added(kind: Any) -> None:
    made, enters = _left_out(kind)
    passes: list[tuple[torch.Tensor, torch.Tensor]] = []
    entry: list[torch.Tensor] = []

    def entered(_module: Any, _args: Any, tokens: torch.Tensor) -> None:
        entry.append(tokens.clone() if tokens.ndim == 3 else tokens.flatten(2).transpose(1, 2).clone())

    enters.register_forward_hook(entered)
    made.pipe.transformer.norm_out.register_forward_pre_hook(
        lambda _module, args: passes.append((entry[-1], args[0].clone()))
    )
    schedule = Steps(steps=(0, 2, 3, 5, 6))
    with omnireuse.enable(made.pipe, policy=schedule, forecaster="hold", region="blocks") as handle:
        made.run(steps=10)
    names, added = made.pipe.guider.names, {}
    assert len(names) == len(passes) == len(handle.events)
    reused = {name for name, event in zip(names, handle.events, strict=True) if event.reused}
    assert reused == {"pred_cond", "pred_uncond", "pred_cond_skip"}
    for name, event, (before, after) in zip(names, handle.events, passes, strict=True):
        assert event.branch == name
        if event.reused:
            torch.testing.assert_close(after, before + added[name], rtol=1e-4, atol=1e-4)
        else:
            added[name] = after - before


# -- blocks of one's own ----------------------------------------------------------------------------------------------


class _OwnLoop(ModularPipelineBlocks):
    """Sampling in one block, with the scheduler's step or with a step of its own."""

    steps_itself = False

    @property
    def expected_components(self) -> list[ComponentSpec]:
        return [
            ComponentSpec("transformer", FluxTransformer2DModel),
            ComponentSpec("scheduler", FlowMatchEulerDiscreteScheduler),
        ]

    @property
    def inputs(self) -> list[InputParam]:
        return [InputParam("latents", required=True), InputParam("num_inference_steps", default=6)]

    @property
    def intermediate_outputs(self) -> list[OutputParam]:
        return [OutputParam("latents")]

    @torch.no_grad()
    def __call__(self, components: Any, state: Any) -> Any:
        block = self.get_block_state(state)
        given = denoiser("FluxTransformer2DModel").inputs(0, 6)
        scheduler, model = components.scheduler, components.transformer
        scheduler.set_timesteps(block.num_inference_steps)
        for i, t in enumerate(scheduler.timesteps):
            told = {"step_index": i, "sigma": float(scheduler.sigmas[i])} if self.steps_itself else {}
            with model.cache_context("cond", **told):
                output = model(**given | {"hidden_states": block.latents, "timestep": t[None] / 1000})[0]
            if self.steps_itself:
                block.latents = block.latents + (scheduler.sigmas[i + 1] - scheduler.sigmas[i]) * output
            else:
                block.latents = scheduler.step(output, t, block.latents, return_dict=False)[0]
        self.set_block_state(state, block)
        return components, state


class _OwnStep(_OwnLoop):
    steps_itself = True


def _own(kind: Any) -> Any:
    pipe = kind().init_pipeline()
    pipe.update_components(
        transformer=denoiser("FluxTransformer2DModel").model, scheduler=FlowMatchEulerDiscreteScheduler()
    )
    return pipe


@pytest.mark.parametrize(
    ("kind", "region"), [(_OwnLoop, "step"), (_OwnLoop, "call"), (_OwnStep, "call"), (_OwnStep, "blocks")]
)
def test_a_block_with_a_loop_of_its_own(kind: Any, region: str) -> None:
    pipe, latents = _own(kind), tensor(1, 9, 8, seed=3)
    full = pipe(latents=latents, output="latents")
    with omnireuse.enable(pipe, policy="never", region=region) as handle:
        assert torch.equal(pipe(latents=latents, output="latents"), full)
    assert handle.summary().steps == 6
    with omnireuse.enable(pipe, policy=Spread(num_computed=3, by_noise=False, power=1.0), region=region) as handle:
        reusing = pipe(latents=latents, output="latents")
        assert torch.equal(pipe(latents=latents, output="latents"), reusing)
    assert not torch.equal(reusing, full)
    summary = handle.summary()
    assert (summary.runs, summary.steps, summary.computed_steps) == (2, 12, 3)


def test_a_guider_is_left_as_it_was() -> None:
    made = sd3()
    guider, before = made.pipe.guider, dict(vars(type(made.pipe.guider)))
    with omnireuse.enable(made.pipe):
        made.run()
    assert dict(vars(type(guider))) == before


def test_a_guider_may_be_exchanged_while_reuse_is_enabled() -> None:
    made = wan()
    with omnireuse.enable(made.pipe, policy="never", region="call") as handle:
        made.pipe.update_components(guider=SkipLayerGuidance(skip_layer_config=LayerSkipConfig([1], "blocks")))
        made.run(steps=10)
    assert "pred_cond_skip" in {event.branch for event in handle.events}
