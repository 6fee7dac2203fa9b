"""A tiny omni model with random weights: a vision encoder, a thinker that reads and answers, a talker that speaks."""

from __future__ import annotations

import inspect

import torch
from transformers import DynamicCache, GPTNeoXConfig, GPTNeoXForCausalLM, SiglipVisionConfig, SiglipVisionModel

from omnireuse.errors import ConfigError

__all__ = ["IMAGE_TOKEN", "KeyValues", "TinyOmniModel"]

#: Stands in a prompt for each embedding of an image.
IMAGE_TOKEN = 1

_CACHE = "cache" if "cache" in inspect.signature(GPTNeoXForCausalLM.forward).parameters else "past_key_values"
"""The argument for keys and values: transformers 5.24 renamed it."""

# Legend: T tokens, W width of the thinker, L layers, H heads, D width of a head.
KeyValues = torch.Tensor
"""Keys and values of some tokens, (L, 2, T, H, D)."""


class TinyOmniModel(torch.nn.Module):
    """Random weights from `seed`, in double precision.

    The same seed gives the same model. Double precision throughout, because arithmetic depends on the shapes of a call
    (a matrix product may add up in another order): the differences stay near 1e-14 and never turn a greedy choice.
    GPT-NeoX, because Llama's norm and eager softmax go through single precision whatever the weights are.

    Args:
        seed: decides the weights.

    Attributes:
        image_size: height and width of an image in pixels.
        num_image_embeds: embeddings of one image.
        hidden_size: width of the thinker.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.image_size, self.num_image_embeds, self.hidden_size, self.vocab_size = 32, 16, 48, 128
        vision = SiglipVisionConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
            image_size=self.image_size, patch_size=8,
        )  # fmt: skip
        vision.vision_use_head = False  # patches, not one pooled vector
        thinker = _decoder(hidden_size=self.hidden_size, vocab_size=self.vocab_size)
        talker = _decoder(hidden_size=32, vocab_size=64)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.vision = SiglipVisionModel(vision)
            self.to_thinker = torch.nn.Linear(vision.hidden_size, self.hidden_size)
            self.thinker = GPTNeoXForCausalLM(thinker)
            self.to_talker = torch.nn.Linear(2 * self.hidden_size, talker.hidden_size)
            self.talker = GPTNeoXForCausalLM(talker)
        self.double().eval().requires_grad_(False)

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """(L, H, D) of the thinker."""
        config = self.thinker.config
        return config.num_hidden_layers, config.num_attention_heads, config.hidden_size // config.num_attention_heads

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        """Encode one image (3, height, width) to (num_image_embeds, W).

        Raises:
            ConfigError: an image of another size.
        """
        if tuple(pixels.shape) != (3, self.image_size, self.image_size):
            raise ConfigError(f"image: must be of shape (3, {self.image_size}, {self.image_size}), got {pixels.shape}")
        patches = self.vision(pixel_values=pixels[None].double()).last_hidden_state[0]
        return _as_tensor(self.to_thinker(patches))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embed tokens (T,) to (T, W)."""
        return _as_tensor(self.thinker.get_input_embeddings()(token_ids))

    def think(self, embeds_TW: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Run the thinker over the next tokens; returns their hidden states (T, W), and `cache` grows by T."""
        output = self.thinker.base_model(inputs_embeds=embeds_TW[None], use_cache=True, **{_CACHE: cache})
        return _as_tensor(output.last_hidden_state[0])

    def next_token(self, hidden_W: torch.Tensor) -> int:
        """Choose the next token greedily, never the image's placeholder."""
        logits = self.thinker.get_output_embeddings()(hidden_W)
        logits[IMAGE_TOKEN] = -torch.inf
        return int(logits.argmax())

    def speak(self, hidden_TW: torch.Tensor, embeds_TW: torch.Tensor, num_codes: int) -> list[int]:
        """Run the talker over what the thinker saw and thought of the whole sequence; returns codec tokens."""
        cache, codes = DynamicCache(), []
        inputs = self.to_talker(torch.cat([hidden_TW, embeds_TW], dim=-1))
        for _ in range(num_codes):
            logits = self.talker(inputs_embeds=inputs[None], use_cache=True, **{_CACHE: cache}).logits[0, -1]
            codes.append(int(logits.argmax()))
            inputs = self.talker.get_input_embeddings()(torch.tensor(codes[-1:]))
        return codes


def make_cache(past: KeyValues) -> DynamicCache:
    """Build the cache that `think` continues from."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(past if past.shape[2] else ()):
        cache.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], layer)
    return cache


def read_cache(cache: DynamicCache, start: int) -> KeyValues:
    """Return the keys and values of the tokens from `start` on."""
    layers = [torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers]
    return torch.stack(layers)[:, :, :, start:].transpose(2, 3)


def _decoder(*, hidden_size: int, vocab_size: int) -> GPTNeoXConfig:
    # A wide initial range: with the usual one a random model answers the same whatever it is shown.
    return GPTNeoXConfig(
        hidden_size=hidden_size, intermediate_size=2 * hidden_size, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=vocab_size, max_position_embeddings=2048, initializer_range=0.3, tie_word_embeddings=False,
        attn_implementation="sdpa",
    )  # fmt: skip


def _as_tensor(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value
