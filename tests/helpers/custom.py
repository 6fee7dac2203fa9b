"""Tiny pipelines as people write them: other arguments and other results than those of diffusers."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler

SIZE = 16


class Denoiser(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList([torch.nn.Conv2d(6, 3, 3, padding=1), torch.nn.Conv2d(3, 3, 3, padding=1)])

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        first, second = self.blocks
        moved: torch.Tensor = second(torch.tanh(first(torch.cat([sample * (1 + timestep / 1000), prompt], dim=1))))
        return moved


class Custom(DiffusionPipeline):  # type: ignore[misc]  # diffusers is not read by the type checker
    """Makes tensors (batch, 3, 16, 16) in 0…1; `_result` decides what comes of them."""

    def __init__(self, transformer: Any = None, scheduler: Any = None) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer or Denoiser(), scheduler=scheduler or FlowMatchEulerDiscreteScheduler()
        )
        self.seen: list[dict[str, Any]] = []

    def _run(self, prompt: str | list[str], steps: int, generator: Any) -> Any:
        texts = [prompt] if isinstance(prompt, str) else prompt
        self.seen.append({"prompt": prompt, "steps": steps, "generator": generator})
        told = torch.stack([_embedding(text) for text in texts]).to(self.transformer.blocks[0].weight)
        if isinstance(generator, list):
            latents = torch.stack([torch.randn(3, SIZE, SIZE, generator=each) for each in generator])
        else:
            latents = torch.randn(len(texts), 3, SIZE, SIZE, generator=generator)
        latents = latents.to(told)
        self.scheduler.set_timesteps(steps)
        for timestep in self.scheduler.timesteps:
            moved = self.transformer(latents, timestep, told)
            latents = self.scheduler.step(moved, timestep, latents, return_dict=False)[0]
        return self._result(torch.sigmoid(latents))

    def _result(self, images: torch.Tensor) -> Any:
        return images


def _embedding(text: str) -> torch.Tensor:
    return torch.randn(3, SIZE, SIZE, generator=torch.Generator().manual_seed(zlib.crc32(text.encode())))


class Bare(Custom):
    """Returns the tensor itself, and takes no `output_type`."""

    @torch.no_grad()
    def __call__(self, prompt: str | list[str], num_inference_steps: int = 50, generator: Any = None) -> Any:
        return self._run(prompt, num_inference_steps, generator)


class InTuple(Bare):
    """Returns a tuple, as diffusers does with ``return_dict=False``."""

    def _result(self, images: torch.Tensor) -> Any:
        return (images.permute(0, 2, 3, 1).float().numpy(), None)


class Signed(Bare):
    """Returns values in -1…1, which no one can tell from latents."""

    def _result(self, images: torch.Tensor) -> Any:
        return images * 2 - 1


class Noisy(Custom):
    """Takes no generator."""

    @torch.no_grad()
    def __call__(self, prompt: str | list[str], num_inference_steps: int = 50) -> Any:
        return self._run(prompt, num_inference_steps, None)


class Whole(Bare):
    """Written as diffusers wants it: its constructor names its parts, and they know their dtype."""

    def __init__(self, transformer: Any, scheduler: Any) -> None:
        super().__init__(transformer, scheduler)


class WholeDenoiser(Denoiser):
    @property
    def dtype(self) -> torch.dtype:
        return self.blocks[0].weight.dtype  # type: ignore[return-value]  # a weight is a tensor


def make_whole() -> Whole:
    """For ``package:function``."""
    return Whole(WholeDenoiser(), FlowMatchEulerDiscreteScheduler())


def make_bare() -> Bare:
    """For ``package:function``."""
    return Bare()


def unsigned(result: torch.Tensor) -> torch.Tensor:
    """What `Signed` returns, as pictures."""
    return (result / 2 + 0.5).permute(0, 2, 3, 1)


def make_signed() -> Signed:
    """For ``package:function``."""
    return Signed()
