"""MagCache as engines know it.

Source: "MagCache: Fast Video Generation with Magnitude-Aware Cache", arXiv 2506.09045.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from omnireuse.diffusion.adapters import block_stack_for
from omnireuse.diffusion.cache.base import StrategyBackend
from omnireuse.diffusion.cache.borrowed import borrowed_rows, checkpoint_of, choose_row
from omnireuse.diffusion.cache.opening import Bare, is_extracted, open_blocks
from omnireuse.diffusion.calibration.mag_cache import MagnitudeRecorder
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.policies import MagCache, Never
from omnireuse.diffusion.reuse.runtime.session import denoisers_of
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.validation import check_at_least
from omnireuse.errors import ConfigError, StateError, UnknownNameError, UnsupportedModelError

__all__ = ["MagCacheBackend", "MagCacheConfig", "apply_mag_cache_hook", "borrowed_ratios", "load_ratios"]

Ratios = Sequence[Any]
"""One list of ratios, or one for each branch."""


@dataclass(frozen=True, kw_only=True)
class MagCacheConfig:
    """MagCache on one model.

    Args:
        threshold: accumulated magnitude error at which a step computes, > 0. Raising it reuses more.
        max_skip_steps: longest run of reused steps, ≥ 1.
        retention_ratio: share of the first steps that always compute, in [0, 1).
        num_inference_steps: the step count where no scheduler tells it, ≥ 1.
        mag_ratios: ratios of the steps from the second on, finite and positive: one list for all branches, or one for
            each. None takes the table's for `transformer_type`.
        mag_calibrate: never reuse, and measure the ratios instead.
        transformer_type: class name of the denoiser.

    Raises:
        ConfigError: a value out of range.
        UnknownNameError: no ratios, and none in the table for this type.
    """

    threshold: float = 0.24
    max_skip_steps: int = 5
    retention_ratio: float = 0.1
    num_inference_steps: int = 28
    mag_ratios: Ratios | None = None
    mag_calibrate: bool = False
    transformer_type: str = "FluxTransformer2DModel"

    def __post_init__(self) -> None:
        check_at_least(self, "num_inference_steps", 1)
        if self.mag_ratios is None and not self.mag_calibrate:
            object.__setattr__(self, "mag_ratios", borrowed_ratios(self.transformer_type))
        # The policy owns the ranges; checked here, so that a bad value is met at once.
        object.__setattr__(self, "mag_ratios", self.policy.ratios)

    @property
    def policy(self) -> MagCache:
        """The policy with these settings; ratios of 1 where they are about to be measured."""
        return MagCache(
            threshold=self.threshold,
            max_skip_steps=self.max_skip_steps,
            retention_ratio=self.retention_ratio,
            ratios=_by_branch(((1.0,),) if self.mag_ratios is None else self.mag_ratios),
        )


class MagCacheBackend(StrategyBackend):
    """Reads the `mag_…` fields of its config.

    With `mag_calibrate` it never reuses; after a few generations `calibrated_ratios()` gives what was measured and
    `save_ratios(path)` keeps it.
    """

    options = (
        "mag_calibrate",
        "mag_max_skip_steps",
        "mag_ratios",
        "mag_retention_ratio",
        "mag_threshold",
        "num_inference_steps",
    )
    _recorder: MagnitudeRecorder | None = None

    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable MagCache, or the measurement of its ratios, on the pipeline's denoisers."""
        config = MagCacheConfig(
            threshold=self.config.mag_threshold,
            max_skip_steps=self.config.mag_max_skip_steps,
            retention_ratio=self.config.mag_retention_ratio,
            num_inference_steps=self.config.num_inference_steps or 28,
            mag_ratios=self._ratios_for(pipeline),
            mag_calibrate=self.config.mag_calibrate,
            transformer_type=type(unwrapped(denoisers_of(pipeline)[0])).__name__,
        )
        self._recorder = _recorder_for(pipeline) if config.mag_calibrate else None
        return _open(pipeline, config, self._recorder, agreement)

    def _ratios_for(self, pipeline: Any) -> Ratios | None:
        if self.config.mag_ratios is not None or self.config.mag_calibrate:
            ratios: Ratios | None = self.config.mag_ratios
            return ratios
        return borrowed_ratios(type(unwrapped(denoisers_of(pipeline)[0])).__name__, checkpoint_of(pipeline))

    def calibrated_ratios(self) -> tuple[tuple[float, ...], ...]:
        """The measured ratios of each branch, averaged over the generations since `enable`.

        Raises:
            StateError: calibration is off, or nothing was generated yet.
        """
        if self._recorder is None or self.handle is None:
            raise StateError("calibrated_ratios: enable the backend with mag_calibrate=True and generate first")
        branches = {event.branch for event in self.handle.events}
        return self._recorder.ratios(max(len(branches), 1))

    def save_ratios(self, path: Path) -> None:
        """Write the measured ratios as JSON, with the model they belong to; `load_ratios` reads them back."""
        model = type(unwrapped(denoisers_of(self._pipeline)[0])).__name__
        record = {"transformer_class": model, "ratios": self.calibrated_ratios(), "source": "measured"}
        part = path.with_suffix(path.suffix + ".part")
        part.write_text(json.dumps(record, indent=1), encoding="utf-8")
        part.replace(path)


