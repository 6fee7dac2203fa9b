"""A small autoregressive multimodal engine in which the caches of `omnireuse.core` are proven.

The caches know nothing of it: it talks to them as vLLM would.
"""

from omnireuse.reference.engine.config import EngineConfig
from omnireuse.reference.engine.engine import Engine
from omnireuse.reference.engine.model import TinyOmniModel
from omnireuse.reference.engine.request import Request, Result, image_tokens

__all__ = ["Engine", "EngineConfig", "Request", "Result", "TinyOmniModel", "image_tokens"]
