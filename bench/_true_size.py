"""Transformers of true size with random weights, each in a bare sampling loop; and the same classes tiny.

Speed does not depend on what the weights are. A loop is what a diffusers pipeline runs between text encoder and
decoder: every branch through the transformer, guidance, the scheduler's step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxTransformer2DModel,
    QwenImageTransformer2DModel,
    WanTransformer3DModel,
)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A published model by its shapes.

    Args:
        kind: the transformer's class; its defaults are the true size.
        true, tiny: what differs from the defaults.
        latents, tiny_latents: shape of what is denoised, a batch of one.
        text, tiny_text: tokens and width of the prompt embedding.
        guidance: scale of classifier-free guidance, which takes two calls a step; None for one call.
        arguments: further arguments of a call, from the latents and the config.
        time_unit: what the scheduler's timestep (0 to 1000) is divided by.
    """

    kind: type[torch.nn.Module]
    true: dict[str, Any]
    tiny: dict[str, Any]
    latents: tuple[int, ...]
    tiny_latents: tuple[int, ...]
    text: tuple[int, int]
    tiny_text: tuple[int, int]
    arguments: Callable[[torch.Tensor, Any, int], dict[str, Any]]
    guidance: float | None = None
    time_unit: float = 1000.0


def _flux_arguments(latents: torch.Tensor, config: Any, tokens: int) -> dict[str, Any]:
    like = {"device": latents.device, "dtype": latents.dtype}
    return {
        "pooled_projections": torch.randn(1, config.pooled_projection_dim, **like),
        "guidance": torch.full((1,), 3.5, device=latents.device) if config.guidance_embeds else None,
        "img_ids": _grid(latents.shape[1], **like),
        "txt_ids": torch.zeros(tokens, 3, **like),
    }


def _grid(tokens: int, **like: Any) -> torch.Tensor:
    """Row and column of every token of a square image."""
    side = round(tokens**0.5)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack((torch.zeros_like(rows), rows, columns), -1).reshape(tokens, 3).to(**like)


def _qwen_arguments(latents: torch.Tensor, _config: Any, tokens: int) -> dict[str, Any]:
    side = round(latents.shape[1] ** 0.5)
    return {
        "img_shapes": [[(1, side, side)]],
        "encoder_hidden_states_mask": torch.ones(1, tokens, dtype=torch.long, device=latents.device),
    }


MODELS = {
    # 1024 × 1024 pixels, guidance distilled into the model.
    "flux.1": Model(
        kind=FluxTransformer2DModel,
        true={"guidance_embeds": True},
        tiny={
            "in_channels": 16,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (4, 4, 8),
        },
        latents=(1, 4096, 64),
        tiny_latents=(1, 16, 16),
        text=(512, 4096),
        tiny_text=(6, 32),
        arguments=_flux_arguments,
    ),
    # 81 frames of 832 × 480 pixels.
    "wan2.1-14b": Model(
        kind=WanTransformer3DModel,
        true={},
        tiny={
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "text_dim": 32,
            "freq_dim": 16,
            "ffn_dim": 32,
            "num_layers": 3,
            "rope_max_seq_len": 32,
        },
        latents=(1, 16, 21, 60, 104),
        tiny_latents=(1, 16, 2, 4, 4),
        text=(512, 4096),
        tiny_text=(6, 32),
        arguments=lambda _latents, _config, _tokens: {},
        guidance=5.0,
        time_unit=1.0,
    ),
    # 1328 × 1328 pixels.
    "qwen-image": Model(
        kind=QwenImageTransformer2DModel,
        true={},
        tiny={
            "in_channels": 16,
            "out_channels": 4,
            "num_layers": 3,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "axes_dims_rope": (8, 4, 4),
        },
        latents=(1, 6889, 64),
        tiny_latents=(1, 16, 16),
        text=(256, 3584),
        tiny_text=(6, 16),
        arguments=_qwen_arguments,
        guidance=4.0,
    ),
}


class Sampler:
    """A transformer and a scheduler: all that `omnireuse.enable` asks of a pipeline."""

    def __init__(self, model: Model, *, tiny: bool, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self._model = device, model
        torch.manual_seed(0)
        with device, _default_dtype(dtype):
            self.transformer: Any = model.kind(**(model.tiny if tiny else model.true)).eval()
            self._start = torch.randn(model.tiny_latents if tiny else model.latents)
            tokens, width = model.tiny_text if tiny else model.text
            self._texts = [torch.randn(1, tokens, width) for _ in range(1 if model.guidance is None else 2)]
        self._arguments = model.arguments(self._start, self.transformer.config, tokens)
        self.scheduler = self.new_scheduler()

    def new_scheduler(self) -> FlowMatchEulerDiscreteScheduler:
        """A scheduler without timesteps."""
        return FlowMatchEulerDiscreteScheduler()

    def run(self, steps: int, around: Callable[[int], Any]) -> torch.Tensor:
        """The latents of one generation; `around(step)` gives a context that each step runs in."""
        self.scheduler.set_timesteps(steps, device=self.device)
        return self.denoise(self.scheduler.timesteps, around)

    def denoise(self, timesteps: Iterable[torch.Tensor], around: Callable[[int], Any]) -> torch.Tensor:
        """The loop of `run`, for a scheduler that knows its timesteps."""
        latents = self._start
        for step, timestep in enumerate(timesteps):
            with around(step), torch.no_grad():
                outputs = [self._call(latents, timestep, text) for text in self._texts]
                output = outputs[0]
                if self._model.guidance is not None:
                    output = outputs[1] + self._model.guidance * (outputs[0] - outputs[1])
                latents = self.scheduler.step(output, timestep, latents, return_dict=False)[0]
        return latents

    def timed(self, steps: int, clock: Callable[[], float] = time.perf_counter) -> list[float]:
        """Seconds of every step of a generation, the device waited for."""
        seconds: list[float] = []

        @contextmanager
        def around(_step: int) -> Iterator[None]:
            self.wait()
            began = clock()
            yield
            self.wait()
            seconds.append(clock() - began)

        self.run(steps, around)
        return seconds

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _call(self, latents: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        at = (timestep / self._model.time_unit).expand(1)
        output: torch.Tensor = self.transformer(
            hidden_states=latents, timestep=at, encoder_hidden_states=text, return_dict=False, **self._arguments
        )[0]
        return output


def name_of(device: torch.device) -> str:
    """The name of a GPU, or the kind of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Any:
    """Weights are born in `dtype`: a model of 40 GB is never there in float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
