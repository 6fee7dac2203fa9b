"""Options of TeaCache on one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from omnireuse.base.validation import Positive, check_fields
from omnireuse.named.options import Coefficients
from omnireuse.named.published import published_coefficients

__all__ = ["TeaCacheConfig", "published_coefficients"]


@dataclass(frozen=True)
class TeaCacheConfig:
    """TeaCache on one model.

    Args:
        rel_l1_thresh: accumulated relative L1 change at which a step is computed, finite and > 0. Raising it reuses
            more; the paper's models gave about 1.5x at 0.2 with minimal loss, 1.8x at 0.4, 2.0x at 0.6 with a
            visible loss.
        coefficients: exactly five finite numbers, highest power first; None takes the published ones for
            `transformer_type`.
        transformer_type: class name of the denoiser.

    Raises:
        ConfigError: the threshold or the coefficients are out of range.
        UnknownNameError: no coefficients are given, and none are published for this type.
    """

    rel_l1_thresh: Positive = 0.2
    # A list is read back as a list, and has no hash.
    coefficients: Coefficients | None = field(default=None, hash=False)
    transformer_type: str = "QwenImageTransformer2DModel"

    def __post_init__(self) -> None:
        if self.coefficients is None:
            object.__setattr__(self, "coefficients", published_coefficients(self.transformer_type))
        check_fields(self)
