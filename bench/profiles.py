"""Profiles of the reference pipelines, for `python -m bench compare`.

    python -m bench profiles [--case NAME …] [--steps 28 50] [--guidance 6 1] [--prompts 48] [--out FOLDER]

One search for each case, on captions that neither training nor the comparison sees: half of them for the search, half
to judge what it found. They lie beside the weights, where the demo finds them too.
"""

from __future__ import annotations

from rich.console import Console

import omnireuse
from bench._common import new_parser
from omnireuse.cli.calibrate import profile_table
from reference.case import CLIPS, FACES, IMAGES

CASES = {case.name: case for case in (IMAGES, CLIPS, FACES)}
SEED = 3000
"""Of captions and noise."""
SHARES = (0.14, 0.18, 0.25, 0.333, 0.4, 0.5)
"""Budgets, as shares of all steps."""


def main(arguments: list[str] | None = None) -> None:
    """Search and write one profile a case."""
    parser = new_parser("profiles", __doc__)
    parser.add_argument("--case", nargs="+", choices=CASES, default=[IMAGES.name, CLIPS.name])
    parser.add_argument("--steps", type=int, nargs="+", default=[28, 50])
    parser.add_argument("--guidance", type=float, nargs="+", default=[6.0, 1.0])
    parser.add_argument("--prompts", type=int, default=48)
    parser.set_defaults(out=None)  # the models' own folders
    options = parser.parse_args(arguments)
    console = Console()
    for name in options.case:
        case = CASES[name]
        folder = (options.out / name if options.out else case.find(None)) / "profiles"
        folder.mkdir(parents=True, exist_ok=True)
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


if __name__ == "__main__":
    main()
