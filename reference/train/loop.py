"""What every training run here shares: a learning-rate curve, averaged weights, checkpoints and a progress bar."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

log = logging.getLogger("reference.train")


def learning_rate_factor(step: int, num_steps: int, *, warmup: int) -> float:
    """Linear warm-up, then a linear decay to zero at ``num_steps``, as a factor of the peak rate."""
    return min((step + 1) / max(warmup, 1), (num_steps - step) / max(num_steps - warmup, 1))


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """Exponential moving average of ``model``; its first update copies the weights."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


def set_learning_rates(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> None:
    """Scale every group's peak rate, remembered under ``peak_lr`` on the first call, by ``factor``."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor


def descend(loss: torch.Tensor, optimizers: Sequence[torch.optim.Optimizer]) -> torch.Tensor:
    """One step of ``optimizers`` down the gradient of ``loss``, clipped at norm 1; returns the norm before that."""
    loss.backward()
    parameters = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return norm


def save_atomically(value: object, path: Path) -> None:
    """``torch.save`` that never leaves half a file at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(value, part)
    part.replace(path)


class Checkpoint:
    """Where a run goes on from: weights, their average and the optimizers at one step.

    Args:
        path: the file.
        model, average, optimizers: read by `save`, changed by `load`.

    Attributes:
        seconds: that the steps have taken, as `save` was last told or `load` has found.
    """

    def __init__(
        self, path: Path, model: nn.Module, average: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self.path, self.seconds = path, 0.0
        self._parts = {"model": model, "average": average}
        self._optimizers = optimizers

    def load(self) -> int:
        """Take everything from the file; returns the step to go on with, 0 where there is no file."""
        if not self.path.exists():
            return 0
        state = torch.load(self.path, weights_only=True, map_location="cpu")
        self.seconds = float(state.get("seconds", 0.0))
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        log.info("%s: goes on from step %d", self.path.stem, state["step"])
        return int(state["step"])

    def save(self, step: int, seconds: float = 0.0) -> None:
        """Write everything after ``step`` steps, which have taken ``seconds``."""
        self.seconds = seconds
        state: dict[str, object] = {name: part.state_dict() for name, part in self._parts.items()}
        state |= {
            "step": step,
            "seconds": seconds,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        save_atomically(state, self.path)


class Loop:
    """Counts steps from ``start`` to ``num_steps`` with a progress bar, and logs the mean of what `note` was given.

    Args:
        name: shown at the bar.
        num_steps: the step count at which the run ends.
        start: steps already done by the checkpoint that the run continues from.
        log_every: a log line each that many steps.
    """

    def __init__(self, name: str, num_steps: int, *, start: int = 0, log_every: int = 100) -> None:
        self.name, self.num_steps, self.start, self.log_every = name, num_steps, start, log_every
        self._sums: dict[str, torch.Tensor] = {}
        self._count = 0

    def _line(self) -> str:
        """The means since the last line."""
        line = " ".join(f"{key} {float(total) / self._count:.5f}" for key, total in self._sums.items())
        self._sums, self._count = {}, 0
        return line

    def __iter__(self) -> Iterator[int]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]}"),
        )
        with Progress(*columns, refresh_per_second=2) as progress:
            task = progress.add_task(self.name, total=self.num_steps, completed=self.start, last="")
            for step in range(self.start, self.num_steps):
                yield step
                progress.advance(task)
                if (step + 1) % self.log_every == 0 or step + 1 == self.num_steps:
                    line = self._line()
                    progress.update(task, last=line)
                    log.info("%s %d/%d %s", self.name, step + 1, self.num_steps, line)

    def note(self, **values: torch.Tensor) -> None:
        """Add this step's scalars to the next log line's means; read only there, so that no device is waited for."""
        self._count += 1
        for key, value in values.items():
            scalar = value.detach().float()
            self._sums[key] = self._sums[key] + scalar if key in self._sums else scalar


class TimedLoop(Loop):
    """Counts steps until ``seconds`` are used up, those before a checkpoint included, or ``num_steps`` are done.

    Args:
        name: in the log.
        seconds: of all runs together.
        num_steps: at most; no bound by default.
        start: steps done before, and in how many seconds.
        log_every: seconds between log lines.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        *,
        num_steps: int | None = None,
        start: tuple[int, float] = (0, 0.0),
        log_every: float = 10.0,
    ) -> None:
        super().__init__(name, num_steps or 0, start=start[0])
        self.limit, self.seconds_before, self.log_seconds = seconds, start[1], log_every
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds used up."""
        return self.seconds_before + time.monotonic() - self._begun

    def share(self, step: int) -> float:
        """How much of the run is over before ``step``, in 0..1."""
        by_steps = step / self.num_steps if self.num_steps else 0.0
        return min(max(self.seconds / self.limit, by_steps), 1.0)

    def __iter__(self) -> Iterator[int]:
        self._begun = time.monotonic()
        step, said_at, said_step = self.start, self.seconds, self.start
        while self.share(step) < 1:
            yield step
            step += 1
            if self.seconds - said_at >= self.log_seconds or self.share(step) >= 1:
                line = self._line()
                rate = (step - said_step) / max(self.seconds - said_at, 1e-9)
                log.info(
                    "%s step %d, %.0f s of %.0f, %.2f steps/s, %s",
                    self.name, step, self.seconds, self.limit, rate, line,
                )  # fmt: skip
                said_at, said_step = self.seconds, step
