"""Small pipelines trained from nothing on drawn scenes and people, so that caches are judged on real sampling.

`load_image_pipeline` returns a plain ``diffusers.FluxPipeline``, `load_video_pipeline` a ``diffusers.WanPipeline``,
`load_unet_pipeline` a ``diffusers.StableDiffusionPipeline``, `load_distilled_pipeline` another ``FluxPipeline``,
whose guidance needs no second branch, `load_faces_pipeline` a ``FluxPipeline`` that draws people, and
`load_edit_pipeline` and `load_few_steps_edit_pipeline` a ``FluxKontextPipeline`` each that edits them; `SAMPLING`,
`VIDEO_SAMPLING`, `UNET_SAMPLING`, `DISTILLED_SAMPLING`, `FACES_SAMPLING`, `EDIT_SAMPLING` and
`FEW_STEPS_EDIT_SAMPLING` hold the arguments of their calls.
"""

from reference.load import (
    DISTILLED_SAMPLING,
    EDIT_SAMPLING,
    FACES_SAMPLING,
    FEW_STEPS_EDIT_SAMPLING,
    SAMPLING,
    UNET_SAMPLING,
    VIDEO_SAMPLING,
    load_distilled_pipeline,
    load_edit_pipeline,
    load_faces_pipeline,
    load_few_steps_edit_pipeline,
    load_image_pipeline,
    load_unet_pipeline,
    load_video_pipeline,
)

__all__ = [
    "DISTILLED_SAMPLING",
    "EDIT_SAMPLING",
    "FACES_SAMPLING",
    "FEW_STEPS_EDIT_SAMPLING",
    "SAMPLING",
    "UNET_SAMPLING",
    "VIDEO_SAMPLING",
    "load_distilled_pipeline",
    "load_edit_pipeline",
    "load_faces_pipeline",
    "load_few_steps_edit_pipeline",
    "load_image_pipeline",
    "load_unet_pipeline",
    "load_video_pipeline",
]
