"""``omnireuse.tune``: measure a pipeline before it serves anybody."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tqdm.auto import tqdm

from omnireuse import messages
from omnireuse.errors import ConfigError, StateError
from omnireuse.front import enable
from omnireuse.handle import Handle
from omnireuse.pipelines.bars import without_bar
from omnireuse.pipelines.call import Caller, check_prompts, refuse_reserved
from omnireuse.pipelines.source import Source
from omnireuse.profiles.profile import Profile
from omnireuse.profiles.target import Target
from omnireuse.tuning.budget import JUDGED
from omnireuse.tuning.tuner import Tuner

__all__ = ["tune"]


def tune(
    pipeline: object,
    prompts: Sequence[str],
    *,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    progress: bool = True,
    **call: object,
) -> Profile:
    """Measure a pipeline ahead of time, as `omnireuse.enable` does on its first pictures, and keep the plan.

    Every prompt is computed in full, and trial runs fit and choose a plan. Pipelines with the same weights and call
    arguments then reuse from their first picture on, in this process and in later ones.

    Args:
        pipeline: a pipeline that makes pictures from prompts, with nothing enabled on it. Or the folder of one, its id
            on a hub, "package:function", or a function without arguments that makes one.
        prompts: at least one; three are enough. A quality or a tolerance takes six.
        speedup: all steps divided by computed steps, ≥ 1; half of the steps are computed by default.
        computed_steps: how many steps are computed, ≥ 2.
        quality: PSNR in dB that nine of ten pictures reach, with as few computed steps as that takes.
        tolerance: relative L1 error that nine of ten final latents stay within, in the same way. Give one of the four.
        seed: of the first prompt's noise; the others count on from it.
        device: where a pipeline that is loaded here computes; None for CUDA or MPS if there is one, else the CPU.
        dtype: of a pipeline that is loaded here; None for bfloat16 on CUDA and MPS, else float32.
        progress: whether to show a bar.
        call: arguments of the pipeline's call; give those that you will generate with.

    Returns:
        The profile with the plan. It is kept in the cache folder, and `Profile.save` writes it elsewhere. The plan has
        no weights if nothing was better than the untuned default.

    Raises:
        ConfigError: no prompts or too few, an argument out of range or one that is set here, or a pipeline that cannot
            be loaded.
        UnknownNameError: an argument that the call of the pipeline does not take.
        StateError: reuse is enabled already, or the pipeline cannot be tuned; the message says why.
    """
    check_prompts("tune", prompts)
    refuse_reserved("tune", call)
    target = Target.of("tune", speedup=speedup, computed_steps=computed_steps, quality=quality, tolerance=tolerance)
    source = Source(given=pipeline, device=device, dtype=dtype)
    pipe = source.load()
    caller = Caller(pipe, prompts, seed=seed, call=call)
    with (
        enable(pipe, tune=len(prompts), **target.keywords) as handle,
        without_bar(pipe),
        tqdm(total=len(prompts), desc="tuning", unit="picture", disable=not progress) as bar,
    ):
        _refuse_untuned(handle)
        if target.is_of_results and len(prompts) < JUDGED:
            raise ConfigError(messages.TOO_FEW_PROMPTS, prompts=list(prompts), least=JUDGED, got=len(prompts))
        tuner = handle.extension(Tuner)
        assert tuner is not None, "the pipeline is tuned"
        tuner.measure_all()
        for number in range(len(prompts)):
            caller.result([number])
            bar.update()
            _refuse_untuned(handle)
        if handle.tuning.state == "measuring":
            # The trial runs of a single call come before the next one.
            caller.result([0])
        _refuse_untuned(handle)
        profile = handle.tuned_profile
        assert profile is not None, "the plan is ready"
        return profile


def _refuse_untuned(handle: Handle) -> None:
    if handle.tuning.state in ("off", "waiting", "failed"):
        raise StateError(f"tune: {handle.tuning}; enable(tune=False) reuses without measuring")
