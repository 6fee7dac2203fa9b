"""The interface of cache backends, and the backend behind every named step cache."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from omnireuse import messages
from omnireuse.base.validation import Index, check_value, kind_error
from omnireuse.errors import StateError
from omnireuse.handle import Handle
from omnireuse.named.options import DiffusionCacheConfig
from omnireuse.named.step_caches import NamedCache

__all__ = ["CacheBackend", "StepCacheBackend"]

logger = logging.getLogger("omnireuse")


class CacheBackend(ABC):
    """A cache that an engine enables once and refreshes before each generation.

    A backend implements `enable` and `refresh`; everything else has a default.

    Args:
        config: the options, in whatever form the backend defines.

    Attributes:
        config: the options.
        enabled: False until `enable` ran, which sets it.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.enabled = False

    @abstractmethod
    def enable(self, pipeline: Any) -> None:
        """Serve this pipeline from now on. Called once, after loading.

        Raises:
            StateError: the backend is enabled already.
            UnsupportedModelError: the pipeline has no model that this backend can serve.
        """

    @abstractmethod
    def refresh(self, pipeline: Any, num_inference_steps: int, verbose: bool = True) -> None:
        """Drop every cached tensor, counter and accumulator, and set the step count. Called before each generation.

        A diffusers pipeline needs no such call: its scheduler tells the steps.

        Args:
            pipeline: the enabled one.
            num_inference_steps: steps of the next generation; 0 if they are not known yet.
            verbose: whether to log it.
        """

    def disable(self, pipeline: Any) -> None:
        """Restore the pipeline exactly. Idempotent.

        Raises:
            StateError: the backend is enabled and does not implement this method.
        """
        if self.is_enabled():
            raise StateError(messages.CANNOT_DISABLE, backend=type(self).__name__)

    def stats(self) -> dict[str, Any]:
        """Counters since `enable`; empty for a backend that counts nothing."""
        return {}

    def is_enabled(self) -> bool:
        """True if `enable` ran and `disable` did not."""
        return self.enabled

    def __repr__(self) -> str:
        return f"{type(self).__name__}(config={self.config!r})"


class StepCacheBackend(CacheBackend):
    """The backend of a named step cache.

    Args:
        config: the options: a `DiffusionCacheConfig`, or a mapping with some of its fields.
        name: a name in `STEP_CACHES`; a subclass may fix it.
        group: the ranks that share the forward's collectives and must decide alike; None if each rank runs its own
            model.

    Attributes:
        handle: the handle of the enabled pipeline; None before `enable`.

    Raises:
        ConfigError: an option is out of range.
        UnknownNameError: a key is no option.
        WrongTypeError: the config is of another kind.
    """

    name: str = ""
    config: DiffusionCacheConfig

    def __init__(
        self,
        config: DiffusionCacheConfig | Mapping[str, Any],
        *,
        name: str | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if isinstance(config, Mapping):
            config = DiffusionCacheConfig.from_dict(config)
        if not isinstance(config, DiffusionCacheConfig):
            raise kind_error(self, "config", "be a DiffusionCacheConfig or a mapping", config)
        super().__init__(config)
        self.name = name or type(self).name
        self.handle: Handle | None = None
        self._group = group
        self._pipeline: Any = None

    def enable(self, pipeline: Any) -> None:
        """Serve this pipeline from now on."""
        if self.enabled:
            raise StateError(messages.BACKEND_ENABLED, backend=self)
        opened = NamedCache(self.name, self.config).open(pipeline, self._group)
        self.handle = Handle(pipeline, opened, self._group)
        self._pipeline = pipeline
        self.enabled = True

    def refresh(self, pipeline: Any, num_inference_steps: int, verbose: bool = True) -> None:
        """Drop all state and set the step count.

        With 0 the scheduler tells it; if there is none, `num_inference_steps` of the config counts.

        Raises:
            StateError: the backend is not enabled on this pipeline.
            ConfigError: the step count is below 0.
        """
        if self.handle is None or pipeline is not self._pipeline:
            raise StateError(messages.NOT_ENABLED, backend=type(self).__name__)
        check_value("refresh", "num_inference_steps", num_inference_steps, Index)
        self.handle.expect(num_inference_steps or self.config.num_inference_steps)
        if verbose:
            count = num_inference_steps or "an unknown number of"
            logger.info("%s: state dropped, %s steps to come", type(self).__name__, count)

    def disable(self, pipeline: Any) -> None:
        """Restore the pipeline exactly; does nothing if the backend is not enabled.

        Raises:
            StateError: the backend is enabled on another pipeline.
        """
        if self.handle is None:
            return
        if pipeline is not self._pipeline:
            raise StateError(f"{type(self).__name__}.disable: another pipeline is enabled")
        self.handle.disable()
        self.handle = self._pipeline = None
        self.enabled = False

    def stats(self) -> dict[str, Any]:
        """The fields of the summary; empty before `enable`."""
        return {} if self.handle is None else dict(vars(self.handle.summary()))
