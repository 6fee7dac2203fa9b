"""Small pipelines trained from nothing on scenes that the project draws, so that caches are judged on real sampling.

`load_image_pipeline` returns a plain ``diffusers.FluxPipeline`` and `load_video_pipeline` a ``diffusers.WanPipeline``;
`SAMPLING` and `VIDEO_SAMPLING` hold the arguments of their calls.
"""

from reference.load import SAMPLING, VIDEO_SAMPLING, load_image_pipeline, load_video_pipeline

__all__ = ["SAMPLING", "VIDEO_SAMPLING", "load_image_pipeline", "load_video_pipeline"]
