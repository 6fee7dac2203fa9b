"""What Prometheus reads is what was counted, and the dashboard asks for nothing else."""

import re

import pytest
import torch

import omnireuse
from omnireuse.diffusion.cache.prompt_embed_cache import (
    PromptCacheOptions,
    PromptEmbedCache,
    install_prompt_embed_cache,
)
from omnireuse.errors import ConfigError
from omnireuse.forecasters import Hold
from omnireuse.policies import EveryNth
from omnireuse.prompts.prometheus import METRICS, PromptCacheCollector
from omnireuse.stores.disk import DiskTier
from omnireuse.summary import prometheus as steps
from omnireuse.summary.prometheus import StepReuseCollector
from tests.helpers.prompt_pipelines import flux

from .conftest import Pipeline

prometheus_client = pytest.importorskip("prometheus_client", reason="needs omnireuse[metrics]")


def test_the_exposition_holds_the_counts(tmp_path):
    pipeline = Pipeline()
    options = PromptCacheOptions(outside=DiskTier(tmp_path, max_bytes=1 << 20))
    cache = install_prompt_embed_cache(pipeline, options=options)
    for prompt in "aab":
        pipeline.encode_prompt(prompt)
    pipeline.encode_prompt("a", extra=torch.ones(1))
    registry = prometheus_client.CollectorRegistry()
    registry.register(PromptCacheCollector().add("tiny", cache))
    text = prometheus_client.generate_latest(registry).decode()
    name = "omnireuse_prompt_cache"
    assert f'{name}_hits_total{{model="tiny"}} 1.0' in text
    assert f'{name}_misses_total{{model="tiny"}} 2.0' in text
    assert f'{name}_bypassed_total{{model="tiny",reason="float_tensor"}} 1.0' in text
    assert f'{name}_entries{{model="tiny"}} 2.0' in text
    assert f'{name}_tier_events_total{{event="writes",model="tiny",tier="disk"}} 2.0' in text
    exposed = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    assert exposed == set(METRICS)


def test_step_reuse_is_counted_by_what_was_done_and_why():
    pipeline = flux()
    pipeline.set_progress_bar_config(disable=True)
    with omnireuse.enable(pipeline, policy=EveryNth(every=2), forecaster=Hold()) as handle:
        pipeline("a cat", height=16, width=16, num_inference_steps=4, output_type="latent", max_sequence_length=24)
        registry = prometheus_client.CollectorRegistry()
        registry.register(StepReuseCollector().add("tiny", handle))
        text = prometheus_client.generate_latest(registry).decode()
        done = {(e.reused, e.reason) for e in handle.events}
    name = "omnireuse_step_reuse"
    assert f'{name}_runs_total{{model="tiny"}} 1.0' in text
    assert f'{name}_steps_total{{model="tiny"}} 4.0' in text
    for reused, reason in done:
        assert re.search(
            rf'{name}_decisions_total{{action="{"reused" if reused else "computed"}".*reason="{reason}"', text
        )
    assert {reused for reused, _ in done} == {True, False}
    assert set(re.findall(r"^# TYPE (\S+)", text, re.M)) == set(steps.METRICS)


def test_a_label_names_one_cache():
    cache = PromptEmbedCache()
    collector = PromptCacheCollector().add("m", cache).add("m", cache)
    with pytest.raises(ConfigError, match="unique"):
        collector.add("m", PromptEmbedCache())
