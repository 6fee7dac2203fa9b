"""A small autoregressive multimodal engine in which the caches of `omnireuse.core` are proven.

The caches know nothing of it: it talks to them as vLLM would.
"""

from omnireuse_vllm.engine.config import EngineConfig
from omnireuse_vllm.engine.engine import Engine
from omnireuse_vllm.engine.model import TinyOmniModel
from omnireuse_vllm.engine.request import Request, Result, image_tokens

__all__ = ["Engine", "EngineConfig", "Request", "Result", "TinyOmniModel", "image_tokens"]
