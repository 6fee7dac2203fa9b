"""The work of the node *Omnireuse calibrate*: a profile from the sampler of a graph."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from omnireuse.base.records import check_writable
from omnireuse.calibration.calibrate import search
from omnireuse.calibration.options import (
    FIT_PROMPTS,
    Options,
    checked_budgets,
    held_out_last,
    number_searched,
)
from omnireuse.calibration.progress import Progress
from omnireuse.calibration.results import Results
from omnireuse.engines.comfyui.graph import MADE_HERE, Graph, content_of, sampler_name
from omnireuse.engines.comfyui.noise import RunNoise
from omnireuse.engines.comfyui.parts import leaves_noise
from omnireuse.engines.comfyui.runner import GraphRunner
from omnireuse.engines.comfyui.wrappers import OUTER, refuse_other_caches
from omnireuse.engines.settings import KEY
from omnireuse.errors import ConfigError, StateError
from omnireuse.profiles.profile import FEWEST_HELD_OUT, Profile

__all__ = ["calibrate_graph", "profile_text"]

logger = logging.getLogger("omnireuse")

SPEEDUPS = (2, 3, 4)
"""All steps divided by computed steps, of each plan."""
FEWEST_STEPS = 8
"""With fewer, a quarter of them is less than two."""
HELD_OUT = 0.33
FOR_A_PROMISE = 14
"""Prompts of which this share holds out as many as a promise takes."""


def calibrate_graph(graph: Graph, path: Path, tell: Callable[[float, float], None]) -> Profile:
    """Make a profile of the graph's own sampler, and write it.

    Scores are kept beside it in a journal, so that a search that was interrupted goes on after its full runs. A profile
    that is there already and was made with the same settings is returned as it is.

    Args:
        tell: called after each computed call of the model with the full runs so far, and with how many there will be;
            what it raises ends the search.

    Raises:
        ConfigError: an input out of range, or a profile of other settings at this path.
        StateError: reuse is on the model already, or a full run is not finite.
    """
    _check(graph)
    check_writable(path)
    contents = [content_of(each) for each in graph.positive]
    for_search = number_searched(len(contents), HELD_OUT)
    order = held_out_last(range(len(contents)), for_search)
    done = total = 0.0

    def called(runs: float) -> None:
        nonlocal done
        done = runs
        tell(done, max(total, done))

    def report(progress: Progress) -> None:
        nonlocal total
        total = done + progress.runs_left

    runner = GraphRunner(graph, order, called)
    options = Options(
        prompts=[contents[place] for place in order],
        for_search=for_search,
        steps=runner.steps,
        budgets=checked_budgets([int(runner.steps / speedup) for speedup in SPEEDUPS], runner.steps),
        evaluations=1,
        seconds=None,
        batch_size=1,
        fit_prompts=FIT_PROMPTS,
        seed=graph.seed,
        pictures=None,
        call={
            "cfg": graph.cfg,
            "sampler": sampler_name(graph.sampler),
            "sampler options": content_of(getattr(graph.sampler, "extra_options", {})),
            "sigmas": content_of(list(graph.sigmas)),
            "negative": content_of(list(graph.negative)),
            "latent": content_of(graph.latent),
        },
    )
    about = runner.describe(content=True)
    setup = options.setup(about)
    asked = ", ".join(f"{name} {value}" for name, value in setup.items() if not name.endswith(" version"))
    if path.exists():
        return _known(path, MADE_HERE + asked)
    kept = None
    if about.origin.weights is None:
        logger.warning("Omnireuse calibrate: no digest of these weights, so an interrupt loses the search")
    else:
        kept = path.with_name(f"{path.stem}-{hashlib.sha256(repr(setup).encode()).hexdigest()[:8]}.journal")
    with closing(Results(kept, setup)) as results:
        profile = search(options, runner, about, results, report)
    if runner.unfitted:
        logger.warning("Omnireuse calibrate: %s; its plans are those of the Omnireuse node", runner.unfitted)
    profile = msgspec.structs.replace(profile, command=MADE_HERE + asked)
    profile.save(path)
    if kept is not None:
        kept.unlink(missing_ok=True)
    return profile


def _check(graph: Graph) -> None:
    """Raises: as `calibrate_graph`."""
    prompts, steps = len(graph.positive), len(graph.sigmas) - 1
    wrong: tuple[str, object, str, str] | None = None
    if prompts < 2:
        must = "be a list of at least two conditionings, one of which is held out"
        wrong = (
            "positive",
            prompts,
            must,
            "wire Omnireuse prompts into the text encoder",
        )
    elif len(graph.negative) not in (1, prompts):
        wrong = ("negative", len(graph.negative), f"be one conditioning for all prompts, or {prompts}", "wire one")
    elif steps < FEWEST_STEPS:
        wrong = ("steps", max(steps, 0), f"be at least {FEWEST_STEPS}", "sample shorter runs without reuse")
    elif not _falls(graph):
        wrong = ("sigmas", "sigmas that rise or stay", "fall from step to step", "choose another scheduler")
    elif leaves_noise(graph.sigmas, graph.model.get_model_object("model_sampling")):
        must = "end without noise, as a profile is of whole denoisings"
        wrong = ("sigmas", f"sigmas that end at {graph.sigmas[-1]:.3g}", must, "calibrate with all steps")
    elif len(graph.latent) != 1:
        wrong = ("latent_image", f"{len(graph.latent)} latents", "hold one latent", "set its batch size to 1")
    if wrong is not None:
        name, value, must, do = wrong
        raise ConfigError(f"Omnireuse calibrate({name}={value}): {name} must {must}, got {value}; {do}")
    around = graph.model.wrappers.get(OUTER, {})
    refuse_other_caches(around)
    if around.get(KEY):
        raise StateError(
            "Omnireuse calibrate: the model reuses steps already; connect the one before the Omnireuse node"
        )


def _falls(graph: Graph) -> bool:
    noise = RunNoise(graph.sigmas, graph.model.get_model_object("model_sampling"), derivative=True)
    return noise.falls and len(set(noise.sigmas)) == len(noise.sigmas)


def _known(path: Path, command: str) -> Profile:
    profile = Profile.load(path)
    if profile.command != command:
        raise ConfigError(
            f"Omnireuse calibrate(name={path.stem!r}): name must be new where settings are, got that of a profile made "
            f"by {profile.command or 'another calibration'}; give another name, or delete {path}"
        )
    logger.info("%s was calibrated with the same settings before, and is used as it is", path)
    return profile


def profile_text(profile: Profile) -> str:
    """A profile's promises, one plan a line."""
    searched, held_out = profile.num_prompts
    reason = "" if profile.measured is None else profile.measured.unmeasured.get("weights", "")
    lines = [
        f"{profile.model}, {profile.scheduler}, {profile.num_inference_steps} steps: {searched} prompts searched with, "
        f"{held_out} held out; it cost {profile.cost_in_runs:g} full runs",
        *([f"{reason}; the plans are those of the Omnireuse node"] if reason else []),
    ]
    total = profile.num_inference_steps
    for count, plan in sorted(profile.plans.items(), reverse=True):
        # As short as can be, so that asking for the figure gives the plan.
        shown = [round(total / count, digits) for digits in range(6)]
        speedup = next(each for each in shown if each >= 1 and math.floor(total / each + 0.5) == count)
        lines.append(f"speedup {speedup:g}: {count} of {total} steps; {profile.promise(plan)}")
    if held_out < FEWEST_HELD_OUT:
        lines.append(f"{FOR_A_PROMISE} prompts or more give a promise; the more there are, the tighter it is")
    return "\n".join(lines)
