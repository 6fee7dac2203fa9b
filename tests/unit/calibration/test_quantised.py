"""Quantised weights: each way to hold them is told apart, ends a promise, and is tuned by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import omnireuse
from omnireuse.profiles.conditions import Watch
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


def _with_layers(make: Callable[[torch.nn.Linear], torch.nn.Module]) -> Callable[[torch.nn.Module], None]:
    def change(model: torch.nn.Module) -> None:
        for path, layer in list(model.named_modules()):
            if isinstance(layer, LINEAR) and layer.in_features % 32 == 0:
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, make(layer))

    return change


def _as_gguf(layer: torch.nn.Linear) -> torch.nn.Module:
    kind = gguf.GGMLQuantizationType.Q8_0
    made = gguf_layers.GGUFLinear(
        layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=torch.float32
    )
    made.weight = gguf_layers.GGUFParameter(
        torch.from_numpy(gguf.quants.quantize(layer.weight.detach().numpy(), kind)), quant_type=kind
    )
    made.bias = layer.bias
    assert isinstance(made, torch.nn.Module)
    return made


def _as_bitsandbytes(layer: torch.nn.Linear) -> torch.nn.Module:
    has_bias = layer.bias is not None
    made = bitsandbytes.nn.Linear8bitLt(layer.in_features, layer.out_features, has_bias, has_fp16_weights=False)
    made.load_state_dict(layer.state_dict())
    moved: torch.nn.Module = made.to("cpu")
    return moved


WAYS: dict[str, Callable[[torch.nn.Module], None]] = {
    "plain": lambda model: None,
    "int8 weights": lambda model: torchao.quantize_(model, torchao.Int8WeightOnlyConfig(), filter_fn=_is_linear),
    "int8 weights and activations": lambda model: torchao.quantize_(
        model, torchao.Int8DynamicActivationInt8WeightConfig(), filter_fn=_is_linear
    ),
    "GGUF": _with_layers(_as_gguf),
    "bitsandbytes": _with_layers(_as_bitsandbytes),
}


def held(way: str) -> Tiny:
    """A pipeline whose weights are held in one way."""
    tiny = tiny_flux()
    WAYS[way](tiny.pipe.transformer)
    return tiny


def test_all_ways_are_told_apart() -> None:
    tinies = {way: held(way) for way in WAYS}
    seen = {way: Watch(tiny.pipe).now() for way, tiny in tinies.items()}
    assert len({each.holding for each in seen.values()}) == len(WAYS)
    for one, other in itertools.permutations(seen.values(), 2):
        assert "holds its weights as" in str(one.unlike(other))
    assert all(each.weights is not None for each in seen.values())


@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_a_quantised_model_is_another_configuration_of_tuning(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
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
            assert states == ["measuring", "ready"]