def load_ratios(path: Path) -> tuple[tuple[float, ...], ...]:
    """What `save_ratios` wrote.

    Raises:
        ConfigError: a file cut off or of another kind.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return tuple(tuple(float(ratio) for ratio in branch) for branch in record["ratios"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"load_ratios({str(path)!r}): not a file of MagCache ratios: {error!r}") from error


def apply_mag_cache_hook(
    module: torch.nn.Module, config: MagCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """MagCache on a denoiser without a pipeline. Steps are told apart by the call's `timestep` argument.

    The first generation has `config.num_inference_steps`; `handle.expect(n)` announces another count.
    """
    pipeline = Bare(module)
    handle = _open(pipeline, config, _recorder_for(pipeline) if config.mag_calibrate else None, Agreement(group))
    handle.expect(config.num_inference_steps)
    return handle


def _open(pipeline: Any, config: MagCacheConfig, recorder: MagnitudeRecorder | None, agreement: Agreement) -> Handle:
    if recorder is not None:
        strategy = Strategy(policy=Never(), forecaster=recorder, region="blocks")
        return open_blocks(pipeline, strategy, name="mag_cache calibration", agreement=agreement)
    return open_blocks(pipeline, Strategy(policy=config.policy, region="blocks"), name="mag_cache", agreement=agreement)


def _recorder_for(pipeline: Any) -> MagnitudeRecorder:
    if is_extracted(pipeline):
        raise UnsupportedModelError(
            "MagCache calibration needs a declared model; models with extractors take mag_ratios"
        )
    if len(denoisers_of(pipeline)) > 1:
        raise UnsupportedModelError("MagCache calibration measures one denoiser; this pipeline has several")
    stack = block_stack_for(type(unwrapped(denoisers_of(pipeline)[0])).__name__)
    return MagnitudeRecorder(num_streams=len(stack.streams), stream=stack.main_stream)


def borrowed_ratios(transformer_type: str, checkpoint: str = "") -> tuple[tuple[float, ...], ...]:
    """Ratios that others measured for a checkpoint of this class, one tuple for each branch.

    Raises:
        UnknownNameError: none published; the error lists the types and says how to calibrate.
    """
    table = borrowed_rows("magcache_ratios")
    rows = [row for row in table if row["transformer_class"] == transformer_type]
    if not rows:
        hint = "to measure: generate with mag_calibrate=True and take calibrated_ratios()"
        known = {row["transformer_class"] for row in table}
        raise UnknownNameError("transformer type for MagCache ratios", transformer_type, known, hint=hint)
    row = choose_row(rows, checkpoint)
    count = row["branches"]
    return tuple(tuple(row["ratios"][branch::count]) for branch in range(count))


def _by_branch(ratios: Ratios) -> Sequence[Sequence[float]]:
    nested = [ratio for ratio in ratios if isinstance(ratio, Sequence) and not isinstance(ratio, str)]
    return nested if nested and len(nested) == len(ratios) else (ratios,)
