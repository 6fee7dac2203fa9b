"""What every cache backend is."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch.distributed as dist

from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.validation import check_at_least
from omnireuse.errors import StateError, UnknownNameError, WrongTypeError

__all__ = ["CacheBackend", "StrategyBackend"]

logger = logging.getLogger("omnireuse")


class CacheBackend(ABC):
    """A cache that an engine switches on once and refreshes before each generation.

    A backend implements `enable` and `refresh`; everything else has a default.

    Args:
        config: the options; what they are is the backend's own business.

    Attributes:
        config: the options it was made with.
        enabled: False until `enable` ran, which sets it.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.enabled = False

    @abstractmethod
    def enable(self, pipeline: Any) -> None:
        """Serve this pipeline from now on. Called once, after loading.

        Raises:
            StateError: when enabled already.
            UnsupportedModelError: a pipeline without a model this backend can serve.
        """

    @abstractmethod
    def refresh(self, pipeline: Any, num_inference_steps: int, verbose: bool = True) -> None:
        """Drop every cached tensor, counter and accumulator, and learn the step count. Called before each generation;
        a diffusers pipeline tells its own and needs no call.

        Args:
            pipeline: the enabled one.
            num_inference_steps: steps of the next generation; 0 where they are not known yet and the scheduler will
                tell them.
            verbose: whether to log it.
        """

    def disable(self, pipeline: Any) -> None:
        """Restore the pipeline exactly. Idempotent.

        Raises:
            StateError: enabled, and of a class that does not implement this.
        """
        if self.is_enabled():
            raise StateError(
                f"{type(self).__name__}.disable: this backend cannot restore the pipeline; implement disable in "
                f"{type(self).__name__}, or load the pipeline anew"
            )

    def stats(self) -> dict[str, Any]:
        """Counters since `enable`; empty for a backend that counts nothing."""
        return {}

    def is_enabled(self) -> bool:
        """Whether `enable` ran and `disable` did not."""
        return self.enabled

    def __repr__(self) -> str:
        return f"{type(self).__name__}(config={self.config!r})"


class StrategyBackend(CacheBackend):
    """A backend that is one strategy: subclasses say which handle to open.

    Args:
        config: the options: a `DiffusionCacheConfig`, or a mapping with some of its fields.
        group: the ranks that share the forward's collectives and must decide alike; None where each runs its own model.

    Raises:
        ConfigError: an option out of range.
        UnknownNameError: a key that is no option.
        WrongTypeError: a config of another kind.
    """

    options: ClassVar[tuple[str, ...]] = ()
    """Fields of `DiffusionCacheConfig` that this backend reads."""

    config: DiffusionCacheConfig

    def __init__(
        self, config: DiffusionCacheConfig | Mapping[str, Any], *, group: dist.ProcessGroup | None = None
    ) -> None:
        if isinstance(config, Mapping):
            config = DiffusionCacheConfig.from_dict(config)
        if not isinstance(config, DiffusionCacheConfig):
            raise WrongTypeError(
                f"{type(self).__name__}(config=…): config must be a DiffusionCacheConfig or a mapping, "
                f"got {type(config).__name__}"
            )
        super().__init__(config)
        self._agreement = Agreement(group)
        self.handle: Handle | None = None
        self._pipeline: Any = None

    @classmethod
    def check_options(cls, given: Iterable[str]) -> None:
        """Raise an UnknownNameError for an option that this backend would ignore."""
        for name in given:
            if name not in cls.options:
                raise UnknownNameError(f"option of {cls.__name__}", name, cls.options)

    @classmethod
    def config_of(cls, options: Mapping[str, Any]) -> DiffusionCacheConfig:
        """The config with these options, each of which somebody asked for by name: an order of TaylorSeer turns it on.

        Raises:
            ConfigError: an option out of range.
            UnknownNameError: an option that this backend would ignore.
        """
        asked = dict(options)
        if "taylorseer_order" in asked and "enable_taylorseer" in cls.options:
            asked.setdefault("enable_taylorseer", True)
        config = DiffusionCacheConfig.from_dict(asked)
        cls.check_options(asked)
        return config

    @abstractmethod
    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable the strategy on the pipeline."""

    def enable(self, pipeline: Any) -> None:
        """Serve this pipeline from now on."""
        if self.enabled:
            raise StateError(
                f"{self!r} is enabled already; call disable(pipeline) before enabling it on a pipeline again"
            )
        self.handle = self.open(pipeline, self._agreement)
        self._pipeline = pipeline
        self.enabled = True

    def refresh(self, pipeline: Any, num_inference_steps: int, verbose: bool = True) -> None:
        """Drop all state and learn the step count.

        With 0 the scheduler tells it; `num_inference_steps` of the config counts where there is none.

        Raises:
            StateError: before `enable`, or for a pipeline other than the one enabled.
            ConfigError: a step count below 0.
        """
        if self.handle is None or pipeline is not self._pipeline:
            raise StateError(
                f"{type(self).__name__}.refresh: this pipeline is not enabled; call enable(pipeline) first"
            )
        check_at_least(_Steps(num_inference_steps), "num_inference_steps", 0)
        self.handle.expect(num_inference_steps or self.config.num_inference_steps)
        if verbose:
            ahead = num_inference_steps or "a number not yet known of"
            logger.info("%s: state dropped, %s steps ahead", type(self).__name__, ahead)

    def disable(self, pipeline: Any) -> None:
        """Restore the pipeline exactly; nothing happens where it was not enabled.

        Raises:
            StateError: for a pipeline other than the one enabled.
        """
        if self.handle is None:
            return
        if pipeline is not self._pipeline:
            raise StateError(f"{type(self).__name__}.disable: another pipeline is enabled")
        self.handle.disable()
        self.handle = self._pipeline = None
        self.enabled = False

    def stats(self) -> dict[str, Any]:
        """The summary's figures; empty before `enable`."""
        if self.handle is None:
            return {}
        summary = self.handle.summary()
        return {name: getattr(summary, name) for name in summary.__dataclass_fields__}


class _Steps:
    """Gives the argument of `refresh` the name that its error shows."""

    def __init__(self, num_inference_steps: int) -> None:
        self.num_inference_steps = num_inference_steps
