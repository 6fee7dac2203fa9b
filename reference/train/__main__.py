"""``python -m reference.train``: train a reference pipeline from nothing."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from reference.train.distilled import DISTILLED
from reference.train.faces import FACES
from reference.train.image import IMAGES
from reference.train.unet import UNET
from reference.train.video import CLIPS

RECIPES = {recipe.name: recipe for recipe in (IMAGES, CLIPS, UNET, DISTILLED, FACES)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage that the command line names, or all of them."""
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument(
        "--pipeline", choices=RECIPES, default=IMAGES.name, help="each has options of its own: --pipeline NAME --help"
    )
    recipe = RECIPES[which.parse_known_args(argv)[0].pipeline]

    parser = argparse.ArgumentParser(prog="python -m reference.train", description=__doc__, parents=[which])
    parser.add_argument("stage", choices=("all", *recipe.stages, "export"))
    parser.add_argument(
        "--run", type=Path, default=Path("runs", recipe.name), help="folder for checkpoints and the log"
    )
    parser.add_argument("--to", type=Path, default=Path("models", recipe.name), help="where the pipeline is exported")
    parser.add_argument("--seed", type=int, default=0)
    for stage, (_, num_steps) in recipe.stages.items():
        parser.add_argument(f"--{stage}-steps", type=int, default=num_steps)
    parser.add_argument("--scenes", type=int, default=recipe.num_scenes, help="encoded before the flow is trained")
    parser.add_argument("--no-compile", action="store_true", help="train without torch.compile")
    args = parser.parse_args(argv)

    args.run.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=args.run / "train.log", level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    further = {"flow": {"num_scenes": args.scenes, "compile_model": not args.no_compile}}
    for stage, (train, _) in recipe.stages.items():
        if args.stage in ("all", stage):
            num_steps = getattr(args, f"{stage}_steps")
            train(args.run, num_steps=num_steps, seed=args.seed, **further.get(stage, {}))
    if args.stage in ("all", "export"):
        recipe.export(args.run, args.to)


if __name__ == "__main__":
    main()
