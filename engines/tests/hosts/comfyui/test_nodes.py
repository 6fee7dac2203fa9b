"""The nodes, and the life of what they leave on a model."""

from __future__ import annotations

import gc
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

from engines.tests.hosts.comfyui.conftest import IN_COMFYUI
from omnireuse.errors import ConfigError, StateError
from omnireuse.loop.generation import Generation
from omnireuse_engines.comfyui import attach, plan_for, reuse_of

pytestmark = IN_COMFYUI


def generations() -> int:
    """States of runs that are alive."""
    gc.collect()
    return sum(isinstance(each, Generation) for each in gc.get_objects())


def test_the_model_that_a_node_got_stays_as_it_was(host: ModuleType, model: Any, nodes: dict[str, Any]) -> None:
    before = host.sample(model, steps=20)
    (patched,) = nodes["Omnireuse"]().patch(model, 2.0, 0.0)
    assert patched is not model
    assert not torch.equal(host.sample(patched, steps=20), before)
    assert torch.equal(host.sample(model, steps=20), before)


@pytest.mark.parametrize("kind", ["out of memory", "interrupt"])
def test_a_run_that_fails_leaves_no_state_and_the_next_one_works(host: ModuleType, model: Any, kind: str) -> None:
    from comfy.model_management import InterruptProcessingException

    error = torch.OutOfMemoryError if kind == "out of memory" else InterruptProcessingException
    patched = attach(model, plan_for(speedup=2.0))
    expected = host.sample(patched)
    calls = 0

    def fail(executor: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise error
        return executor(*args, **kwargs)

    broken = patched.clone()
    broken.add_wrapper_with_key("diffusion_model", "fail", fail)
    with pytest.raises(error):
        host.sample(broken)
    assert generations() == 0
    assert torch.equal(host.sample(patched), expected)


def test_the_second_node_on_a_model_replaces_the_first(host: ModuleType, counted: Any, nodes: dict[str, Any]) -> None:
    model, counter = counted
    (once,) = nodes["Omnireuse"]().patch(model, 2.0, 0.0)
    (twice,) = nodes["Omnireuse"]().patch(once, 4.0, 0.0)
    host.sample(twice)
    assert len(counter.sigmas) == 5


def test_another_change_of_the_model_keeps_the_reuse(host: ModuleType, counted: Any, nodes: dict[str, Any]) -> None:
    model, counter = counted
    (patched,) = nodes["Omnireuse"]().patch(model, 2.0, 0.0)
    changed = patched.clone()
    name = "diffusion_model.final_layer.linear.weight"
    changed.add_patches({name: (torch.full_like(model.model.state_dict()[name], 1e-3),)}, 1.0)
    result = host.sample(changed)
    assert len(counter.sigmas) == 10
    assert not torch.equal(result, host.sample(patched))
    assert reuse_of(changed) is reuse_of(patched)


def test_easy_cache_on_the_same_model_is_refused(host: ModuleType, model: Any, nodes: dict[str, Any]) -> None:
    from comfy_extras.nodes_easycache import EasyCacheNode, LazyCacheNode

    (patched,) = nodes["Omnireuse"]().patch(model, 2.0, 0.0)
    for node, name in ((EasyCacheNode, "EasyCache"), (LazyCacheNode, "LazyCache")):
        with pytest.raises(StateError, match=f"Omnireuse and {name} are both on this model"):
            host.sample(node.execute(patched, 0.2, 0.15, 0.95, False).args[0])


def test_a_guider_of_its_own_kind_is_served(host: ModuleType, counted: Any) -> None:
    model, counter = counted
    patched = attach(model, plan_for(speedup=2.0))

    class Guider(host.comfy.samplers.CFGGuider):
        def predict_noise(self, x: Any, timestep: Any, model_options: Any = None, seed: Any = None) -> Any:
            return super().predict_noise(x, timestep, model_options or {}, seed) * 0.9

    guider = Guider(patched)
    guider.set_conds(host.condition(1), host.condition(2))
    guider.set_cfg(3.0)
    start = host.noise(0)
    sigmas = host.comfy.samplers.calculate_sigmas(patched.get_model_object("model_sampling"), "beta", 24)
    with torch.inference_mode():
        guider.sample(start, torch.zeros_like(start), host.comfy.samplers.sampler_object("euler"), sigmas, seed=0)
    assert len(counter.sigmas) == 12


def test_a_guider_that_goes_round_the_wrappers_is_named(
    host: ModuleType, counted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model, counter = counted

    class Direct(host.comfy.samplers.CFGGuider):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.predict_noise(*args, **kwargs)

    guider = Direct(attach(model, plan_for(speedup=2.0)))
    guider.set_conds(host.condition(1), host.condition(2))
    start = host.noise(0)
    with torch.inference_mode():
        guider.sample(
            start, torch.zeros_like(start), host.comfy.samplers.sampler_object("euler"), torch.linspace(1, 0, 5), seed=0
        )
    assert len(counter.sigmas) == 4
    assert "Direct does not go through" in caplog.text


def test_the_summary_tells_and_draws_the_steps(host: ModuleType, model: Any, nodes: dict[str, Any]) -> None:
    import folder_paths

    (patched,) = nodes["Omnireuse"]().patch(model, 2.0, 0.0)
    latent = {"samples": host.sample(patched)}
    found = nodes["OmnireuseSummary"]().report(patched, latent)
    passed, text, picture = found["result"]
    assert passed is latent
    assert found["ui"]["text"] == [text]
    (image,) = found["ui"]["images"]
    with Image.open(Path(folder_paths.get_temp_directory()) / image["filename"]) as drawn:
        assert (drawn.size, drawn.mode) == ((picture.shape[2], picture.shape[1]), "RGB")
        assert len(drawn.getcolors() or ()) == 3  # computed, forecast and what is between the boxes
    assert text.startswith("2x fewer steps: 10 of 20 steps computed")
    assert picture.shape[0] == 1
    assert picture.shape[3] == 3
    width = picture.shape[2] / 20
    boxes = [picture[0, 0, int((step + 0.5) * width)] for step in range(20)]
    dark = [step for step, colour in enumerate(boxes) if torch.equal(colour, boxes[0])]
    assert dark == [0, 1, 2, 3, 4, 6, 8, 11, 14, 18]


def test_a_profile_is_found_in_its_folder(
    host: ModuleType, counted: Any, nodes: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import folder_paths

    own = host.TOP / "models" / "shapes-flux" / "profiles" / "shapes-flux-28-unguided.json"
    (tmp_path / "mine.json").write_bytes(own.read_bytes())
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "omnireuse", ([str(tmp_path)], {".json"}))
    assert nodes["OmnireuseProfile"].INPUT_TYPES()["required"]["profile"][0] == ["mine.json"]
    model, counter = counted
    (patched,) = nodes["OmnireuseProfile"]().patch(model, "mine.json", 3.0)
    host.sample(patched, steps=28, cfg=1.0, sigmas=torch.linspace(1, 0, 29))
    assert len(counter.sigmas) == 9


def test_a_node_that_is_switched_off_changes_nothing(host: ModuleType, model: Any, nodes: dict[str, Any]) -> None:
    full = host.sample(model, steps=20)
    (once,) = nodes["Omnireuse"]().patch(model, 2.0, 0.0)
    for given, node, inputs in (
        (model, "Omnireuse", (2.0, 0.0)),
        (once, "Omnireuse", (0.0, 0.0)),
        (model, "OmnireuseProfile", ("missing.json", 2.0)),
    ):
        (off,) = nodes[node]().patch(given, *inputs, enabled=False)
        assert torch.equal(host.sample(off, steps=20), full)
        _, text, picture = nodes["OmnireuseSummary"]().report(off, {})["result"]
        assert text == "off: all 20 steps were computed"
        assert len(picture.flatten(0, 2).unique(dim=0)) == 2  # computed, and what is between the boxes


@pytest.mark.parametrize("target", [{"speedup": 2.0, "tolerance": 0.0}, {"speedup": 0.0, "tolerance": 0.8}])
def test_steps_outside_start_and_end_percent_are_computed(
    host: ModuleType, counted: Any, nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, target: dict[str, float]
) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    model, counter = counted
    (patched,) = nodes["Omnireuse"]().patch(model, **target, start_percent=0.4, end_percent=0.8)
    host.sample(patched, cfg=1.0)
    strip = reuse_of(patched).summary().last_run
    # The simple scheduler takes steps of 5 % each.
    assert strip[:8] == (1.0,) * 8
    assert 0.0 in strip[8:16]
    assert strip[16:] == (1.0,) * 4
    assert len(counter.sigmas) == sum(strip)
    assert "runs with start_percent or end_percent are not tuned" in str(reuse_of(patched).summary())


def test_each_node_has_what_comfyui_asks_of_it(nodes: dict[str, Any]) -> None:
    for node in nodes.values():
        assert callable(getattr(node, node.FUNCTION))
        assert node.CATEGORY
        assert node.DESCRIPTION
        groups = node.INPUT_TYPES()
        inputs = {**groups["required"], **groups.get("optional", {})}
        # Refuses names that the function does not take.
        inspect.signature(getattr(node, node.FUNCTION)).bind(None, **inputs)
        for kind, options in inputs.values():
            assert kind
            assert options["tooltip"]


def test_a_comfyui_without_a_hook_is_refused_when_it_loads_the_nodes(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = host.nodes()
    monkeypatch.setattr(host.comfy.patcher_extension.WrappersMP, "PREDICT_NOISE", 0)
    monkeypatch.delitem(sys.modules, loaded.__name__)
    monkeypatch.delitem(sys.modules, f"{loaded.__name__}.omnireuse_comfyui")
    with pytest.raises(ConfigError, match=r"tested with 0.30; not hooked: predict_noise; install one of them"):
        host.nodes()
