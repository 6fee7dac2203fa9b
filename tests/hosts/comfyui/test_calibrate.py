"""The node that calibrates on a graph's own sampler."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from omnireuse import Profile
from omnireuse.engines.comfyui import reuse_of
from omnireuse.errors import ConfigError, StateError, UnknownNameError
from omnireuse.pipelines.closeness import psnr
from tests.hosts.comfyui.conftest import IN_COMFYUI
from tests.hosts.comfyui.test_nodes import generations

pytestmark = IN_COMFYUI

STEPS, GUIDANCE = 28, 6.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: ModuleType) -> Path:
    """The folder of profiles."""
    import folder_paths

    monkeypatch.setitem(folder_paths.folder_names_and_paths, "omnireuse", ([str(tmp_path)], {".json"}))
    return tmp_path


@pytest.fixture
def hooked(host: ModuleType) -> Iterator[list[tuple[int, int]]]:
    """What ComfyUI's progress bar is told: value and total."""
    told: list[tuple[int, int]] = []
    host.comfy.utils.set_progress_bar_global_hook(lambda value, total, *_, **__: told.append((value, total)))
    yield told
    host.comfy.utils.set_progress_bar_global_hook(None)


class Calibration:
    """The inputs of one node, as ComfyUI hands them over: lists."""

    def __init__(self, nodes: dict[str, Any], shapes: Any, model: Any, prompts: int = 3, **changed: Any) -> None:
        self._node = nodes["OmnireuseCalibrate"]()
        self.inputs = {
            "model": [model],
            "positive": [shapes.encode(text) for text in shapes.captions(prompts, seed=5)],
            "negative": [shapes.encode("")],
            "latent_image": [{"samples": torch.zeros(1, 8, 16, 16)}],
            "vae": [shapes],
            "seed": [0],
            "steps": [8],
            "cfg": [GUIDANCE],
            "sampler_name": ["euler"],
            "scheduler": ["simple"],
            "denoise": [1.0],
            "name": ["mine"],
            **changed,
        }

    def run(self) -> tuple[str, str, torch.Tensor]:
        with torch.inference_mode():
            found = self._node.calibrate(**self.inputs)
        assert found["ui"]["text"] == [found["result"][1]]
        return found["result"]


def test_a_profile_of_the_graphs_sampler_beats_the_default_on_other_prompts_and_noise(
    host: ModuleType, counted: Any, nodes: dict[str, Any], shapes: Any, folder: Path, hooked: list[tuple[int, int]]
) -> None:
    model, counter = counted
    calibration = Calibration(nodes, shapes, model, prompts=15, steps=[STEPS])
    path, text, strips = calibration.run()
    assert sorted(each.name for each in folder.iterdir()) == ["mine.json"]
    profile = Profile.load(path)
    assert sorted(profile.plans) == [7, 9, 14]
    assert profile.num_prompts == (10, 5)
    assert profile.cost_in_runs <= 40
    assert len(counter.sigmas) == pytest.approx(profile.cost_in_runs * STEPS, abs=0.1 * STEPS)
    assert [line.split(";")[0] for line in text.splitlines()[1:]] == [
        "speedup 2: 14 of 28 steps",
        "speedup 3: 9 of 28 steps",
        "speedup 4: 7 of 28 steps",
    ]
    assert text.count("; promised: nine of ten reach") == 3
    assert strips.shape[1] == 3 * 48
    values = [value for value, _ in hooked]
    assert values == sorted(values)
    assert hooked[-1][0] == pytest.approx(hooked[-1][1], rel=0.02)

    def picture(patched: Any, number: int) -> Any:
        positive = shapes.encode(shapes.captions(4, seed=77)[number])
        options = {"positive": positive, "negative": shapes.encode(""), "steps": STEPS, "seed": 900 + number}
        return shapes.decode(host.sample(patched, cfg=GUIDANCE, **options))[0].numpy()

    full = [picture(model, number) for number in range(4)]
    for speedup in (2.0, 3.0, 4.0):
        (fitted,) = nodes["OmnireuseProfile"]().patch(model, "as wired", speedup, path)
        (default,) = nodes["Omnireuse"]().patch(model, speedup, 0.0)
        quality = {}
        for name, patched in (("fitted", fitted), ("default", default)):
            counter.sigmas.clear()
            quality[name] = statistics.mean(psnr(picture(patched, number), full[number]) for number in range(4))
            assert len(counter.sigmas) == 4 * int(STEPS / speedup)
        assert quality["fitted"] > quality["default"], speedup
        assert "promised: nine of ten reach" in str(reuse_of(fitted).summary())

    # The same again costs nothing, and another calibration does not take its name.
    counter.sigmas.clear()
    assert calibration.run()[:2] == (path, text)
    calibration.inputs["cfg"] = [3.0]
    with pytest.raises(ConfigError, match=r"calibrate\(name='mine'\): name must be new where settings are"):
        calibration.run()
    assert counter.sigmas == []


