"""``omnireuse.calibrate``: from a few full runs to the best schedule for each budget."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from omnireuse.calibration.options import (
    FIT_PROMPTS,
    Options,
    checked_budgets,
    checked_prompts,
    checked_steps,
    held_out_last,
    number_searched,
)
from omnireuse.calibration.progress import Progress, ProgressBar, Tracker
from omnireuse.calibration.runner import PipelineRunner
from omnireuse.calibration.search import Search
from omnireuse.hooks.denoisers import describe
from omnireuse.pipelines.source import Source
from omnireuse.profiles.conditions import watch_of
from omnireuse.profiles.origin import Origin
from omnireuse.profiles.profile import Profile

__all__ = ["calibrate"]

logger = logging.getLogger("omnireuse")


def calibrate(
    pipeline: Any,
    prompts: Sequence[str],
    *,
    steps: int | None = None,
    num_inference_steps: int | None = None,
    computed_steps: Iterable[int] | None = None,
    held_out: float = 0.33,
    batch_size: int = 1,
    fit_prompts: int = FIT_PROMPTS,
    seed: int = 0,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    pictures: Callable[[Any], Any] | None = None,
    progress: bool = True,
    watch: Callable[[Progress], None] | None = None,
    **call: Any,
) -> Profile:
    """Search the best schedule for each budget of computed steps, on the pipeline's own runs.

    The full runs show how alike the outputs of all steps are, and with that how much error each schedule leaves. So
    schedules are planned without further runs. A few runs then fit the weights, where the scheduler allows it, and
    decide between plans where there are several. The results are evaluated on prompts that the search has not seen.

    Args:
        pipeline: a pipeline that makes images or clips from prompts, with nothing enabled on it. Or the folder of one,
            its id on a hub, "package:function", or a function without arguments that makes one.
        prompts: at least two, best a few dozen; every few of them, one is held out.
        steps: denoising steps of a run, ≥ 4; the default is 28.
        num_inference_steps: another name of `steps`.
        computed_steps: budgets to search for, each from 2 to `steps`; None for 1.5 to 4 times fewer than all.
        held_out: share of the prompts that the search does not see, in (0, 1); at least one prompt is held out. A
            promise of quality needs five, and is the tighter the more there are.
        batch_size: prompts in a call.
        fit_prompts: how many of the prompts for the search each schedule is tried on, ≥ 1, rounded up to whole calls.
            The same runs fit its weights.
        seed: of the noise. The same seed finds the same profile.
        device: where a pipeline that is loaded here computes; None for CUDA or MPS if there is one, else the CPU.
        dtype: "bfloat16", "float16" or "float32" for a pipeline that is loaded here; None for bfloat16 on CUDA and MPS,
            else float32.
        pictures: from what the call returns to one array for each prompt, (height, width, channels) in 0…1, a clip with
            its frames first; None for results in the form of diffusers. Pipelines that take `output_type` get "np".
        progress: whether to show a bar, on stderr or in the notebook.
        watch: called with each `Progress`.
        call: further arguments of the pipeline's call, guidance above all.

    Returns:
        The profile. After an interrupt it holds what was found, with `complete` False.

    Raises:
        ConfigError: too few prompts, an argument out of range or one that is set here (`prompt`, `generator`,
            `output_type`, `return_dict`), or a pipeline that cannot be loaded or whose results cannot safely be read as
            pictures.
        UnknownNameError: an argument that the call of the pipeline does not take.
        StateError: reuse is enabled already, or a full run is not finite.
        KeyboardInterrupt: interrupted before anything was found.
    """
    num_steps = checked_steps(steps, num_inference_steps, call)
    texts = checked_prompts(prompts)
    for_search = number_searched(len(texts), held_out)
    options = Options(
        prompts=held_out_last(texts, for_search),
        for_search=for_search,
        steps=num_steps,
        budgets=checked_budgets(computed_steps, num_steps),
        batch_size=batch_size,
        fit_prompts=fit_prompts,
        seed=seed,
        call=call,
    )
    source = Source(given=pipeline, device=device, dtype=dtype)
    with ProgressBar(shown=progress) as bar:
        runner = PipelineRunner(
            source.load(),
            options.prompts,
            call=options.full_call,
            seed=seed,
            batch_size=batch_size,
            pictures=pictures,
            known=tuple(inspect.signature(calibrate).parameters),
        )
        conditions, origin = watch_of(runner.pipeline).now(), Origin.of(runner.pipeline)

        def report(state: Progress) -> None:
            bar(state)
            if watch is not None:
                watch(state)

        text = f"{describe(runner.pipeline)}; {options.text}"
        logger.info("calibrate: %s", text)
        search = Search(options, runner, Tracker(text, options.most_runs, report))
        search.run_in_full()
        search.find_best()
        search.evaluate()
        return search.profile(conditions, origin)
