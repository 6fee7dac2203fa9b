"""A ComfyUI that is played: a model with wrappers, a guider, and solvers, with the seams that the nodes use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

OUTER, PREDICT, PARTS, SAMPLER = "outer_sample", "predict_noise", "calc_cond_batch", "sampler_sample"
STEPS = 20
SIGMAS = torch.linspace(1.0, 0.0, STEPS + 1)


class InterruptProcessingException(BaseException):  # no Exception in ComfyUI 0.30
    """ComfyUI's cancel."""


class Flow:
    """Latents are (1 − σ) · clean + σ · noise."""

    def noise_scaling(self, sigma: torch.Tensor, noise: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
        sigma = sigma.reshape(-1, *[1] * (noise.ndim - 1))
        return sigma * noise + (1 - sigma) * clean


class OnDevice:
    """A sigma on a device: whoever reads it waits."""

    def __init__(self, sigma: float) -> None:
        self.sigma, self.reads = sigma, 0

    def flatten(self) -> list[float]:
        self.reads += 1
        return [self.sigma]


class Executor:
    """Calls the wrappers of a kind, from the outermost on, and what they are around."""

    def __init__(self, original: Callable[..., Any], owner: Any, wrappers: Sequence[Callable[..., Any]]) -> None:
        self._original, self.class_obj, self._wrappers = original, owner, list(wrappers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._wrappers:
            return self._original(*args, **kwargs)
        first, *others = self._wrappers
        return first(Executor(self._original, self.class_obj, others), *args, **kwargs)


def around(original: Callable[..., Any], owner: Any, kind: str, options: Mapping[str, Any]) -> Executor:
    kinds = options.get("transformer_options", {}).get("wrappers", {})
    return Executor(original, owner, [each for group in kinds.get(kind, {}).values() for each in group])


class Model:
    """ComfyUI's `ModelPatcher`."""

    def __init__(self, seed: int = 0) -> None:
        net = nn.Linear(32, 32)
        generator = torch.Generator().manual_seed(seed)
        for each in net.parameters():
            each.data = torch.randn(each.shape, generator=generator) * 0.3
        self.model = SimpleNamespace(diffusion_model=net)
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self.wrappers: dict[str, dict[str, list[Any]]] = {}
        self.patches: dict[str, Any] = {}
        self.backup: dict[str, Any] = {}
        self.patches_uuid = seed
        self.calls = 0
        self.on_call: Callable[[], None] = lambda: None

    def clone(self) -> Model:
        twin = Model.__new__(Model)
        vars(twin).update(vars(self))
        twin.wrappers = {kind: dict(each) for kind, each in self.wrappers.items()}
        twin.origin = self.origin  # type: ignore[attr-defined]
        return twin

    @property
    def origin(self) -> Model:
        return self.__dict__.get("_origin", self)  # type: ignore[no-any-return]

    @origin.setter
    def origin(self, value: Model) -> None:
        self.__dict__["_origin"] = value

    def add_wrapper_with_key(self, kind: str, key: str, wrapper: Any) -> None:
        self.wrappers.setdefault(kind, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, kind: str, key: str) -> None:
        self.wrappers.get(kind, {}).pop(key, None)

    def get_wrappers(self, kind: str, key: str) -> list[Any]:
        return self.wrappers.get(kind, {}).get(key, [])

    def get_model_object(self, name: str) -> Flow:
        assert name == "model_sampling"
        return Flow()

    def model_dtype(self) -> torch.dtype:
        return torch.float32

    def x0(self, x: torch.Tensor, sigma: float, text: torch.Tensor) -> torch.Tensor:
        self.origin.calls += 1
        self.origin.on_call()
        hidden = self.model.diffusion_model(x.flatten(1)).view_as(x)
        return 0.6 * x + torch.tanh(hidden * (1 - 0.5 * sigma) + text)


class Guider:
    """ComfyUI's `CFGGuider`."""

    def __init__(self, model: Model, positive: torch.Tensor, cfg: float = 3.0) -> None:
        self.model_patcher, self.model_options, self.cfg = model, model.model_options, cfg
        self._conds = {"positive": [{"text": positive}], "negative": [{"text": torch.zeros(())}]}
        self.conds: dict[str, list[dict[str, Any]]] = {}

    @torch.no_grad()
    def sample(
        self,
        noise: torch.Tensor,
        sampler: Any,
        sigmas: torch.Tensor = SIGMAS,
        *,
        denoise_mask: Any = None,
        callback: Any = None,
    ) -> torch.Tensor:
        self.conds = {kind: [dict(each) for each in group] for kind, group in self._conds.items()}
        before = self.model_options
        self.model_options = {**before, "transformer_options": {"wrappers": self.model_patcher.wrappers}}
        try:
            executor = around(self.outer_sample, self, OUTER, self.model_options)
            result: torch.Tensor = executor(
                noise, torch.zeros_like(noise), sampler, sigmas, denoise_mask, callback, False, 7, latent_shapes=[1]
            )
            return result
        finally:
            self.model_options = before

    def outer_sample(
        self,
        noise: torch.Tensor,
        latent: torch.Tensor,
        sampler: Any,
        sigmas: torch.Tensor,
        mask: Any,
        callback: Any,
        disable_pbar: bool,
        seed: int,
        latent_shapes: Any,
    ) -> torch.Tensor:
        assert all("prepared" not in each for group in self.conds.values() for each in group)
        for group in self.conds.values():
            for each in group:
                each["prepared"] = True
        torch.rand(1)  # Samplers draw from here too.
        extra = {"model_options": self.model_options, "seed": seed}
        executor = around(sampler.sample, sampler, SAMPLER, self.model_options)
        result: torch.Tensor = executor(self, sigmas, extra, callback, noise, latent, mask, disable_pbar)
        return result * 2 + 1

    def __call__(self, x: torch.Tensor, sigma: OnDevice, options: Any) -> torch.Tensor:
        executor = around(self.predict_noise, self, PREDICT, self.model_options)
        result: torch.Tensor = executor(x, sigma, options, None)
        return result

    def predict_noise(self, x: torch.Tensor, sigma: OnDevice, options: Any, seed: Any) -> torch.Tensor:
        conds = [self.conds["positive"], self.conds["negative"]]
        executor = around(self._parts, None, PARTS, options)
        yes, no = executor(self.model_patcher, conds, x, sigma, options)
        return no + self.cfg * (yes - no)

    def _parts(self, model: Model, conds: Any, x: torch.Tensor, sigma: OnDevice, options: Any) -> list[torch.Tensor]:
        model.origin.calls -= 1  # Both parts are one call of the model.
        return [model.x0(x, sigma.sigma, group[0]["text"]) for group in conds]


class Function:
    """A sampler's function as ComfyUI calls it."""

    def __init__(self, name: str, solver: Callable[..., torch.Tensor]) -> None:
        self.__name__, self._solver = name, solver

    def __call__(self, model: Any, x: torch.Tensor, sigmas: torch.Tensor, **_: Any) -> torch.Tensor:
        return self._solver(x, lambda x, sigma: model(x, torch.tensor([sigma])), sigmas.tolist())


class Sampler:
    """ComfyUI's `KSAMPLER` around the solver of a name.

    Attributes:
        reads: how often a sigma was read from the device.
    """

    def __init__(self, name: str = "euler") -> None:
        self.solver = {"euler": euler, "heun": heun, "euler_ancestral": noisy}[name]
        self.sampler_function = Function(f"sample_{name}", self.solver)
        self.extra_options: dict[str, Any] = {}
        self.reads = 0

    def sample(
        self,
        guider: Guider,
        sigmas: torch.Tensor,
        extra: Any,
        callback: Any,
        noise: torch.Tensor,
        latent: torch.Tensor,
        mask: Any,
        disable_pbar: bool,
    ) -> torch.Tensor:
        def call(x: torch.Tensor, sigma: float) -> torch.Tensor:
            timestep = OnDevice(sigma)
            result = guider(x, timestep, extra["model_options"])
            self.reads += timestep.reads
            if callback is not None:
                callback(disable_pbar)
            return result

        return self.solver(noise, call, sigmas.tolist())


Call = Callable[[torch.Tensor, float], torch.Tensor]


def euler(x: torch.Tensor, call: Call, sigmas: Sequence[float]) -> torch.Tensor:
    for sigma, after in pairwise(sigmas):
        x = x + (x - call(x, sigma)) / sigma * (after - sigma)
    return x


def heun(x: torch.Tensor, call: Call, sigmas: Sequence[float]) -> torch.Tensor:
    for sigma, after in pairwise(sigmas):
        slope = (x - call(x, sigma)) / sigma
        there = x + slope * (after - sigma)
        if after:
            slope = (slope + (there - call(there, after)) / after) / 2
        x = x + slope * (after - sigma)
    return x


def noisy(x: torch.Tensor, call: Call, sigmas: Sequence[float]) -> torch.Tensor:
    for sigma, after in pairwise(sigmas):
        x = x + (x - call(x, sigma)) / sigma * (after - sigma) + 0.01 * after * torch.randn_like(x)
    return x
