"""`PromptAffinityRouter`: Ray Serve sends equal prompts to the same replica, whose prompt cache has them.

    @serve.deployment(num_replicas=3, max_ongoing_requests=1, request_router_config=RequestRouterConfig(
        request_router_class="omnireuse_engines.ray_serve.PromptAffinityRouter"))

Source of the interface: ray 2.60, ray.serve.request_router, which Ray calls alpha. Ranking: Thaler and Ravishankar,
"Using name-based mappings to increase hit rates", 1998 (rendezvous hashing).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping

from omnireuse.errors import ConfigError

try:
    from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
except ImportError as error:
    raise ConfigError(
        "PromptAffinityRouter: ray must have ray.serve.request_router, which ray 2.60 has; "
        f"pip install 'omnireuse[serve]' ({error})"
    ) from error

__all__ = ["PromptAffinityRouter", "rank"]

logger = logging.getLogger("ray.serve")


def rank(prompt: str, names: Iterable[str]) -> list[str]:
    """Order replicas for a prompt: equal prompts give equal orders, and different ones spread evenly.

    If a replica leaves, only the prompts that had it first move, each to its own second.
    """
    return sorted(names, key=lambda name: hashlib.blake2b(f"{name}\0{prompt}".encode(), digest_size=16).digest())


class PromptAffinityRouter(RequestRouter):  # type: ignore[misc]  # Ray is not annotated
    """Rank the replicas of a deployment by rendezvous hashing of the request's prompt.

    A replica with `max_ongoing_requests` requests is passed over for the prompt's next one, and so is one that died.
    Requests are not held back for their first choice, so a low `max_ongoing_requests` bounds what affinity costs in
    waiting. A request without a prompt goes to any replica; the first one is logged.
    """

    def initialize_state(self, argument: str = "prompt") -> None:
        """Take `request_router_kwargs`.

        Args:
            argument: the place of the prompt: a keyword argument of the handle's call, or a key of its first argument.
                Prompts are compared as JSON, so a list of texts is one, too.

        Raises:
            ConfigError: `argument` is no name.
        """
        if not isinstance(argument, str) or not argument:
            raise ConfigError(
                f"PromptAffinityRouter(argument={argument!r}): field must be the name of the argument that holds the "
                f"prompt, got {argument!r}"
            )
        self._argument, self._is_told = argument, False

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return one replica a rank, most preferred first; all in one rank if there is no prompt."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # when all ranks are full
        prompt = self._prompt(pending_request)
        if prompt is None:
            return [candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[by_name[name]] for name in rank(prompt, by_name)]

    def _prompt(self, request: PendingRequest) -> str | None:
        given = request.kwargs.get(self._argument)
        if given is None and request.args and isinstance(request.args[0], Mapping):
            given = request.args[0].get(self._argument)
        if given is not None:
            return json.dumps(given, sort_keys=True, default=_text)
        if not self._is_told:
            self._is_told = True
            logger.warning("requests without %r go to any replica; the first: %r", self._argument, request.metadata)
        return None


def _text(value: object) -> str:
    return str(value)
