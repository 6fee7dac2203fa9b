"""The baselines of every cache: fewer steps of the same solver, its own timesteps chosen well, and stronger solvers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import omnireuse
from omnireuse.errors import UnsupportedModelError
from omnireuse_lab.compare.methods.base import Kept, Method, Setting, Subject, call_text, unchanged

__all__ = ["BASELINES", "fewer_steps", "stronger_solver"]

SHARES = (0.72, 0.5, 0.36, 1 / 3, 0.25)
POWERS = (1.0, 1.35, 1.7, 2.2)


def fewer_steps(count: int) -> Setting:
    """The plain pipeline with so many uniform steps."""
    return Setting(
        settings={"num_inference_steps": count},
        call=call_text("pipe", "prompt", num_inference_steps=count),
        enable=unchanged,
        steps=count,
    )


def _counts(subject: Subject) -> list[int]:
    """`SHARES` of the steps in whole steps, at least two."""
    return sorted({max(round(subject.workload.steps * share), 2) for share in SHARES}, reverse=True)


def _fewer_steps(subject: Subject) -> Iterator[Setting]:
    return map(fewer_steps, _counts(subject))


def _own_timesteps(subject: Subject) -> Iterator[Setting]:
    # Holding the raw output is Euler's method on the computed timesteps alone.
    @contextmanager
    def enable(pipeline: Any, policy: omnireuse.Spread) -> Iterator[Kept]:
        with omnireuse.enable(pipeline, policy=policy, forecaster="hold", prediction_target="output"):
            yield lambda: 0

    for count in _counts(subject):
        for power in POWERS:
            policy = omnireuse.Spread(num_computed=count, power=power)
            timesteps = sorted(policy.schedule(subject.workload.steps))
            yield Setting(
                settings={"num_timesteps": count, "power": power, "steps": " ".join(map(str, timesteps))},
                call=call_text("pipe", "prompt", sigmas=f"those of steps {timesteps}"),
                enable=partial(enable, policy=policy),
            )


def stronger_solver(scheduler: Any, name: str) -> Any:
    """A multistep solver of diffusers, of second order, for the same trajectories as `scheduler`'s, shift included.

    Args:
        name: "UniPCMultistepScheduler" or "DPMSolverMultistepScheduler".
    """
    import diffusers

    config = dict(scheduler.config)
    if "FlowMatch" not in type(scheduler).__name__ and config.get("prediction_type") != "flow_prediction":
        raise UnsupportedModelError(f"{name}: the pipeline's {type(scheduler).__name__} is not one of flow matching")

    class Solver(getattr(diffusers, name)):  # type: ignore[misc]  # a base by its name
        def set_timesteps(self, num_inference_steps: int, device: Any = None, mu: float | None = None) -> None:
            # Flux gives every scheduler its mu; one without dynamic shifting refuses it.
            shift = {"mu": mu} if self.config.use_dynamic_shifting else {}
            super().set_timesteps(num_inference_steps, device=device, **shift)

    kept = ("num_train_timesteps", "use_dynamic_shifting", "time_shift_type")
    return Solver(
        **{key: config[key] for key in kept if key in config},
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=config.get("flow_shift", config.get("shift", 1.0)),
    )


def _solver(name: str, subject: Subject) -> Iterator[Setting]:
    @contextmanager
    def enable(pipeline: Any) -> Iterator[Kept]:
        pipeline.scheduler = stronger_solver(pipeline.scheduler, name)
        yield lambda: 0

    made = f"pipe.scheduler = {name}(prediction_type='flow_prediction', use_flow_sigmas=True, flow_shift=…)"
    for count in _counts(subject):
        settings = {"num_inference_steps": count, "solver_order": 2}
        call = f"{made}; pipe(prompt, num_inference_steps={count})"
        yield Setting(settings=settings, call=call, enable=enable, steps=count)


BASELINES = tuple(
    Method(key=key, name=name, family="baseline", grid=grid)
    for key, name, grid in (
        ("fewer-steps", "fewer uniform steps", _fewer_steps),
        ("own-timesteps", "best of its own timesteps", _own_timesteps),
        ("unipc", "UniPC", partial(_solver, "UniPCMultistepScheduler")),
        ("dpm-solver", "DPM-Solver++", partial(_solver, "DPMSolverMultistepScheduler")),
    )
)
