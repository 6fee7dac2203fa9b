"""ReCache: a small network, told the budget, draws schedules; REINFORCE makes the good ones likely.

Source: "Learning Budget-Aware Caching Schedules via REINFORCE", arXiv 2606.06060: a perceptron from the budget to a
score for each step, schedules drawn by Plackett-Luce without replacement, the reward of fidelity to full runs, one
policy for all budgets and the best-scored steps at the end. Its code is not public. Ours: the network's size, the
reward (minus the logarithm of the squared error; the paper adds a perceptual score), the mean of a group of draws as
the baseline, and far fewer draws. The last velocity is held, as with the other schedules here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from omnireuse_lab.peers.calibrating import HELD, ScheduleTrials, searched

__all__ = ["RECACHE", "learnt_schedules", "log_likelihood"]

UPDATES = 18
DRAWS = 6
RATE = 0.03


def learnt_schedules(
    error: Callable[[Sequence[int]], float], steps: int, counts: Sequence[int], *, updates: int = UPDATES
) -> dict[int, tuple[int, ...]]:
    """For each number of computed steps the schedule that the policy prefers; the first and the last step are computed.

    Args:
        error: of a schedule, at least 0.
        counts: numbers of computed steps, each ≥ 3; updates take them in turns.
        updates: of the policy, with `DRAWS` schedules each.
    """
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, steps - 2))
        optimizer = torch.optim.Adam(network.parameters(), lr=RATE)

        def scores(count: int) -> torch.Tensor:
            found: torch.Tensor = network(torch.tensor([count / steps]))
            return found

        for update in range(updates):
            count = counts[update % len(counts)]
            given = scores(count)
            drawn = [_drawn(given.detach(), count - 2) for _ in range(DRAWS)]
            errors = [error([0, *(1 + draw).tolist(), steps - 1]) for draw in drawn]
            rewards = -torch.tensor(errors).clamp_min(1e-12).log()
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            likely = torch.stack([log_likelihood(given, draw) for draw in drawn])
            optimizer.zero_grad()
            (-(advantages * likely).mean()).backward()
            optimizer.step()
        best = {count: scores(count).detach().topk(count - 2).indices + 1 for count in counts}
    return {count: (0, *sorted(chosen.tolist()), steps - 1) for count, chosen in best.items()}


def _drawn(scores: torch.Tensor, count: int) -> torch.Tensor:
    """As many places, without replacement, in the order in which they were drawn (the Gumbel trick)."""
    return (scores - torch.empty_like(scores).exponential_().log()).topk(count).indices


def log_likelihood(scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Of drawing these places in this order."""
    total = scores.new_zeros(())
    left = torch.zeros_like(scores)
    for place in order.tolist():
        total = total + (scores + left).log_softmax(0)[place]
        left = left.index_fill(0, torch.tensor([place]), -math.inf)
    return total


def _search(trials: ScheduleTrials, steps: int, counts: Sequence[int]) -> dict[int, tuple[int, ...]]:
    return learnt_schedules(trials.error, steps, counts)


RECACHE = searched(
    "recache",
    "ReCache",
    _search,
    prompts=1,
    options=HELD,
    draws=UPDATES * DRAWS,
)
