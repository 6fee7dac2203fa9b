"""Process-wide notice that some module was rebuilt or some optimizer stepped, so that a hit need not walk a model.

Torch calls its registration hooks whenever any module gains a submodule, parameter or buffer, and the step hooks
after every ``Optimizer.step``. A changed count says only "look again". The hooks exist while at least one watch is
open.
"""

from __future__ import annotations

import threading
from typing import Any

from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["ChangeCounter", "changes"]


class ChangeCounter:
    """``count`` grows with every event; open and close are counted."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._num_open = 0
        self._handles: list[Any] = []

    def open(self) -> None:
        """Start to listen, if nobody does yet."""
        with self._lock:
            self._num_open += 1
            if self._num_open == 1:
                self._handles = [
                    register_module_module_registration_hook(self._on_event),
                    register_module_parameter_registration_hook(self._on_event),
                    register_module_buffer_registration_hook(self._on_event),
                    # A fused optimizer step changes weights without a new tensor version (torch 2.13).
                    register_optimizer_step_post_hook(self._on_event),
                ]

    def close(self) -> None:
        """Stop to listen with the last of those who opened."""
        with self._lock:
            self._num_open -= 1
            if self._num_open == 0:
                for handle in self._handles:
                    handle.remove()
                self._handles = []

    def _on_event(self, *_: object) -> None:
        self.count += 1  # a lost increment of two racing threads is still a change


changes = ChangeCounter()
