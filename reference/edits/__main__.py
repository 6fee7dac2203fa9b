"""``python -m reference.edits``: draw the parts, train faces-edit and its variant of eight steps, and judge them."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from reference.edits.card import Measured, write_card
from reference.edits.drawing import Drawer, draw_parts
from reference.edits.evaluate import draw_examples, generate, judge, reconstruct, save_sheet, seconds_each
from reference.edits.examples import EXAMPLES, NUM_EXAMPLES, TWO_SHARE, save_examples
from reference.edits.task import held_out_edits
from reference.edits.train import Run, distil_edits, export_edits, new_pool, train_edits
from reference.evaluate import weight_bytes
from reference.load import EDIT_SAMPLING, FEW_STEPS_EDIT_SAMPLING, load_edit_pipeline

log = logging.getLogger("reference.train")

#: Pipeline -> (weights in the training folder, arguments of its calls).
MODELS = {"faces-edit": ("flow.pt", EDIT_SAMPLING), "faces-edit-8": ("distilled.pt", FEW_STEPS_EDIT_SAMPLING)}


def _evaluate(folder: Path, name: str, args: argparse.Namespace) -> None:
    drawer = Drawer(draw_parts(args.run), args.device)
    examples = draw_examples(held_out_edits(args.edits), drawer)
    pipeline = load_edit_pipeline(folder).to(args.device)
    pipeline.set_progress_bar_config(disable=True)
    sampling = dict(MODELS[name][1])
    if args.guidance is not None:
        sampling |= {"negative_prompt": "", "true_cfg_scale": args.guidance}
    made = generate(pipeline, examples, sampling)
    # What the autoencoder leaves of the truth is the most that a pipeline can reach; copies are the least.
    pictures = {"made": made, "best": reconstruct(pipeline, examples.truths), "copies": examples.references[:, 0]}
    figures = {what: judge(examples, shown) for what, shown in pictures.items()}
    for what, judged in figures.items():
        log.info("%s, %d held-out edits, %s: %s", name, args.edits, what, asdict(judged))
    save_sheet(examples, made, args.out / f"{name}.png")
    if args.card:
        seconds = seconds_each(pipeline, examples, sampling)
        measured = Measured(**figures, seconds=seconds, weight_bytes=weight_bytes(pipeline))
        write_card(name, folder, MODELS[name][1], examples, made, measured)


def _train(args: argparse.Namespace) -> None:
    pool = None
    for minutes, steps, train, weights in (
        (args.minutes, args.steps, train_edits, "flow.pt"),
        (args.distil_minutes, args.distil_steps, distil_edits, "distilled.pt"),
    ):
        if minutes > 0:
            pool = pool or new_pool(draw_parts(args.run), args.device, num_people=args.people, seed=args.seed)
            run = Run(
                folder=args.run,
                seconds=60 * minutes,
                num_steps=steps,
                batch_size=args.batch,
                seed=args.seed,
                compile_model=args.compile,
                checkpoint_every=args.checkpoint_seconds,
            )
            train(run, pool)
            if args.run != args.out:
                shutil.copy(args.run / weights, args.out)
    for name, (weights, _) in MODELS.items():
        if (args.run / weights).exists():
            export_edits(args.run / weights, args.run / "models" / name)
            shutil.make_archive(str(args.out / name), "tar", args.run / "models", name)
    for name, (weights, _) in MODELS.items():
        if args.edits and (args.run / weights).exists():
            _evaluate(args.run / "models" / name, name, args)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(prog="python -m reference.edits", description=__doc__)
    parser.add_argument("stage", choices=("parts", "examples", "train", "evaluate"))
    parser.add_argument("--run", type=Path, default=Path("runs", "faces-edit"), help="folder of parts and checkpoints")
    parser.add_argument("--out", type=Path, help="folder of weights, archives, sheets and log (default: --run)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training; 0 goes on with what is there")
    parser.add_argument("--distil-minutes", type=float, default=2.0, help="of the distillation to eight steps")
    parser.add_argument("--steps", type=int, help="of training at most")
    parser.add_argument("--distil-steps", type=int, help="of the distillation at most")
    parser.add_argument("--batch", type=int, default=1024, help="edits a step")
    parser.add_argument("--people", type=int, default=32_768, help="drawn and encoded first, each in 8 versions")
    parser.add_argument("--checkpoint-seconds", type=float, default=60.0)
    parser.add_argument("--compile", action="store_true", help="fuse with torch.compile")
    parser.add_argument("--edits", type=int, default=400, help="held-out edits to judge by")
    parser.add_argument("--guidance", type=float, help="true_cfg_scale of the judged calls (default: none)")
    parser.add_argument("--pipeline", choices=MODELS, default="faces-edit", help="which to evaluate")
    parser.add_argument("--path", type=Path, help="its folder (default: the checkout's)")
    parser.add_argument("--card", action="store_true", help="write README.md and samples.png beside the weights")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.card and (args.device != "cpu" or args.guidance is not None):
        parser.error("--card is of calls as the card shows them, on a CPU: leave --device and --guidance out")
    args.out = args.out or args.run
    for folder in (args.run, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout), logging.FileHandler(args.out / "train.log")]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", handlers=handlers)
    if args.stage == "parts":
        draw_parts(args.run)
    elif args.stage == "examples":
        edits = held_out_edits(NUM_EXAMPLES, two_share=TWO_SHARE)
        save_examples(draw_examples(edits, Drawer(draw_parts(args.run), args.device)), EXAMPLES)
    elif args.stage == "train":
        _train(args)
    else:
        from reference.load import find_edit_pipeline, find_few_steps_edit_pipeline

        find = find_edit_pipeline if args.pipeline == "faces-edit" else find_few_steps_edit_pipeline
        _evaluate(find(args.path), args.pipeline, args)


if __name__ == "__main__":
    main()