def test_an_interrupt_leaves_nothing_behind_but_the_journal_that_goes_on(
    host: ModuleType, counted: Any, nodes: dict[str, Any], shapes: Any, folder: Path
) -> None:
    from comfy import model_management

    model, counter = counted
    left = math.inf

    def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            model_management.interrupt_current_processing()
        return executor(*args, **kwargs)

    # Not from the progress bar: ComfyUI leaves out what follows within 0.1 s.
    model.add_wrapper_with_key("diffusion_model", "interrupt", call)
    wrappers = {kind: dict(each) for kind, each in model.wrappers.items()}
    calibration = Calibration(nodes, shapes, model)
    path, text, _ = calibration.run()
    whole = len(counter.sigmas)
    expected = Profile.load(path)
    Path(path).unlink()
    counter.sigmas.clear()

    left = round(0.9 * whole)
    try:
        with pytest.raises(model_management.InterruptProcessingException):
            calibration.run()
    finally:
        model_management.interrupt_current_processing(False)
    assert len(counter.sigmas) == round(0.9 * whole)
    assert generations() == 0
    assert {kind: dict(each) for kind, each in model.wrappers.items()} == wrappers
    (journal,) = folder.iterdir()
    assert journal.suffix == ".journal"
    counter.sigmas.clear()
    assert calibration.run()[1].splitlines()[1:] == text.splitlines()[1:]
    assert Profile.load(path).plans == expected.plans
    # The full runs are made again, and no trial is.
    assert 3 * 8 <= len(counter.sigmas) < whole
    assert [each.name for each in folder.iterdir()] == ["mine.json"]


