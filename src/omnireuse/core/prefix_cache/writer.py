"""Copies off the device that the step does not wait for, and the writes that follow them, in order."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

__all__ = ["WriteQueue", "start_host_copies"]


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def start_host_copies(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.cuda.Event | None]:
    """Start copying device tensors into pinned memory on a stream of their own.

    The tensors are first cloned on their device, in order with the model's own work: the engine may overwrite its
    buffers (a CUDA graph replay does) as soon as this returns. Host tensors among them are cloned for the same reason.

    Returns:
        The host tensors, and the event to wait for before they are read; without a device tensor, the very tensors
        that were given and None. A device other than CUDA is waited for.

    Cost: no host synchronisation; one device-to-device copy on the current stream.
    """
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    if not devices:
        return [tensor.cpu() for tensor in tensors], None
    (device,) = devices
    current, side = torch.cuda.current_stream(device), _side_stream(device)
    host = [tensor.detach().clone() for tensor in tensors]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for index, clone in enumerate(host):
            if clone.is_cuda:
                pinned = torch.empty(clone.shape, dtype=clone.dtype, pin_memory=True)
                host[index] = pinned.copy_(clone, non_blocking=True)
                clone.record_stream(side)
        event = torch.cuda.Event()
        event.record(side)
    return host, event


class WriteQueue:
    """Run writes in the order given: at once if nothing is to be waited for, else on one thread of their own.

    Args:
        max_pending: writes in flight before the caller waits for the oldest.

    Attributes:
        num_stalls: how often the caller had to wait because the queue was full.
        failure: the first error of a write on the thread.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._pending: deque[Future[None]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self.num_stalls = 0
        self.failure: Exception | None = None

    def write(self, job: Callable[[], None], ready: torch.cuda.Event | None) -> Future[None] | None:
        """Run `job` after `ready` and after every earlier job. A failed job raises at the next call.

        Returns:
            What tells that the job is done; None if it is.
        """
        if ready is None:
            self.flush()
            job()
            return None
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        if len(self._pending) >= self._max_pending:
            self.num_stalls += 1
            self._pending.popleft().result()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="omnireuse-prefix-cache")
        self._pending.append(self._thread.submit(self._run_after, ready, job))
        return self._pending[-1]

    def flush(self) -> None:
        """Wait until every write has landed."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Wait until every write has ended, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _run_after(self, ready: torch.cuda.Event, job: Callable[[], None]) -> None:
        try:
            ready.synchronize()
            job()
        except Exception as error:
            self.failure = self.failure or error
            raise
