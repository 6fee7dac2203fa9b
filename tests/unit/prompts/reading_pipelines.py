"""Pipelines that read what they encode with in every way that the cache must notice."""

import functools
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from tests.helpers import prompt_pipelines as tiny


class Encoder(nn.Module):
    """Text in, a row of numbers for each character out."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(128, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(0.5)
        self.register_buffer("shift", torch.zeros(8))
        self.scale, self.extra = 1.0, [torch.ones(8)]
        self.config = SimpleNamespace(power=1)
        self.eval()

    def forward(self, text):
        x = self.table(torch.tensor([[ord(c) % 128 for c in text]]))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (self.norm(self.drop(x)) * self.scale * self.extra[0] + self.shift) ** self.config.power


class Plain:
    def __init__(self):
        self.encoder = Encoder()

    def encode_prompt(self, prompt):
        return self.encoder(prompt)


class TwoDown:
    def __init__(self):
        self.compel = SimpleNamespace(provider=SimpleNamespace(encoder=Encoder()))

    def encode_prompt(self, prompt):
        return self.compel.provider.encoder(prompt)


class Contained:
    def __init__(self):
        self.listed, self.named, self.paired = [Encoder(0)], {"a": Encoder(1)}, (Encoder(2),)

    def encode_prompt(self, prompt):
        return self.listed[0](prompt) + self.named["a"](prompt) + self.paired[0](prompt)


class Configured(Plain):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(inner=SimpleNamespace(template="x{}"), number=1)
        self.options = {"styles": {"names": ["a", "b"]}}

    def encode_prompt(self, prompt):
        text = self.config.inner.template.format(prompt)
        return self.encoder(f"{text} {self.config.number} {self.options['styles']['names']}")


def prefixed(function):
    @functools.wraps(function)
    def wrapper(self, prompt):
        return function(self, self.prefix + prompt)

    return wrapper


class Decorated(Plain):
    prefix = "a"

    @prefixed
    def encode_prompt(self, prompt):
        return self.encoder(prompt)


class Inheriting(Decorated):
    def encode_prompt(self, prompt):
        return super().encode_prompt(prompt) + 1


class Rewriting(Plain):
    def __init__(self):
        super().__init__()
        self.style = "a"

    def encode_prompt(self, prompt):
        self.style = self.style.strip()
        return self.encoder(self.style + prompt)


class Indirect(Plain):
    """Reads through a property, the attributes' dict, a fallback, the class and a global; asks what is there."""

    factor = 1

    def __init__(self):
        super().__init__()
        self.a, self.b, self.inner = 1, 2, SimpleNamespace(c=1)

    @property
    def more(self):
        return self.a + 1

    def __getattr__(self, name):
        if name == "c":
            return self.inner.c
        raise AttributeError(name)

    def encode_prompt(self, prompt):
        number = self.more * vars(self)["b"] * self.c * type(self).factor
        return self.encoder(SEPARATOR.join([prompt, str(number), str(hasattr(self, "flag"))]))


SEPARATOR = "-"


class Branching(Plain):
    def __init__(self):
        super().__init__()
        self.which, self.one, self.other = 0, "x", "y"

    def encode_prompt(self, prompt):
        return self.encoder((self.other if self.which else self.one) + prompt)


class WithTensors(Plain):
    def __init__(self):
        super().__init__()
        self.listed, self.array = [torch.zeros(8)], np.ones(8, dtype=np.float32)

    def encode_prompt(self, prompt):
        return (self.encoder(prompt) + self.listed[0]) * torch.from_numpy(self.array.copy())


class InParts(Plain):
    """Calls layers, a forward and functions of torch in place of the encoder."""

    def encode_prompt(self, prompt):
        ids = torch.tensor([ord(c) for c in prompt])
        return self.encoder.norm(nn.functional.embedding(ids, self.encoder.table.weight)) + self.encoder.forward(prompt)


class Functional(Plain):
    def encode_prompt(self, prompt):
        return nn.functional.embedding(torch.tensor([ord(c) for c in prompt]), self.encoder.table.weight)


class WithDenoiser(Plain):
    def __init__(self):
        super().__init__()
        self.unet = nn.Linear(2, 2)
        self.unet.config = SimpleNamespace(repeats=1)

    def encode_prompt(self, prompt):
        dtype = next(self.unet.parameters()).dtype
        return self.encoder(prompt * self.unet.config.repeats).to(dtype)


class OfModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.bias = Encoder(), nn.Parameter(torch.zeros(8))

    def encode_prompt(self, prompt):
        return self.encoder(prompt) + self.bias


class Tokenizing:
    """With a tokenizer of transformers."""

    def __init__(self):
        self.tokenizer, self.encoder = tiny.tokenizer(), tiny.clip()

    def encode_prompt(self, prompt):
        ids = self.tokenizer(prompt, return_tensors="pt", padding="max_length", max_length=12)["input_ids"]
        return self.encoder(input_ids=ids)[0]


class RawTokenizing:
    """With a tokenizer of the library tokenizers."""

    def __init__(self):
        self.tokenizer, self.encoder = tiny.tokenizer().backend_tokenizer, tiny.clip()

    def encode_prompt(self, prompt):
        return self.encoder(input_ids=torch.tensor([self.tokenizer.encode(prompt).ids]))[0]
