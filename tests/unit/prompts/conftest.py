import torch
from torch import nn


class Encoder(nn.Module):
    """Text in, one row of numbers per character out."""

    def __init__(self, width=4):
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.out = nn.Linear(width, width)

    def forward(self, text):
        return self.out(self.table(torch.tensor([[ord(c) % 256 for c in text.ljust(6)[:6]]])))


class Pipeline:
    """The least that has encode_prompt; counts its encodes."""

    def __init__(self):
        torch.manual_seed(0)
        self.text_encoder = Encoder().eval()
        self.denoiser = nn.Linear(2, 2)
        self.style = "plain"
        self.num_encodes = 0
        self.prompts = []

    @torch.no_grad()
    def encode_prompt(
        self,
        prompt,
        negative_prompt=None,
        scale=1,
        extra=None,
        device=None,
        prompt_embeds=None,
        prompt_embeds_mask=None,
    ):
        """Encode."""
        self.num_encodes += 1
        self.prompts.append(prompt)
        if prompt_embeds is not None:
            return prompt_embeds, None
        negative = None if negative_prompt is None else self.text_encoder(negative_prompt + self.style)
        prompts = prompt if isinstance(prompt, (list, tuple)) else [prompt]
        return torch.cat([self.text_encoder(str(p) + self.style) * float(scale) for p in prompts]), negative
