"""The pipeline that is compared on, what is asked of it, and how its pictures are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnireuse.errors import ConfigError
from omnireuse.pipelines.caller import Caller, without_bar
from omnireuse.pipelines.pictures import Picture
from omnireuse.pipelines.signature import Signature, is_modular, refuse_reserved

__all__ = ["GUIDANCE", "Picture", "Subject", "guided_call", "own_guidance"]

GUIDANCE = ("true_cfg_scale", "guidance_scale")
"""Names of the argument that sets guidance. Where a pipeline has both, the second is what a distilled model is told and
costs no second branch."""

SET_HERE = {
    "num_inference_steps": "steps= says how many the full run has, and floors take fewer",
    "callback_on_step_end": "what a method keeps is looked at after every step",
}
"""Arguments of the call that a comparison sets itself, beside those that are always set, and why."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One pipeline at one number of steps and one guidance.

    Args:
        name: for the record.
        pipeline: a pipeline that makes images or clips from prompts.
        steps: denoising steps of the full run.
        guidance: for the record; what sets it stands in `call`.
        prompts: not empty.
        seed: of the first prompt's noise; the others count on from it.
        call: arguments of every call beside prompt, steps and noise.
        checks: for each prompt, what tells which of its attributes a picture shows; empty where nothing can.
        batch_size: prompts a call, where a method decides nothing by what it sees.
        as_pictures: from what the call returns to one array a prompt, (height, width, channels) in 0…1, a clip with its
            frames first; None where the result is read as pipelines of diffusers return it.

    Raises:
        ConfigError: no prompts, another number of checks, or an argument of the call that is set here.
        UnknownNameError: an argument that the call does not take.
    """

    name: str
    pipeline: Any
    steps: int
    guidance: float
    prompts: tuple[str, ...]
    seed: int
    call: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Callable[[Picture], Mapping[str, bool]], ...] = ()
    batch_size: int = 1
    as_pictures: Callable[[Any], Any] | None = None
    _caller: Caller = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("Subject(prompts): prompts must hold at least one")
        if self.checks and len(self.checks) != len(self.prompts):
            raise ConfigError(
                f"Subject(checks): checks must be as many as the {len(self.prompts)} prompts, got {len(self.checks)}"
            )
        refuse_reserved("compare", self.call, **SET_HERE)
        caller = Caller(
            self.pipeline,
            self.prompts,
            seed=self.seed,
            call=self.call,
            batch_size=self.batch_size,
            pictures=self.as_pictures,
        )
        object.__setattr__(self, "_caller", caller)

    def pictures(self, numbers: Sequence[int], steps: int, *, strict: bool = False, **extra: Any) -> list[Picture]:
        """One picture for each of these prompts, all in one call.

        Args:
            numbers: places of the prompts.
            steps: of the run.
            strict: whether values outside of 0…1 are refused, as they must be in the full run, or else clipped.
            extra: arguments of this call alone.

        Raises:
            ConfigError: a result that cannot safely be read as pictures.
        """
        with without_bar(self.pipeline):
            return self._caller.pictures(numbers, strict=strict, num_inference_steps=steps, **extra)

    def accepts(self, argument: str) -> bool:
        """Whether the pipeline's call has an argument of this name."""
        return argument in self._caller.signature.defaults


def guided_call(pipeline: Any, guidance: float) -> dict[str, Any]:
    """The arguments that sample with classifier-free guidance of this strength; 1 is none.

    Raises:
        ConfigError: a pipeline whose call takes no guidance.
    """
    known = Signature.of(pipeline).defaults
    name = next((name for name in GUIDANCE if name in known), None)
    if name is None:
        remedy = "set its guider instead, and leave guidance out" if is_modular(pipeline) else "leave guidance out"
        raise ConfigError(
            f"compare(guidance={guidance:g}): {type(pipeline).__name__} takes neither {' nor '.join(GUIDANCE)}; "
            f"{remedy}"
        )
    call: dict[str, Any] = {name: guidance}
    if "negative_prompt" in known and guidance > 1.0:
        call["negative_prompt"] = ""
    return call


def own_guidance(pipeline: Any, call: Mapping[str, Any]) -> float:
    """The strength of guidance that the pipeline samples with unless told otherwise; 1 where it does not say."""
    defaults = Signature.of(pipeline).defaults
    name = next((name for name in GUIDANCE if name in defaults), None)
    found = getattr(getattr(pipeline, "guider", None), "guidance_scale", 1.0)
    if name is not None:
        found = call.get(name, defaults[name])
    return float(found) if isinstance(found, (int, float)) else 1.0
