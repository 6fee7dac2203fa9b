"""A profile as HTML, for notebooks."""

from __future__ import annotations

from html import escape

from omnireuse.base.validation import counted
from omnireuse.profiles.conditions import UNKNOWN
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.profile import Profile
from omnireuse.summary.html import card, step_strip

__all__ = ["profile_html"]

HEADS = ("steps computed", "fewer steps", "mean, held out", "nine of ten reach", "steps: computed and forecast")
NOTE = (
    "PSNR is measured against the full run. What nine of ten new pictures of the same kind reach is a lower bound from "
    "the held-out prompts, at a confidence of 95 %; quality= goes by it."
)


def profile_html(profile: Profile) -> str:
    """A table with a row for each number of computed steps, and the steps as a strip."""
    searched, held_out = profile.num_prompts
    about = (
        f"{counted(profile.num_inference_steps, 'step')} with {profile.scheduler}; searched with "
        f"{counted(searched, 'prompt')} and judged on {held_out} held out, on {profile.created}"
        + ("" if profile.complete else "; the search was not finished")
    )
    unknown = "" if profile.conditions is not None else f" Nothing is promised: {escape(UNKNOWN)} (calibrate anew)."
    head = "".join(f'<th style="text-align:left;font-weight:500;padding:.2em 1em .2em 0">{each}</th>' for each in HEADS)
    rows = "".join(_row(profile, count, plan) for count, plan in sorted(profile.plans.items(), reverse=True))
    return card(
        f"Profile of {profile.model}",
        f'<div style="opacity:.75">{escape(about)}</div>'
        '<div style="overflow-x:auto">'
        '<table style="border-collapse:collapse;margin-top:.5em;font-size:1em;background:none">'
        f"<tr>{head}</tr>{rows}</table></div>"
        f'<div style="margin-top:.4em;font-size:.9em;opacity:.75">{NOTE}{unknown}</div>',
    )


def _row(profile: Profile, count: int, plan: Plan) -> str:
    total = profile.num_inference_steps
    computed = {step % total for step in plan.steps}
    cells = (
        f"{count} of {total}",
        f"{total / count:.2f}×",
        *plan.shown,
        step_strip([float(step in computed) for step in range(total)]),
    )
    cell = '<td style="text-align:left;padding:.2em 1em .2em 0;font-variant-numeric:tabular-nums">{}</td>'
    return f"<tr>{''.join(cell.format(each) for each in cells)}</tr>"
