"""``python -m omnireuse.reference.train``: train the reference image pipeline from nothing."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from omnireuse.reference.train.autoencoder import train_autoencoder
from omnireuse.reference.train.export import export_run
from omnireuse.reference.train.flow import train_flow
from omnireuse.reference.train.text import train_text


def main() -> None:
    """Run the stage that the command line names, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m omnireuse.reference.train", description=__doc__)
    parser.add_argument("stage", choices=("all", "autoencoder", "text", "flow", "export"))
    parser.add_argument("--run", type=Path, default=Path("runs/shapes-flux"), help="folder for checkpoints and the log")
    parser.add_argument("--to", type=Path, default=Path("models/shapes-flux"), help="where the pipeline is exported")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--autoencoder-steps", type=int, default=2600)
    parser.add_argument("--text-steps", type=int, default=600)
    parser.add_argument("--flow-steps", type=int, default=2500)
    parser.add_argument("--scenes", type=int, default=48_000, help="scenes encoded before the flow is trained")
    parser.add_argument("--no-compile", action="store_true", help="train without torch.compile")
    args = parser.parse_args()

    args.run.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=args.run / "train.log", level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    if args.stage in ("all", "autoencoder"):
        train_autoencoder(args.run, num_steps=args.autoencoder_steps, seed=args.seed)
    if args.stage in ("all", "text"):
        train_text(args.run, num_steps=args.text_steps, seed=args.seed)
    if args.stage in ("all", "flow"):
        train_flow(
            args.run,
            num_steps=args.flow_steps,
            num_scenes=args.scenes,
            seed=args.seed,
            compile_model=not args.no_compile,
        )
    if args.stage in ("all", "export"):
        export_run(args.run, args.to)


if __name__ == "__main__":
    main()
