"""Quantised weights: each way to hold them is told apart, ends a promise, and is tuned by itself."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import GGUFQuantizationConfig

import omnireuse
from omnireuse.errors import StateError
from omnireuse.profiles.conditions import ConditionsWatch
from reference import load_image_pipeline
from tests import TOP
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import flux as tiny_flux

NEEDED = "needs the group quantised: pip install --group quantised"
torchao = pytest.importorskip("torchao.quantization", reason=NEEDED)
bitsandbytes = pytest.importorskip("bitsandbytes", reason=NEEDED)
gguf = pytest.importorskip("gguf", reason=NEEDED)
gguf_layers = pytest.importorskip("diffusers.quantizers.gguf.utils", reason=NEEDED)

STEPS = 20
LINEAR = torch.nn.Linear


def _is_linear(module: torch.nn.Module, _: str) -> bool:
    return isinstance(module, LINEAR)


def _from_gguf(pipe: Any) -> None:
    """The model from a file of eight-bit blocks, as diffusers loads one."""
    model, kind = pipe.transformer, gguf.GGMLQuantizationType.Q8_0
    with tempfile.TemporaryDirectory() as folder:
        model.save_config(folder)
        file = f"{folder}/model.gguf"
        writer = gguf.GGUFWriter(file, "flux")
        for name, weight in model.state_dict().items():
            values = weight.numpy()
            if values.ndim == 2 and values.shape[1] % 32 == 0:
                writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        as_held = GGUFQuantizationConfig(compute_dtype=torch.float32)
        loaded = type(model).from_single_file(
            file, config=folder, quantization_config=as_held, torch_dtype=torch.float32
        )
    assert any(isinstance(each, gguf_layers.GGUFLinear) for each in loaded.modules())
    pipe.transformer = loaded.eval()


def _with_bitsandbytes(pipe: Any) -> None:
    """Layer by layer, for diffusers' loader of it asks for a GPU."""
    for path, layer in list(pipe.transformer.named_modules()):
        if isinstance(layer, LINEAR) and layer.in_features % 32 == 0:
            has_bias = layer.bias is not None
            made = bitsandbytes.nn.Linear8bitLt(layer.in_features, layer.out_features, has_bias, has_fp16_weights=False)
            made.load_state_dict(layer.state_dict())
            parent, _, name = path.rpartition(".")
            setattr(pipe.transformer.get_submodule(parent), name, made.to("cpu"))


def _with_torchao(config: str) -> Callable[[Any], None]:
    return lambda pipe: torchao.quantize_(pipe.transformer, getattr(torchao, config)(), filter_fn=_is_linear)


WAYS: dict[str, Callable[[Any], None]] = {
    "plain": lambda pipe: None,
    "int8 weights": _with_torchao("Int8WeightOnlyConfig"),
    "int8 weights and activations": _with_torchao("Int8DynamicActivationInt8WeightConfig"),
    "GGUF": _from_gguf,
    "bitsandbytes": _with_bitsandbytes,
}


def held(way: str) -> Tiny:
    """A pipeline whose weights are held in one way."""
    tiny = tiny_flux()
    WAYS[way](tiny.pipe)
    return tiny


def test_all_ways_are_told_apart() -> None:
    tinies = {way: held(way) for way in WAYS}
    seen = {way: ConditionsWatch(tiny.pipe).now() for way, tiny in tinies.items()}
    assert len({each.holding for each in seen.values()}) == len(WAYS)
    for one, other in itertools.permutations(seen.values(), 2):
        assert "holds its weights as" in str(one.unlike(other))
    assert all(each.weights is not None for each in seen.values())


@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_a_profile_of_plain_weights_promises_nothing(way: str) -> None:
    pipe = load_image_pipeline()
    asked: dict[str, Any] = {
        "profile": TOP / "models/shapes-flux/profiles/shapes-flux-28-guided.json",
        "quality": 38,
    }
    omnireuse.enable(pipe, **asked).disable()
    WAYS[way](pipe)
    with pytest.raises(StateError, match="nothing is promised, for the pipeline holds its weights as"):
        omnireuse.enable(pipe, **asked)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_a_quantised_model_is_another_configuration_of_tuning(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path))
    plain = held("plain")
    with torch.no_grad():
        with omnireuse.enable(plain.pipe, tune=1) as handle:
            plain.run(steps=STEPS, seed=0)
            plain.run(steps=STEPS, seed=1)
            assert handle.tuning.state == "ready"
        tiny = held(way)
        full = tiny.run(steps=STEPS, seed=0)
        with omnireuse.enable(tiny.pipe, tune=1) as handle:
            states = []
            for is_full in (True, False):
                assert torch.equal(tiny.run(steps=STEPS, seed=0), full) is is_full
                states.append(handle.tuning.state)
            assert states == ["ready", "ready"], "it was measured, and not served by the plan of the other"
