"""The contract of a forecaster."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import is_dataclass

import torch

from omnireuse.forecasters.base import Forecaster, Memory
from omnireuse.testing.policies import unpickled

__all__ = ["check_forecaster"]

PLACES = (1.0, 0.93, 0.8, 0.62, 0.6, 0.41)
"""Coordinates of computed steps, unevenly spaced, descending as in sampling."""
NEXT = 0.3
SHAPE = (3, 4, 5)


def check_forecaster(forecaster: Forecaster, *, places: Sequence[float] = PLACES, at: float = NEXT) -> None:
    """Show a forecaster made-up paths.

    Checked: config and memory survive copies and pickle; one value primes it; a path that stands still is forecast
    exactly; shape and dtype are those of the values; what it is shown is never written to; each sample of a batch
    gets what it would get alone; memory is bounded; `transformed` gives an independent copy.

    Args:
        places: coordinates to show it values at.
        at: coordinate to forecast.
    """
    name = type(forecaster).__name__
    assert not isinstance(forecaster, type), f"check_forecaster needs a forecaster; write {forecaster.__name__}()"
    assert isinstance(forecaster, Forecaster), f"{name} must inherit omnireuse.Forecaster"
    assert is_dataclass(forecaster), f"{name} must be a dataclass, so that it has a repr and can be compared"
    assert unpickled(forecaster) == forecaster, f"{name}: what comes back from pickle must be equal"
    memory = forecaster.start()
    assert isinstance(memory, Memory), f"{name}.start must return a Memory, got {type(memory).__name__}"
    assert not memory.primed, f"{name}: nothing was observed, so nothing can be predicted"
    assert memory.kept_bytes == 0, f"{name}: an empty memory holds no tensors"
    path = _path(places)
    shown = [value.clone() for value in path]
    memory = _observed(forecaster, places, path)
    forecast = memory.predict(at).clone()
    assert all(torch.equal(a, b) for a, b in zip(path, shown, strict=True)), (
        f"{name} must not write to what it is shown; make new tensors, or clone the values that it keeps"
    )
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        _check_constant(forecaster, places, at, dtype)
    assert torch.equal(memory.predict(at), forecast), f"{name}.predict must not change its memory nor its result"
    _check_samples(forecaster, places, path, at, forecast)
    _check_bounded(forecaster, path)
    _check_copies(name, memory, at, forecast)


def _path(places: Sequence[float]) -> list[torch.Tensor]:
    """Values that bend, and noise on top."""
    noise = torch.Generator().manual_seed(0)
    start, slope, bend = (torch.randn(SHAPE, generator=noise) for _ in range(3))
    return [start + at * slope + at**2 * bend + 0.01 * torch.randn(SHAPE, generator=noise) for at in places]


def _observed(forecaster: Forecaster, places: Sequence[float], path: Sequence[torch.Tensor]) -> Memory:
    memory = forecaster.start()
    for at, value in zip(places, path, strict=True):
        memory.observe(at, value)
    return memory


def _check_constant(forecaster: Forecaster, places: Sequence[float], at: float, dtype: torch.dtype) -> None:
    name, value = type(forecaster).__name__, torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)
    for count in range(1, len(places) + 1):
        memory = _observed(forecaster, places[:count], [value.clone() for _ in range(count)])
        assert memory.primed, f"{name}: {count} values must prime it"
        forecast = memory.predict(at)
        assert (forecast.shape, forecast.dtype) == (value.shape, dtype), (
            f"{name} must forecast in the shape and dtype of the values, {tuple(value.shape)} {dtype}, got "
            f"{tuple(forecast.shape)} {forecast.dtype}"
        )
        _assert_close(forecast, value, f"{name} must be exact if all values are equal, here {count}")


def _check_samples(
    forecaster: Forecaster, places: Sequence[float], path: Sequence[torch.Tensor], at: float, forecast: torch.Tensor
) -> None:
    for sample in range(SHAPE[0]):
        alone = _observed(forecaster, places, [value[sample : sample + 1] for value in path]).predict(at)
        message = f"{type(forecaster).__name__}: sample {sample} must get the forecast that it would get alone"
        _assert_close(forecast[sample : sample + 1], alone, message)


def _check_bounded(forecaster: Forecaster, path: Sequence[torch.Tensor]) -> None:
    memory = forecaster.start()
    held = []
    for step in range(64):
        memory.observe(1 - step / 64, path[step % len(path)].clone())
        held.append(memory.kept_bytes)
    name = type(forecaster).__name__
    assert held[0] >= path[0].nbytes, f"{name}.kept_bytes must count the values that are kept"
    assert held[-1] == held[31], f"{name} must keep a bounded number of values; after 32 steps {held[31]} bytes, "
    f"after 64 {held[-1]}"


def _check_copies(name: str, memory: Memory, at: float, forecast: torch.Tensor) -> None:
    for what, twin in (
        ("transformed", memory.transformed(lambda tensor: tensor.clone())),
        ("copy.deepcopy", copy.deepcopy(memory)),
        ("pickle", copy.deepcopy(unpickled(memory))),
    ):
        assert torch.equal(twin.predict(at), forecast), f"{name}: the copy by {what} must forecast the same"
        twin.observe(at, torch.zeros(SHAPE))
        assert torch.equal(memory.predict(at), forecast), f"{name}: the copy by {what} must not share its state"


def _assert_close(found: torch.Tensor, expected: torch.Tensor, message: str) -> None:
    tolerance = 1e-4 if expected.dtype != torch.bfloat16 else 2e-2
    assert torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance), (
        f"{message}; off by {(found.double() - expected.double()).abs().max():.2g}"
    )
