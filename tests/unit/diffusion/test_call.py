"""Which arguments of a pipeline's call count for a profile."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from omnireuse.pipelines.call_arguments import arguments_of, differences, read_argument, scales_of
from tests.helpers.tiny import TINY


def flux(*, guidance_embeds: bool = False) -> Any:
    pipe = TINY["flux"]().pipe
    pipe.transformer.register_to_config(guidance_embeds=guidance_embeds)
    return pipe


GUIDED = {"negative_prompt": "", "true_cfg_scale": 6.0}


@pytest.mark.parametrize(
    ("own", "here"),
    [
        ({}, {}),
        ({}, {"prompt": "another", "prompt_2": "too", "negative_prompt": None, "output_type": "latent"}),
        ({}, {"generator": torch.Generator(), "num_images_per_prompt": 2, "latents": torch.zeros(1)}),
        ({}, {"num_inference_steps": 50, "sigmas": [1.0, 0.5]}),
        ({"height": 64}, {"height": 64.0}),
        ({"height": 16}, {}),
        ({"guidance_scale": 3.0}, {"guidance_scale": 9.0}),
        ({"true_cfg_scale": 6.0}, {"true_cfg_scale": 3.0}),
        (GUIDED, {"negative_prompt": "blurred", "true_cfg_scale": 6}),
        (GUIDED, {"negative_prompt_embeds": torch.zeros(1), "true_cfg_scale": 6}),
        ({"joint_attention_kwargs": {"scale": [1, 2]}}, {"joint_attention_kwargs": {"scale": (1, 2)}}),
    ],
)
def test_calls_that_are_alike(own: dict[str, Any], here: dict[str, Any]) -> None:
    pipe = flux()
    pipe.default_sample_size, pipe.vae_scale_factor = 8, 2
    before, now = arguments_of(pipe, **own), arguments_of(pipe, **here)
    assert differences(before, now) is None
    assert scales_of(before) == scales_of(now)


@pytest.mark.parametrize(
    ("own", "here", "said"),
    [
        ({"height": 64}, {"height": 128}, "height=128 in place of 64"),
        ({}, {"width": 32}, "width=32 in place of 16"),
        ({"max_sequence_length": 20}, {}, "max_sequence_length=512 in place of 20"),
        ({}, {"joint_attention_kwargs": {"scale": 0.5}}, "joint_attention_kwargs={'scale': 0.5} in place of None"),
        ({}, {"ip_adapter_image": object()}, "ip_adapter_image='given' in place of None"),
    ],
)
def test_calls_that_differ(own: dict[str, Any], here: dict[str, Any], said: str) -> None:
    pipe = flux()
    pipe.default_sample_size, pipe.vae_scale_factor = 8, 2
    assert differences(arguments_of(pipe, **own), arguments_of(pipe, **here)) == said


def test_positions_and_defaults_are_names_and_values() -> None:
    from diffusers import FluxPipeline

    pipe = flux()
    names = list(inspect.signature(FluxPipeline.__call__).parameters)[1:]
    given = {"prompt": "a", "prompt_2": None, "negative_prompt": "", "negative_prompt_2": None, "true_cfg_scale": 4.0}
    assert names[: len(given)] == list(given)
    assert arguments_of(pipe, *given.values()) == arguments_of(pipe, **given)


@pytest.mark.parametrize(
    ("embeds", "own", "scales"),
    [
        (False, GUIDED, {"true_cfg_scale": 6.0}),
        (False, {"true_cfg_scale": 6.0}, {"true_cfg_scale": 1.0}),
        (True, {"guidance_scale": 4}, {"true_cfg_scale": 1.0, "guidance_scale": 4.0}),
    ],
)
def test_guidance_counts_where_it_has_an_effect(embeds: bool, own: dict[str, Any], scales: dict[str, float]) -> None:
    assert scales_of(arguments_of(flux(guidance_embeds=embeds), **own)) == scales


class Loose:
    """A pipeline whose call names none of its arguments."""

    def __call__(self, prompt: str, **call: Any) -> None: ...


def test_arguments_without_a_name_in_the_signature_count_where_they_are_given() -> None:
    pipe = Loose()
    assert arguments_of(pipe, "a", size=3, generator=1) == {"size": 3}
    assert differences(arguments_of(pipe, "a", size=3), arguments_of(pipe, "b")) == "size=nothing in place of 3"


def test_guidance_of_one_side_alone_is_a_difference() -> None:
    pipe = Loose()
    left_out = differences(arguments_of(pipe, "a", guidance_scale=3.0), arguments_of(pipe, "b"))
    assert left_out == "guidance_scale=nothing in place of 3.0"
    assert differences({"guidance_scale": 3.0}, {"guidance_scale": 4.0}) is None


def test_a_call_that_the_pipeline_refuses_itself_has_no_arguments() -> None:
    assert arguments_of(flux(), nonsense=1) == {}


@pytest.mark.parametrize("value", [64, 6.0, None, "", [64, 64], {"scale": 0.5}])
def test_what_a_profile_keeps_is_read_again(value: Any) -> None:
    assert read_argument(repr(value)) == value


def test_what_is_no_literal_stays_as_it_is() -> None:
    assert read_argument("<PIL.Image>") == "<PIL.Image>"
