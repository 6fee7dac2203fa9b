"""Small pipelines trained from nothing on scenes that the project draws, so that caches are judged on real sampling.

`load_image_pipeline` returns a plain ``diffusers.FluxPipeline``; `SAMPLING` holds the arguments of its calls.
"""

from omnireuse.reference.load import SAMPLING, load_image_pipeline

__all__ = ["SAMPLING", "load_image_pipeline"]
