"""Which vLLM the connector is made for, and what `ec_connector_extra_config` says: checked before the engine starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from omnireuse.base.validation import field_error
from omnireuse.errors import UnknownNameError
from omnireuse.stores.disk import DiskTier
from omnireuse.stores.redis import RedisTier
from omnireuse.stores.tier import Tier, TieredStore
from omnireuse_engines import host

__all__ = ["TESTED", "ConnectorOptions", "check_host"]

_DIGEST = re.compile("[0-9a-fA-F]{32,128}")


@dataclass(frozen=True, kw_only=True)
class ConnectorOptions:
    """The places of encoder outputs beside the device.

    Args:
        host_bytes: budget of the host tier in bytes, for each worker; 0 for none.
        disk: directory of the disk tier; needs `disk_bytes`.
        disk_bytes: quota of the directory in bytes.
        redis: URL of the Redis tier.
        weights: digest of the checkpoint with the encoder in hexadecimal, as ``sha256sum`` prints it; needed for disk
            and Redis, which outlive the engine and may be shared with others.
        fetch_seconds: how long a request waits for disk or Redis before its inputs are encoded, > 0.

    Raises:
        ConfigError: a value out of range, or an option without the one that it needs.
        UnknownNameError: an unknown option.
    """

    host_bytes: int = 4 << 30
    disk: str | None = None
    disk_bytes: int | None = None
    redis: str | None = None
    weights: str = ""
    fetch_seconds: float = 1.0

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> ConnectorOptions:
        """The options in a server's configuration."""
        known = [field.name for field in fields(cls)]
        for name in extra:
            if name not in known:
                raise UnknownNameError("option of ec_connector_extra_config for omnireuse", name, known)
        return cls(**extra)

    def __post_init__(self) -> None:
        if type(self.host_bytes) is not int or self.host_bytes < 0:
            raise _wrong(
                "host_bytes", "be a number of bytes ≥ 0", repr(self.host_bytes), do="0 turns the host tier off"
            )
        if (self.disk is None) != (self.disk_bytes is None):
            raise _wrong(
                "disk", f"stand beside disk_bytes={self.disk_bytes!r}", repr(self.disk), do="give both or neither"
            )
        is_kept = self.disk or self.redis
        if self.weights != "" or is_kept:
            self.digest(self.weights)
        if not isinstance(self.fetch_seconds, (int, float)) or not self.fetch_seconds > 0:
            raise _wrong("fetch_seconds", "be > 0", repr(self.fetch_seconds), do="1.0 is the default")

    @staticmethod
    def digest(weights: object) -> str:
        """Return the digest of weights, if it is one."""
        if isinstance(weights, str) and _DIGEST.fullmatch(weights):
            return weights
        raise _wrong(
            "weights", "be a digest of the encoder's weights in hexadecimal, of 32 digits or more", repr(weights),
            do="cat CHECKPOINT/*.safetensors | sha256sum computes one; under a name that two models share, one would "
            "be served the outputs of the other",
        )  # fmt: skip

    def open_tiers(self) -> TieredStore | None:
        """Disk before Redis; None for neither."""
        tiers: list[Tier] = []
        if self.disk is not None:
            tiers.append(DiskTier(self.disk, max_bytes=self.disk_bytes or 0))
        if self.redis is not None:
            tiers.append(RedisTier(self.redis))
        return TieredStore(tiers) if tiers else None


_wrong = partial(field_error, "ec_connector_extra_config")
TESTED = ("0.33",)


def check_host(parallel_config: Any = None) -> None:
    """Raise unless this vLLM was tested, and its executor reports what every worker did."""
    host.check_host("vllm", TESTED, asked="EncoderOutputConnector")
    executor = getattr(parallel_config, "distributed_executor_backend", None)
    if executor not in (None, "mp", "uni") and parallel_config.world_size > 1:
        raise field_error(
            "EncoderOutputConnector", "distributed_executor_backend", "be 'mp' for several workers", repr(executor),
            do="other executors report what one worker did, and the host tier needs all",
        )  # fmt: skip
