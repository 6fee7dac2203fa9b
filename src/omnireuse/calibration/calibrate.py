"""``omnireuse.calibrate``: from a few full runs to the best schedule for each budget."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
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
from omnireuse.calibration.results import Results
from omnireuse.calibration.runner import PipelineRunner
from omnireuse.calibration.runs import Description, Runner
from omnireuse.calibration.search import Search
from omnireuse.pipelines.source import Source
from omnireuse.profiles.profile import Profile

__all__ = ["calibrate", "search"]

logger = logging.getLogger("omnireuse")


def calibrate(
    pipeline: Any,
    prompts: Sequence[str],
    *,
    steps: int | None = None,
    num_inference_steps: int | None = None,
    computed_steps: Iterable[int] | None = None,
    held_out: float = 0.33,
    evaluations: int = 1,
    seconds: float | None = None,
    batch_size: int = 1,
    fit_prompts: int = FIT_PROMPTS,
    seed: int = 0,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    pictures: Callable[[Any], Any] | None = None,
    journal: str | os.PathLike[str] | None = None,
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
        evaluations: most schedules tried for each budget, ≥ 1. The first is the plan; up to five others are plans under
            other assumptions, tried where one promises a tenth of a dB more. For the smallest budget, up to three
            plans are tried in any case, to find how fast errors grow.
        seconds: wall-clock limit of the search; the best so far is returned then.
        batch_size: prompts in a call.
        fit_prompts: how many of the prompts for the search each schedule is tried on, ≥ 1, rounded up to whole calls.
            The same runs fit its weights.
        seed: of the noise. The same seed finds the same profile.
        device: where a pipeline that is loaded here computes; None for CUDA or MPS if there is one, else the CPU.
        dtype: "bfloat16", "float16" or "float32" for a pipeline that is loaded here; None for bfloat16 on CUDA and MPS,
            else float32.
        pictures: from what the call returns to one array for each prompt, (height, width, channels) in 0…1, a clip with
            its frames first; None for results in the form of diffusers. Pipelines that take `output_type` get "np".
        journal: a file that keeps scores as they come. The same search with the same journal goes on where it was
            interrupted, after its full runs. One process at a time may use it.
        progress: whether to show a bar, on stderr or in the notebook.
        watch: called with each `Progress`.
        call: further arguments of the pipeline's call, guidance above all.

    Returns:
        The profile. After an interrupt it holds what was found, with `complete` False.

    Raises:
        ConfigError: too few prompts, an argument out of range or one that is set here (`prompt`, `generator`,
            `output_type`, `return_dict`), a pipeline that cannot be loaded or whose results cannot safely be read as
            pictures, or the journal of another search.
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
        evaluations=evaluations,
        seconds=seconds,
        batch_size=batch_size,
        fit_prompts=fit_prompts,
        seed=seed,
        pictures=pictures,
        call=call,
    )
    source = Source(given=pipeline, device=device, dtype=dtype)
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(shown=progress))
        known = tuple(inspect.signature(calibrate).parameters)
        runner = PipelineRunner(
            source.load(),
            options.prompts,
            call=options.full_call,
            seed=seed,
            batch_size=batch_size,
            pictures=pictures,
            known=known,
        )
        about = runner.describe(content=journal is not None)
        kept = stack.enter_context(closing(Results(journal, {} if journal is None else options.setup(about))))

        def report(state: Progress) -> None:
            bar(state)
            if watch is not None:
                watch(state)

        return search(options, runner, about, kept, report)


def search(
    options: Options, runner: Runner, about: Description, results: Results, report: Callable[[Progress], None]
) -> Profile:
    """The whole search, as `calibrate`, with whatever makes its runs."""
    text = f"{about.text}; {options.text}"
    logger.info("calibrate: %s", text)
    parts = Search(options, runner, results, Tracker(text, results, options.most_runs, report))
    parts.run_in_full()
    parts.find_best()
    parts.evaluate()
    return parts.profile(about)
