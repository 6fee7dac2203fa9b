"""Whether a change of the code leaves every result bit-equal: record pictures before it, compare after it.

    python scripts/same_results.py record out/before.safetensors     # on the code before
    python scripts/same_results.py compare out/before.safetensors    # on the code after

Both reference pipelines run under one strategy of every kind. Record and compare on one machine with the same versions:
bits differ between processors. `--only` takes the names of strategies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file

import omnireuse
from omnireuse import Blend, ErrorControl, Hold, Polynomial, ResidualDiff, Steps, Strategy, TeaCache
from reference.case import CLIPS, IMAGES

STEPS = 14
SCHEDULE = Steps(steps=(0, 1, 2, 3, 5, 7, 10))
RESIDUAL = ResidualDiff(residual_diff_threshold=0.3)
TEA = TeaCache(rel_l1_thresh=0.3)

STRATEGIES: dict[str, dict[str, Any]] = {
    "never": {"policy": "never"},
    "step blend": {"policy": SCHEDULE, "forecaster": Blend()},
    "step polynomial": {"policy": SCHEDULE, "forecaster": Polynomial(order=2)},
    "step output": {"policy": SCHEDULE, "forecaster": Hold(), "prediction_target": "output"},
    "step error polynomial": {"policy": ErrorControl(tolerance=0.5), "forecaster": Polynomial(order=2)},
    "step batch": {
        "backend": Strategy(policy=ErrorControl(tolerance=0.5), forecaster=Blend(), per_sample=False),
    },
    "step half": {"backend": Strategy(policy=SCHEDULE, forecaster=Blend(), history_dtype="bfloat16")},
    "call blend": {"policy": SCHEDULE, "forecaster": Blend(), "region": "call"},
    "call together": {"backend": Strategy(policy=ErrorControl(tolerance=0.5), region="call", shared_cfg_decision=True)},
    "sea cache": {"policy": "sea_cache", "forecaster": Blend()},
    "easy cache": {"policy": "easy_cache", "forecaster": "hold", "region": "call"},
    "blocks": {"policy": TEA, "forecaster": Blend(), "region": "blocks"},
    "blocks output": {"policy": SCHEDULE, "forecaster": Hold(), "region": "blocks", "prediction_target": "output"},
    "tail": {
        "backend": Strategy(
            policy=ResidualDiff(residual_diff_threshold=0.3), forecaster=Blend(), region="tail", last_blocks=1
        ),
    },
}


def _runs(only: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The pictures of every strategy on both pipelines, with and without guidance, all prompts in one batch."""
    for case, count in ((IMAGES, 2), (CLIPS, 1)):
        pipeline = case.load()
        pipeline.set_progress_bar_config(disable=True)
        prompts = [case.caption(scene) for scene in case.held_out(count, seed=11)]
        profiles = case.find(None) / "profiles"
        for name, options in track([*STRATEGIES.items(), ("profile", {})], case.name):
            if only and name not in only:
                continue
            for guidance, kind in ((6.0, "guided"), (1.0, "unguided")):
                steps = STEPS
                if name == "profile":
                    steps, options = 28, {"profile": str(profiles / f"{case.name}-28-{kind}.json")}
                choices = {case.guidance: guidance, "num_inference_steps": steps}
                with omnireuse.enable(pipeline, **options):
                    made = case.generate(pipeline, prompts, [*range(count)], **choices)
                yield f"{case.unit} / {name} / guidance {guidance:g}", torch.from_numpy(made).contiguous()


def main() -> int:
    """Record or compare; exit status 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    found = dict(_runs(given.only))
    if given.action == "record":
        given.file.parent.mkdir(parents=True, exist_ok=True)
        save_file(found, given.file)
        print(f"recorded {len(found)} runs")
        return 0
    known = load_file(given.file)
    different = [name for name, value in found.items() if not torch.equal(known[name], value)]
    for name in different:
        print(f"differs: {name}, by {(known[name] - found[name]).abs().max():.2e} at most")
    print(f"{len(found) - len(different)} of {len(found)} runs are bit-equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
