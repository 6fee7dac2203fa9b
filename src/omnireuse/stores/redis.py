"""A tier in Redis or Valkey, shared between machines."""

from __future__ import annotations

from typing import Any

from omnireuse.base.validation import Positive, check_value, field_error
from omnireuse.errors import MissingExtraError
from omnireuse.stores.memory import check_budget
from omnireuse.stores.tier import CircuitBreaker, Tier

__all__ = ["RedisTier"]


class RedisTier(Tier):
    """Values under ``namespace:key``, with the server's own eviction and an optional age.

    Args:
        url: as ``redis://localhost:6379/0``.
        namespace: see :class:`Tier`.
        timeout_s: seconds to wait for a connection or an answer, above 0; a slower server is a counted miss.
        ttl_s: seconds an entry lives, at least 1; None leaves it to the server's ``maxmemory-policy``.
        max_value_bytes: larger values are not sent.
        breaker: see :class:`Tier`.

    Raises:
        MissingExtraError: the ``redis`` package is not installed.
        ConfigError: a value out of range, or an invalid URL.
    """

    name = "redis"

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "",
        timeout_s: float = 0.25,
        ttl_s: int | None = None,
        max_value_bytes: int = 256 << 20,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        super().__init__(namespace=namespace, breaker=breaker)
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise MissingExtraError("the Redis tier", "redis") from error
        check_value("RedisTier", "timeout_s", timeout_s, Positive)
        self.max_value_bytes = check_budget("RedisTier", "max_value_bytes", max_value_bytes) or 0
        self._ttl_s = check_budget("RedisTier", "ttl_s", ttl_s)
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        try:
            # No retries: a tier that is slow is a miss, and the circuit breaker counts each failure itself.
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
            )
        except ValueError as error:
            raise field_error("RedisTier", "url", f"be a Redis URL ({error})", repr(url)) from error

    def errors(self) -> tuple[type[Exception], ...]:
        """The errors of the client and of the network."""
        return self._errors

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _read(self, full: str) -> bytes | None:
        data = self._client.get(full)
        return data if isinstance(data, bytes) else None

    def _write(self, full: str, data: bytes) -> bool:
        if len(data) > self.max_value_bytes:
            self._count("refused")
            return False
        return bool(self._client.set(full, data, ex=self._ttl_s))

    def _delete(self, full: str) -> None:
        self._client.delete(full)
