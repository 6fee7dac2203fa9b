"""L2P: a skipped step is a weighted sum of all steps before it, with weights learnt for each step.

Source: "Beyond Fixed Formulas: Data-Driven Linear Predictor for Efficient Diffusion Models", arXiv 2604.26365, and its
public code (https://github.com/Aredstone/L2P-Cache, FLUX, since July 2026): the least squares on the denoiser's outputs
of full runs, the start at the last step's value, Adam for 200 epochs at a learning rate of 0.01. Ours: one prompt an
update, while the code takes all of them at once; and evenly spaced steps behind a warm-up, while the code has finished
schedules for 50 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import omnireuse
from omnireuse.forecasters.base import combine
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, lazily, reuse
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers.calibrating import full_runs
from omnireuse_lab.peers.step_memory import StepMemory

__all__ = ["L2P", "learnt_weights"]

PROMPTS = 24
EPOCHS = 200


def learnt_weights(values: Sequence[torch.Tensor], *, epochs: int = EPOCHS, rate: float = 0.01) -> list[list[float]]:
    """Weights of all earlier steps for each step: row t has t of them.

    Args:
        values: outputs of full runs for each branch, shape (steps, prompts, …).
    """
    # All that the squared error depends on: inner products between steps, one matrix for each prompt.
    rows = [value.flatten(2).double() for value in values]
    products = torch.stack([torch.einsum("ipf,jpf->pij", row, row) for row in rows]).sum(0)
    products = products / products.diagonal(dim1=1, dim2=2).mean()
    steps = products.shape[1]
    earlier = torch.ones(steps, steps, dtype=torch.float64).tril(-1)
    with torch.enable_grad():
        weights = torch.diag(torch.ones(steps - 1, dtype=torch.float64), -1).requires_grad_()
        optimizer = torch.optim.Adam([weights], lr=rate)
        for _ in range(epochs):
            for inner in products:
                left = torch.eye(steps, dtype=torch.float64) - weights * earlier
                loss = (left @ inner * left).sum() / steps
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return [weights.detach()[step, :step].tolist() for step in range(steps)]


@dataclass(frozen=True, kw_only=True)
class _Learnt(omnireuse.Forecaster):
    weights: tuple[tuple[float, ...], ...]

    def start(self, branch: int = 0) -> StepMemory:
        return StepMemory(lambda values, step: combine(self.weights[step], values), len(self.weights))


def _calibrate(work: Workload) -> _Learnt:
    return _Learnt(weights=tuple(map(tuple, learnt_weights(full_runs(work, "call")[0]))))


def _options(learnt: _Learnt, every: int, warmup: int) -> dict[str, Any]:
    policy = omnireuse.EveryNth(every=every, warmup=warmup)
    return {"policy": policy, "forecaster": learnt, "region": "call", "prediction_target": "output", "axis": "steps"}


def _grid(subject: Subject) -> Iterator[Setting]:
    make = lazily(subject, PROMPTS, _calibrate, _options)
    for warmup in (1, 3, 6):
        for interval in (2, 3, 4, 5):
            options = make(interval, warmup)
            yield reuse("L2P", options, interval=interval, warmup=warmup, prompts=PROMPTS)


L2P = Method(key="l2p", name="L2P, calibrated", family="peer", grid=_grid)
