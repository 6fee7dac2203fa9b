"""A small autoregressive multimodal engine in which the caches of `omnireuse.core` are proven.

The caches know nothing of it: it talks to them as vLLM would.
"""

from omnireuse_engines.vllm.engine.config import EngineConfig
from omnireuse_engines.vllm.engine.engine import Engine
from omnireuse_engines.vllm.engine.model import TinyOmniModel
from omnireuse_engines.vllm.engine.request import Request, Result, image_tokens

__all__ = ["Engine", "EngineConfig", "Request", "Result", "TinyOmniModel", "image_tokens"]
