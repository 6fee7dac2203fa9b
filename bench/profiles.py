"""Profiles of the reference pipelines, for `python -m bench compare`.

    python -m bench profiles [--case NAME …] [--steps 28 50] [--guidance 6 1] [--prompts 48] [--out FOLDER] [--judge]

One search for each case, on captions that neither training nor the comparison sees: half of them for the search, half
to judge what it found. They lie beside the weights, where the demo finds them too.

With ``--judge`` the plans that are there stay as they are, and are judged anew on the same held-out captions, so that a
profile of an older format says under which conditions it holds.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

import omnireuse
from omnireuse import Profile
from omnireuse.calibration.calibrate import held_out_last
from omnireuse.calibration.runner import PipelineRunner
from omnireuse.cli.calibrate import profile_table
from omnireuse.pipelines.call_arguments import read_argument
from omnireuse.pipelines.source import Source
from omnireuse.profiles.conditions import watch_of
from omnireuse.profiles.origin import Origin, versions
from reference.case import CLIPS, FACES, IMAGES, Case

CASES = {case.name: case for case in (IMAGES, CLIPS, FACES)}
SEED = 3000
"""Of captions and noise."""
SHARES = (0.14, 0.18, 0.25, 0.333, 0.4, 0.5)
"""Budgets, as shares of all steps."""


def main(arguments: list[str] | None = None) -> None:
    """Search and write one profile a case."""
    parser = argparse.ArgumentParser(prog="python -m bench profiles", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=[IMAGES.name, CLIPS.name])
    parser.add_argument("--steps", type=int, nargs="+", default=[28, 50])
    parser.add_argument("--guidance", type=float, nargs="+", default=[6.0, 1.0])
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--judge", action="store_true", help="judge the plans that are there anew")
    parser.add_argument("--out", type=Path, help="in place of the models' own folders")
    options = parser.parse_args(arguments)
    console = Console()
    for name in options.case:
        case = CASES[name]
        folder = (options.out / name if options.out else case.find(None)) / "profiles"
        folder.mkdir(parents=True, exist_ok=True)
        if options.judge:
            for path in sorted(folder.glob("*.json")):
                judged(case, Profile.load(path), console).save(path)
            continue
        prompts = list(map(case.caption, case.held_out(options.prompts, seed=SEED)))
        (folder / "prompts.txt").write_text("\n".join(prompts) + "\n", encoding="utf-8")
        call = {key: value for key, value in case.sampling.items() if key != "num_inference_steps"}
        for steps in options.steps:
            for guidance in options.guidance:
                branches = {} if guidance > 1 else {"negative_prompt": None}
                out = folder / f"{name}-{steps}-{'guided' if guidance > 1 else 'unguided'}.json"
                profile = omnireuse.calibrate(
                    case.find(None),
                    prompts,
                    device="cpu",
                    steps=steps,
                    computed_steps=sorted({max(2, round(share * steps)) for share in SHARES}),
                    held_out=0.5,
                    batch_size=options.prompts // 2,
                    fit_prompts=options.prompts // 2,
                    seed=SEED,
                    **{**call, case.guidance: guidance, **branches},
                )
                profile.save(out)
                console.print(profile_table(profile))


def judged(case: Case, profile: Profile, console: Console) -> Profile:
    """The profile with the PSNR that its plans reach today on the captions that it held out.

    Raises:
        AssertionError: the captions are not those of the profile.
    """
    count, for_search = sum(profile.num_prompts), profile.num_prompts[0]
    captions = list(map(case.caption, case.held_out(count, seed=SEED)))
    # Until version 0.2 the last captions were held out, and not some of each part of the list.
    orders = {_digest(order): order for order in (held_out_last(captions, for_search), captions)}
    assert profile.prompts_digest in orders, "these are other captions"
    prompts = orders[profile.prompts_digest]
    call = {name: read_argument(text) for name, text in profile.call.items()}
    call["num_inference_steps"] = profile.num_inference_steps
    batch = profile.num_prompts[1]
    runner = PipelineRunner(
        Source(given=case.find(None), device="cpu").load(), prompts, call=call, seed=profile.seed, batch_size=batch
    )
    places = range(for_search, count)
    full = runner.full_run(places).pictures
    plans = {}
    for number, plan in profile.plans.items():
        scores = tuple(runner.score(plan.strategy(profile.coordinates), places, full))
        plans[number] = replace(plan, held_out=scores)
        farthest = max(abs(now - before) for now, before in zip(scores, plan.held_out, strict=True))
        console.print(
            f"{case.name}, {number} of {profile.num_inference_steps} steps: {plans[number].expected:.2f} dB now, "
            f"{plan.expected:.2f} before, at most {farthest:.2f} apart"
        )
    conditions = watch_of(runner.pipeline).now()
    return replace(
        profile,
        plans=plans,
        config_digest=conditions.config_digest,
        dtype=conditions.dtype,
        origin=Origin.of(runner.pipeline),
        autocast=conditions.autocast,
        hooks=conditions.hooks,
        guider=conditions.guider,
        versions=versions(),
    )


def _digest(prompts: list[str]) -> str:
    return hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
