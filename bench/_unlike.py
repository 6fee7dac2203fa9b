"""Small models unlike the project's own: without an autoencoder, each with its data, prediction and levels.

`python -m bench._unlike` trains those whose weights are missing (minutes each, on one core). The weights, in half
precision, lie in ``bench/unlike/``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    ConfigMixin,
    DDIMScheduler,
    DiffusionPipeline,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    ModelMixin,
)
from diffusers.configuration_utils import register_to_config
from safetensors.torch import load_file, save_file
from torch import nn

__all__ = ["COUSINS", "Cousin", "load"]

WEIGHTS = Path(__file__).with_name("unlike")
KINDS, WIDTH, DEPTH, HEADS = 8, 80, 4, 4
SIGMA_DATA = 0.5


def _movements(kinds: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Four joints over 96 frames: a gait of the kind's own pace and shape, and pauses. (B, 24, 16)."""
    count, time = len(kinds), torch.linspace(0, 1, 96)
    pace = (2.0 + kinds)[:, None, None] * (0.9 + 0.2 * torch.rand(count, 1, 1, generator=draw))
    begin = torch.rand(count, 4, 1, generator=draw)
    size = 0.4 + 0.6 * torch.rand(count, 4, 1, generator=draw)
    wave = torch.sin(2 * math.pi * (pace * time + begin))
    sharp = torch.where((kinds % 2 == 0)[:, None, None], wave, torch.tanh(4 * wave))
    pause = torch.sigmoid((time - torch.rand(count, 1, 1, generator=draw)) * 40)
    return (size * sharp * pause).unfold(-1, 4, 4).permute(0, 2, 1, 3).reshape(count, 24, 16)


