"""The encoders of `prompt_pipelines`, by the name that reports of faults import them from."""

from tests.helpers.prompt_pipelines import bare, decoder, gemma, tokenizer

__all__ = ["bare", "decoder", "gemma", "tokenizer"]