def test_a_model_that_runs_out_of_memory_frees_all_state(
    host: ModuleType, model: Any, nodes: dict[str, Any], shapes: Any, folder: Path
) -> None:
    calls = 0

    def fail(executor: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise torch.OutOfMemoryError("out of memory")
        return executor(*args, **kwargs)

    model.add_wrapper_with_key("diffusion_model", "fail", fail)
    calibration = Calibration(nodes, shapes, model)
    with pytest.raises(torch.OutOfMemoryError):
        calibration.run()
    assert generations() == 0
    assert [each.suffix for each in folder.iterdir()] == [".journal"]
    calibration.run()


@pytest.mark.parametrize(
    ("sampler", "why"),
    [
        ("heun", "it calls the model more than once a step"),
        ("euler_ancestral", "it adds noise on the way"),
    ],
)
def test_a_sampler_without_fitted_weights_gets_the_default_judged_and_says_so(
    host: ModuleType,
    model: Any,
    nodes: dict[str, Any],
    shapes: Any,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    sampler: str,
    why: str,
) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"):
        path, text, _ = Calibration(nodes, shapes, model, prompts=2, sampler_name=[sampler]).run()
    reason = f"no weights can be fitted for the sampler {sampler}: {why}"
    assert caplog.text.count(reason) == 1
    assert reason in text
    assert "one prompt to search with cannot tell a gain from noise" in caplog.text
    assert text.count("not promised: too few held-out prompts") == 2
    assert text.splitlines()[-1].startswith("14 prompts or more give a promise")
    profile = Profile.load(path)
    assert profile.measured is not None
    assert profile.measured.unmeasured["weights"].startswith(reason)
    assert {plan.forecaster for plan in profile.plans.values()} == {"blend"}
    (patched,) = nodes["OmnireuseProfile"]().patch(model, "mine.json", 2.0)
    host.sample(patched, sampler, steps=8)
    summary = reuse_of(patched).summary()
    assert 0.0 in summary.last_run
    assert summary.fallbacks == {"a forecaster without fitted weights": 1}


def test_custom_sigmas_and_samplers_take_the_place_of_the_names(
    host: ModuleType, counted: Any, nodes: dict[str, Any], shapes: Any, folder: Path
) -> None:
    model, counter = counted
    sigmas = torch.linspace(1.0, 0.0, 11)
    sampler = host.comfy.samplers.sampler_object("dpmpp_2m")
    path, text, _ = Calibration(nodes, shapes, model, prompts=2, sampler=[sampler], sigmas=[sigmas]).run()
    assert text.startswith("Flux, dpmpp_2m, 10 steps")
    assert sorted(set(counter.sigmas), reverse=True) == pytest.approx(sigmas[:-1].tolist())
    assert Profile.load(path).plans[5].forecaster == "fitted"


def test_a_profile_promises_nothing_of_another_sampler_other_guidance_and_other_weights(
    host: ModuleType, model: Any, nodes: dict[str, Any], shapes: Any, folder: Path
) -> None:
    Calibration(nodes, shapes, model, prompts=14).run()
    node = nodes["OmnireuseProfile"]()
    for sampler, cfg, but in (
        ("euler", GUIDANCE, None),
        ("dpmpp_2m", GUIDANCE, "this run has dpmpp_2m at cfg 6"),
        ("euler", 3.0, "this run has euler at cfg 3"),
    ):
        (patched,) = node.patch(model, "mine.json", 2.0)
        host.sample(patched, sampler, steps=8, cfg=cfg)
        text = str(reuse_of(patched).summary())
        assert ("promised: nine of ten reach" in text) == (but is None)
        assert but is None or but in text
    name = "diffusion_model.final_layer.linear.weight"
    changed = model.clone()
    changed.add_patches({name: (torch.full_like(model.model.state_dict()[name], 1e-3),)}, 1.0)
    (patched,) = node.patch(changed, "mine.json", 2.0)
    host.sample(patched, steps=8)
    assert "not promised: the pipeline has LoRA adapters" in str(reuse_of(patched).summary())
    # The patch is in the weights now, and the model without it is still known.
    (patched,) = node.patch(model, "mine.json", 2.0)
    host.sample(patched, steps=8)
    assert "promised: nine of ten reach" in str(reuse_of(patched).summary())


def test_bad_inputs_are_refused_before_anything_runs(
    host: ModuleType, counted: Any, nodes: dict[str, Any], shapes: Any, folder: Path
) -> None:
    from comfy_extras.nodes_easycache import EasyCacheNode

    model, counter = counted
    reused = nodes["Omnireuse"]().patch(model, 2.0, 0.0)[0]
    cached = EasyCacheNode.execute(model, 0.2, 0.15, 0.95, False).args[0]
    latent = torch.zeros(2, 8, 16, 16)
    mask = {"samples": latent[:1], "noise_mask": torch.ones(1, 1, 16, 16)}
    negative = [shapes.encode("")] * 2
    for changed, kind, message in (
        ({"prompts": 1}, ConfigError, "positive must be a list of at least two conditionings"),
        ({"negative": negative}, ConfigError, "negative must be one conditioning for all prompts, or 3, got 2"),
        ({"steps": [7]}, ConfigError, "steps must be at least 8, got 7"),
        ({"denoise": [0.0]}, ConfigError, "steps must be at least 8, got 0"),
        ({"sigmas": [torch.tensor([1.0, 0.5, 0.7, *[0.1] * 8])]}, ConfigError, "sigmas must fall from step to step"),
        ({"sigmas": [torch.linspace(1.0, 0.5, 11)]}, ConfigError, "sigmas must end without noise"),
        ({"latent_image": [{"samples": latent}]}, ConfigError, "latent_image must hold one latent, got 2 latents"),
        ({"latent_image": [mask]}, ConfigError, "latent_image must have none; calibrate without"),
        ({"sampler_name": ["eular"]}, UnknownNameError, "euler"),
        ({"scheduler": ["karas"]}, UnknownNameError, "karras"),
        ({"model": reused}, StateError, "the model reuses steps already"),
        ({"model": cached}, StateError, "Omnireuse and EasyCache are both on this model"),
        ({"name": ["../mine"]}, ConfigError, "name must be a file name without folders"),
        ({"name": [" "]}, ConfigError, "name must be a file name without folders"),
    ):
        with pytest.raises(kind, match=message):
            Calibration(nodes, shapes, **{"model": model, **changed}).run()
        assert counter.sigmas == [], changed.keys()
    assert counter.sigmas == []
    assert list(folder.iterdir()) == []
    with pytest.raises(ConfigError, match="sampler must call the model, through ComfyUI's wrappers, in each of the 8"):
        Calibration(nodes, shapes, model, sampler_name=["dpm_adaptive"]).run()
    with pytest.raises(ConfigError, match="sampler must step from what guidance gives"):
        Calibration(nodes, shapes, model, sampler_name=["euler_cfg_pp"]).run()
    with pytest.raises(ConfigError, match="profile must be 'as wired' where Omnireuse calibrate is wired"):
        nodes["OmnireuseProfile"]().patch(model, "as wired", 2.0)
    with pytest.raises(ConfigError, match="prompts must hold a text"):
        nodes["OmnireusePrompts"]().lines(" \n")


def test_a_whole_graph_runs_in_comfyuis_own_executor(
    host: ModuleType, loaded: Any, nodes: dict[str, Any], shapes: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts to a profile to a picture, in one graph: lists, links between the nodes and results are ComfyUI's."""
    execution, known = host.executor()

    def loader(kind: str, value: Any) -> type:
        members = {
            "INPUT_TYPES": classmethod(lambda _: {"required": {}}),
            "RETURN_TYPES": (kind,),
            "FUNCTION": "give",
            "give": lambda _: (value,),
        }
        return type(f"Load{kind}", (), members)

    class Encode:
        RETURN_TYPES, FUNCTION = ("CONDITIONING",), "encode"

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"text": ("STRING", {})}}

        def encode(self, text: str) -> tuple[Any]:
            return (shapes.encode(text),)

    ours = {**nodes, "Model": loader("MODEL", loaded.clone()), "Vae": loader("VAE", shapes), "Encode": Encode}
    for name, node in ours.items():
        monkeypatch.setitem(known, name, node)
    sampling = {"seed": 3, "steps": 8, "cfg": GUIDANCE, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    parts = {"positive": ["encode", 0], "negative": ["nothing", 0], "latent_image": ["empty", 0]}
    base = {"model": ["model", 0]}
    graph = {
        "model": ("Model", {}),
        "vae": ("Vae", {}),
        "texts": ("OmnireusePrompts", {"prompts": "\n".join(shapes.captions(3, seed=5))}),
        "encode": ("Encode", {"text": ["texts", 0]}),
        "nothing": ("Encode", {"text": ""}),
        "empty": ("EmptyLatentImage", {"width": 128, "height": 128, "batch_size": 1}),
        "calibrate": (
            "OmnireuseCalibrate",
            {"model": ["model", 0], "vae": ["vae", 0], "name": "a", **sampling, **parts},
        ),
        "follow": ("OmnireuseProfile", {**base, "profile": "as wired", "speedup": 2.0}),
        "caption": ("Encode", {"text": shapes.captions(1, seed=6)[0]}),
        "sample": ("KSampler", {"model": ["follow", 0], **sampling, **parts, "positive": ["caption", 0]}),
        "report": ("OmnireuseSummary", {"model": ["follow", 0], "latent": ["sample", 0]}),
    }
    graph["follow"][1]["calibrated"] = ["calibrate", 0]
    prompt = {name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in graph.items()}
    told = host.executed(execution, prompt, ["calibrate", "report"], host.runner(execution))
    assert told["calibrate"]["text"][0].startswith("Flux, euler, 8 steps: 2 prompts searched with, 1 held out")
    assert "4 of 8 steps computed" in told["report"]["text"][0]
    assert (folder / "a.json").is_file()
