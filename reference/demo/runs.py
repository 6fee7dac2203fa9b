"""The runs of a demo: their colours, and their decisions as strips."""

from __future__ import annotations

from dataclasses import dataclass

from reference.demo.record import Demo, Sample

__all__ = ["ShownRun", "axis_of", "runs_of", "strip"]


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """One way of making the pictures of a case.

    Attributes:
        name: for people.
        role: "reference" (computes everything), "cache" or "baseline" (fewer steps, no cache).
        tone: its colour; a baseline has that of the first cache that it costs as much as.
        samples: one for each prompt.
        best: whether the page is about it.
    """

    name: str
    role: str
    tone: str
    samples: tuple[Sample, ...]
    best: bool = False


def runs_of(demo: Demo) -> tuple[ShownRun, ...]:
    """The full run and then the points of a case, in their order."""
    spare = iter(("first", "second", "third"))
    tones: dict[int, str] = {}
    for place, point in enumerate(demo.case.points):
        if point.family != "baseline":
            tones[place] = next(spare, "muted") if place else "highlight"
            if (baseline := demo.baseline_of(place)) is not None:
                tones.setdefault(baseline, tones[place])
    return (
        ShownRun(name="full", role="reference", tone="full", samples=demo.full),
        *(
            ShownRun(
                name=point.method,
                role="baseline" if point.family == "baseline" else "cache",
                tone=tones.get(place, "muted"),
                samples=demo.samples[place],
                best=place == 0,
            )
            for place, point in enumerate(demo.case.points)
        ),
    )


def axis_of(demo: Demo) -> int:
    """Steps that the decisions of all runs fit on: more than `steps` where a solver calls the model more often."""
    decisions = (each for row in demo.samples for sample in row for each in sample.decisions)
    return max(demo.case.steps, 1 + max((each.step for each in decisions), default=0))


def strip(sample: Sample) -> list[tuple[str, list[tuple[bool, str]]]]:
    """For each branch its name, and for each step whether it was reused and in words why.

    A run that decides nothing computes every step; its strip has one cell a step.
    """
    if not sample.decisions:
        steps = round(sample.computed_steps)
        return [("", [(False, f"step {step + 1} of {steps}: computed") for step in range(steps)])]
    steps = 1 + max(each.step for each in sample.decisions)
    branches: dict[str, list[tuple[bool, str]]] = {}
    for each in sample.decisions:
        # A step in which a branch was not called keeps its place, so that all strips share one axis.
        cells = branches.setdefault(each.branch, [(True, f"step {step + 1}: not called") for step in range(steps)])
        words = f"step {each.step + 1}: {'reused' if each.reused else 'computed'} ({each.reason})"
        words += "" if each.drift is None else f", drift {each.drift:.3g}"
        words += "" if each.error is None else f", forecast error {each.error:.2g}"
        cells[each.step] = (each.reused, words)
    return [("" if len(branches) == 1 else branch, cells) for branch, cells in branches.items()]
