"""A small autoregressive multimodal engine in which the caches of `omnireuse.core` are proven.

The caches know nothing of it: it talks to them as vLLM would.
"""

from reference.engine.config import EngineConfig
from reference.engine.engine import Engine
from reference.engine.model import TinyOmniModel
from reference.engine.request import Request, Result, image_tokens

__all__ = ["Engine", "EngineConfig", "Request", "Result", "TinyOmniModel", "image_tokens"]
