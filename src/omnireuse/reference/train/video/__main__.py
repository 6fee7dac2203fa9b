"""``python -m omnireuse.reference.train.video``: train the reference video pipeline from nothing."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from omnireuse.reference.train.video.autoencoder import refine_decoder, train_autoencoder
from omnireuse.reference.train.video.export import export_run
from omnireuse.reference.train.video.flow import train_flow


def main() -> None:
    """Run the stage that the command line names, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m omnireuse.reference.train.video", description=__doc__)
    parser.add_argument("stage", choices=("all", "autoencoder", "flow", "decoder", "export"))
    parser.add_argument("--run", type=Path, default=Path("runs/shapes-wan"), help="folder for checkpoints and the log")
    parser.add_argument("--to", type=Path, default=Path("models/shapes-wan"), help="where the pipeline is exported")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--autoencoder-steps", type=int, default=3600)
    parser.add_argument("--flow-steps", type=int, default=1600)
    parser.add_argument("--decoder-steps", type=int, default=600)
    parser.add_argument("--scenes", type=int, default=12_000, help="clips encoded before the flow is trained")
    parser.add_argument("--no-compile", action="store_true", help="train without torch.compile")
    args = parser.parse_args()

    args.run.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=args.run / "train.log", level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    if args.stage in ("all", "autoencoder"):
        train_autoencoder(args.run, num_steps=args.autoencoder_steps, seed=args.seed)
    if args.stage in ("all", "flow"):
        train_flow(
            args.run,
            num_steps=args.flow_steps,
            num_scenes=args.scenes,
            seed=args.seed,
            compile_model=not args.no_compile,
        )
    if args.stage in ("all", "decoder"):
        refine_decoder(args.run, num_steps=args.decoder_steps, seed=args.seed)
    if args.stage in ("all", "export"):
        export_run(args.run, args.to)


if __name__ == "__main__":
    main()
