"""What quantised weights and activations leave of reuse, before tuning and after it.

    python -m bench quantised [--held "int8 weights" …] [--budgets 28:14] [--prompts 6] [--draws 2]

shapes-flux with guidance, each way of holding its weights against its own full run: PSNR in dB on held-out captions.
Eight-bit integers are torchao's; floats are emulated: weights and activations are rounded to `torch.float8_e4m3fn` with
a scale for each row or token, and to the values of four-bit floats with a scale for each 16 of a row (E2M1 of the OCP
Microscaling formats, in NVFP4's groups, here with scales in full precision).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from bench._common import Row, Rows, new_table, parser_of, record_of
from bench._player import Player
from bench.tune import add

CASE, RUN = "shapes-flux", "shift 1"
METHODS = ("fewer", "hold", "untuned", "tuned 3")
LARGEST = 448.0
"""Of torch.float8_e4m3fn."""
FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of E2M1."""
GROUP = 16
Rounding = Callable[[torch.Tensor], torch.Tensor]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``quantised.json``, and show a table."""
    parser = parser_of("quantised", __doc__, [CASE], prompts=6, guidance=False)
    parser.add_argument("--held", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--budgets", nargs="+", default=["28:14"], help="steps:computed steps")
    parser.add_argument("--draws", type=int, default=2, help="draws of the first three pictures")
    show(record_of("quantised", parser.parse_args(arguments), measure)["rows"], Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Measure what is missing of each way."""
    draws = [(method, draw) for method in METHODS for draw in range(options.draws if "tuned " in method else 1)]
    for held, budget in track(list(itertools.product(options.held, options.budgets)), "quantised"):
        Player.pipelines.clear()  # the weights are changed in place
        steps, computed = map(int, budget.split(":"))
        key = {"held": held, "case": CASE, "run": RUN, "guided": True, "steps": steps, "computed": computed}
        add(rows, key, draws, prompts=options.prompts, draws=options.draws, prepare=WAYS[held])
    Player.pipelines.clear()


def _with_torchao(config: str) -> Callable[[torch.nn.Module], None]:
    def change(model: torch.nn.Module) -> None:
        from torchao import quantization

        quantization.quantize_(model, getattr(quantization, config)())

    return change


def _eight_bits(values: torch.Tensor) -> torch.Tensor:
    """As eight-bit floats, with one scale for each row."""
    scale = values.abs().amax(-1, keepdim=True).clamp_min(1e-12) / LARGEST
    return (values / scale).to(torch.float8_e4m3fn).to(values.dtype) * scale


def _four_bits(values: torch.Tensor) -> torch.Tensor:
    """As four-bit floats, with one scale for each group of a row."""
    groups = values.unflatten(-1, (-1, GROUP)) if values.shape[-1] % GROUP == 0 else values.unsqueeze(-2)
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-12) / FOUR_BITS[-1]
    magnitudes = torch.tensor(FOUR_BITS, dtype=values.dtype)
    nearest = torch.bucketize(groups.abs() / scale, (magnitudes[1:] + magnitudes[:-1]) / 2)
    return (magnitudes[nearest] * groups.sign() * scale).reshape(values.shape)


def _with_floats(rounded: Rounding) -> Callable[[torch.nn.Module], None]:
    """Weights and inputs of every linear layer, rounded."""

    def round_inputs(_: torch.nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (rounded(given[0]), *given[1:])

    def change(model: torch.nn.Module) -> None:
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight.data = rounded(layer.weight.data)
                layer.register_forward_pre_hook(round_inputs)

    return change


WAYS: dict[str, Callable[[torch.nn.Module], None]] = {
    "float32": lambda _: None,
    "int8 weights": _with_torchao("Int8WeightOnlyConfig"),
    "int8 weights and activations": _with_torchao("Int8DynamicActivationInt8WeightConfig"),
    "fp8 weights and activations": _with_floats(_eight_bits),
    "fp4 weights and activations": _with_floats(_four_bits),
}


def show(rows: list[Row], console: Console) -> None:
    """Mean and lowest of each method."""
    budgets = dict.fromkeys((row["steps"], row["computed"]) for row in rows)
    for steps, computed in budgets:
        table = new_table(f"dB at {computed} of {steps} steps: mean (lowest)", "held", *METHODS)
        for held in dict.fromkeys(row["held"] for row in rows):
            cells = []
            for method in METHODS:
                wanted = (held, steps, computed, method)
                each = [
                    value
                    for row in rows
                    if (row["held"], row["steps"], row["computed"], row["method"]) == wanted
                    for value in row["each"]
                ]
                cells.append(f"{np.mean(each):.1f} ({min(each):.0f})" if each else "–")
            table.add_row(held, *cells)
        console.print(table)


if __name__ == "__main__":
    main()