def _flags(kinds: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """16 × 16 pixels of flat colours: a ground and a rectangle or disc in the kind's colour. (B, 16, 48)."""
    count, grid = len(kinds), torch.linspace(-1, 1, 16)
    palette = torch.tensor([[1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, -1]]).float()
    ground = torch.rand(count, 1, 1, 1, generator=draw) * 1.2 - 1
    place, size = torch.rand(2, count, 2, 1, 1, generator=draw).mul(torch.tensor([1.0, 0.3]).view(2, 1, 1, 1, 1))
    down, across = grid.view(1, 16, 1) - place[:, 0] + 0.5, grid.view(1, 1, 16) - place[:, 1] + 0.5
    half = 0.3 + size[:, 0]
    is_disc = (down.square() + across.square()) < half.square()
    is_box = (down.abs() < half) & (across.abs() < 0.25 + size[:, 1])
    inside = torch.where((kinds < 4).view(-1, 1, 1), is_disc, is_box)[:, None]
    return _patches(torch.where(inside, palette[kinds % 4][..., None, None], ground.expand(-1, 3, 16, 16)))


def _cloth(kinds: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """16 × 16 pixels of woven threads of the kind's direction, with grain of all frequencies. (B, 16, 48)."""
    count, grid = len(kinds), torch.linspace(-1, 1, 16)
    angle = (kinds * math.pi / KINDS + 0.15 * torch.randn(count, generator=draw)).view(-1, 1, 1)
    along = torch.cos(angle) * grid.view(1, 16, 1) + torch.sin(angle) * grid.view(1, 1, 16)
    shape, phase = 4 + 8 * torch.rand(count, 1, 1, generator=draw), 6.3 * torch.rand(count, 1, 1, generator=draw)
    threads = torch.cos(shape * along + phase)[:, None]
    colour = 0.2 + 0.5 * torch.rand(count, 3, 1, 1, generator=draw)
    spectrum = torch.fft.rfft2(torch.randn(count, 3, 16, 16, generator=draw))
    frequency = (torch.fft.fftfreq(16)[:, None].square() + torch.fft.rfftfreq(16)[None].square()).sqrt()
    grain = torch.fft.irfft2(spectrum / (0.1 + 16 * frequency), s=(16, 16))
    return _patches(colour * threads + 0.5 * grain)


def _patches(pictures: torch.Tensor) -> torch.Tensor:
    count = len(pictures)
    return pictures.reshape(count, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(count, 16, 48)


class Block(nn.Module):
    """Attention and a perceptron, scaled and shifted by what is known of noise and kind."""

    def __init__(self) -> None:
        super().__init__()
        self.known = nn.Parameter(torch.zeros(6, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.queries, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        """x (B, tokens, width); known (B, 6, width)."""
        shift, scale, gate, shift2, scale2, gate2 = (known + self.known)[:, :, None].unbind(1)
        inner = self.norms[0](x) * (1 + scale) + shift
        parts = self.queries(inner).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts.unbind(0)).transpose(1, 2).flatten(2)
        x = x + gate * self.out(mixed)
        inner = self.norms[1](x) * (1 + scale2) + shift2
        return x + gate2 * self.narrow(nn.functional.gelu(self.wide(inner)))


class Denoiser(ModelMixin, ConfigMixin):  # type: ignore[misc]  # diffusers is untyped
    """A transformer of tokens with noise and kind: (latents, noise in -1…1, kinds) -> output."""

    @register_to_config
    def __init__(self, tokens: int, features: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(features, WIDTH), nn.Linear(WIDTH, features)
        self.places = nn.Parameter(torch.randn(tokens, WIDTH) * 0.1)
        self.kinds = nn.Embedding(KINDS + 1, WIDTH)
        self.time = nn.Sequential(nn.Linear(32, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.known = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, latents: torch.Tensor, noise: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        """latents (B, tokens, features); noise and kinds (B,); kind `KINDS` is none."""
        angles = noise[:, None] * 2.0 ** torch.linspace(-1, 6, 16)
        known = self.time(torch.cat((angles.sin(), angles.cos()), 1)) + self.kinds(kinds)
        parts = self.known(known).unflatten(-1, (6, WIDTH))
        x = self.enter(latents) + self.places
        for block in self.blocks:
            x = block(x, parts)
        return self.leave(self.norm(x))


@dataclass(frozen=True, kw_only=True)
class Cousin:
    """A model, and how it is asked.

    Attributes:
        tokens, features: of its latents.
        data: (kinds (B,), generator) -> clean samples.
        kind: of the prediction: "flow", "v" or "edm".
        guidance: the usual one.
        scheduler: its own.
        steps: of its training.
    """

    tokens: int
    features: int
    data: Callable[[torch.Tensor, torch.Generator], torch.Tensor]
    kind: str
    guidance: float
    scheduler: Callable[[], Any]
    steps: int = 1000


COUSINS: dict[str, Cousin] = {
    "movements": Cousin(
        tokens=24,
        features=16,
        data=_movements,
        kind="flow",
        steps=2500,
        guidance=4.0,
        scheduler=lambda: FlowMatchEulerDiscreteScheduler(shift=1.0),
    ),
    "flags": Cousin(
        tokens=16,
        features=48,
        data=_flags,
        kind="v",
        guidance=3.0,
        scheduler=lambda: DDIMScheduler(
            beta_schedule="squaredcos_cap_v2",
            prediction_type="v_prediction",
            clip_sample=False,
            timestep_spacing="trailing",
        ),
    ),
    "cloth": Cousin(
        tokens=16,
        features=48,
        data=_cloth,
        kind="edm",
        guidance=2.0,
        scheduler=lambda: EulerDiscreteScheduler(use_karras_sigmas=True),
    ),
}
"""Movements: a flow in one dimension. Flags: v under a cosine schedule. Cloth: EDM's preconditioning and levels."""


class CousinPipeline(DiffusionPipeline):  # type: ignore[misc]  # diffusers is untyped
    """`pipe(kinds, latents=…, num_inference_steps=…, guidance_scale=…)` returns samples (B, tokens, features)."""

    def __init__(self, transformer: Any, scheduler: Any, kind: str) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)
        self.kind = kind

    @torch.no_grad()
    def __call__(
        self, kinds: torch.Tensor, latents: torch.Tensor, num_inference_steps: int = 28, guidance_scale: float = 1.0
    ) -> torch.Tensor:
        """Samples of these kinds from this noise."""
        self.scheduler.set_timesteps(num_inference_steps)
        x = latents * getattr(self.scheduler, "init_noise_sigma", 1.0)
        for place, timestep in enumerate(self.progress_bar(self.scheduler.timesteps)):
            given = x if self.kind == "flow" else self.scheduler.scale_model_input(x, timestep)
            noise = self._noise(place, timestep)
            output = self._output(given, noise, kinds)
            if guidance_scale > 1:
                without = self._output(given, noise, torch.full_like(kinds, KINDS))
                output = without + guidance_scale * (output - without)
            x = self.scheduler.step(output, timestep, x, return_dict=False)[0]
        return x

    def _noise(self, place: int, timestep: Any) -> float:
        if self.kind != "edm":
            return float(timestep) / 1000
        if hasattr(self.scheduler, "sigmas") and len(self.scheduler.sigmas) > place:
            return float(self.scheduler.sigmas[place])
        kept = float(self.scheduler.alphas_cumprod[int(timestep)])
        return math.sqrt((1 - kept) / kept)

    def _output(self, given: torch.Tensor, noise: float, kinds: torch.Tensor) -> Any:
        if self.kind != "edm":
            return self.transformer(given, torch.full((len(kinds),), noise), kinds)
        whole = given * math.sqrt(1 + noise**2)
        skip, out, enter = preconditioning(torch.tensor(noise))
        made = self.transformer(whole * enter, torch.full((len(kinds),), math.log(noise) / 4), kinds)
        return (whole - skip * whole - out * made) / noise


def preconditioning(sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """c_skip, c_out and c_in ("Elucidating the Design Space of Diffusion-Based Generative Models", table 1)."""
    total = sigma.square() + SIGMA_DATA**2
    return SIGMA_DATA**2 / total, sigma * SIGMA_DATA / total.sqrt(), 1 / total.sqrt()


def load(name: str) -> Any:
    """The pipeline of a cousin, trained first if its weights are not there."""
    cousin = COUSINS[name]
    denoiser = Denoiser(tokens=cousin.tokens, features=cousin.features)
    kept = WEIGHTS / f"{name}.safetensors"
    if not kept.is_file():
        train(name, kept)
    denoiser.load_state_dict({key: value.float() for key, value in load_file(kept).items()})
    pipe = CousinPipeline(denoiser.eval(), cousin.scheduler(), cousin.kind)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train(name: str, target: Path, *, batch: int = 96) -> None:
    """Train a cousin and write its averaged weights in half precision."""
    cousin = COUSINS[name]
    steps = cousin.steps
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    denoiser: Any = Denoiser(tokens=cousin.tokens, features=cousin.features)
    average = {key: value.clone() for key, value in denoiser.state_dict().items()}
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    kept = DDIMScheduler(beta_schedule="squaredcos_cap_v2").alphas_cumprod
    losses = []
    with torch.enable_grad():
        for step in range(steps):
            rate = min(1.0, step / 100) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
            optimizer.param_groups[0]["lr"] = 2e-3 * rate
            kinds = torch.randint(KINDS, (batch,), generator=draw)
            clean = cousin.data(kinds, draw)
            asked = torch.where(torch.rand(batch, generator=draw) < 0.15, KINDS, kinds)
            noise = torch.randn(clean.shape, generator=draw)
            loss = _loss(denoiser, cousin.kind, clean, noise, asked, kept, draw)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(denoiser.parameters(), 1.0)
            optimizer.step()
            share = min(0.998, step / (step + 10))
            for key, value in denoiser.state_dict().items():
                average[key].lerp_(value, 1 - share)
            losses.append(loss.item())
            if (step + 1) % 250 == 0:
                print(f"{name}: step {step + 1}, loss {sum(losses[-250:]) / 250:.4f}", file=sys.stderr, flush=True)
    target.parent.mkdir(exist_ok=True)
    save_file({key: value.half().contiguous() for key, value in average.items()}, target)


def _loss(
    denoiser: Any,
    kind: str,
    clean: torch.Tensor,
    noise: torch.Tensor,
    asked: torch.Tensor,
    kept: torch.Tensor,
    draw: torch.Generator,
) -> torch.Tensor:
    count = len(clean)
    if kind == "flow":
        time = torch.sigmoid(1.2 * torch.randn(count, generator=draw))[:, None, None]
        made = denoiser((1 - time) * clean + time * noise, time.flatten(), asked)
        return nn.functional.mse_loss(made, noise - clean)
    if kind == "v":
        timesteps = torch.randint(1000, (count,), generator=draw)
        alpha, sigma = kept[timesteps].sqrt()[:, None, None], (1 - kept[timesteps]).sqrt()[:, None, None]
        made = denoiser(alpha * clean + sigma * noise, timesteps / 1000, asked)
        return nn.functional.mse_loss(made, alpha * noise - sigma * clean)
    sigma = (1.4 * torch.randn(count, generator=draw) - 0.8).exp()[:, None, None]
    skip, out, enter = preconditioning(sigma)
    whole = clean + sigma * noise
    made = denoiser(whole * enter, sigma.flatten().log() / 4, asked)
    return nn.functional.mse_loss(made, (clean - skip * whole) / out)


if __name__ == "__main__":
    for each in COUSINS:
        load(each)
