"""What vllm-omni needs of a platform to run its diffusion engine on a CPU."""

from __future__ import annotations

from typing import Any

import psutil
import torch
import vllm.platforms.cpu
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum


def _memory(*_: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


class CpuPlatform(OmniPlatform, vllm.platforms.cpu.CpuPlatform):
    """One device, eager, torch's own attention."""

    _omni_enum = OmniPlatformEnum.OOT
    get_default_stage_config_path = classmethod(lambda cls: "vllm_omni/deploy")
    get_diffusion_attn_backend_cls = classmethod(
        lambda cls, *_, **__: "engines.tests.hosts.vllm_omni.cpu_attention.AttentionBackend"
    )
    supports_torch_inductor = classmethod(lambda cls: False)
    get_torch_device = classmethod(lambda cls, *_: torch.device("cpu"))
    get_device_count = classmethod(lambda cls: 1)
    get_device_version = classmethod(lambda cls: None)
    set_device = classmethod(lambda cls, device: None)
    is_available = classmethod(lambda cls: True)
    synchronize = classmethod(lambda cls: None)
    empty_cache = classmethod(lambda cls: None)
    get_free_memory = classmethod(lambda cls, *_: _memory()[0])
    get_device_memory = classmethod(lambda cls, *_: _memory())
    reset_peak_memory_stats = classmethod(lambda cls, *_: None)
    max_memory_reserved = classmethod(lambda cls, *_: 0)
    max_memory_allocated = classmethod(lambda cls, *_: 0)
