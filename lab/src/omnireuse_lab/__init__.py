"""The laboratory of omnireuse: reuse, other caches and plain fewer steps, judged on a pipeline.

    import omnireuse_lab

    comparison = omnireuse_lab.compare_pipeline(pipe, prompts, steps=28)

It brings the commands ``omnireuse compare`` and ``omnireuse demo``. A `Method` of your own takes part through
``methods=``, ``--method`` or the entry points "omnireuse.methods"; `check_method` is its contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireuse.base.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse_lab.compare.methods.base import Method, Setting, Subject, lazily, reuse
    from omnireuse_lab.compare.run import compare_pipeline
    from omnireuse_lab.compare.workload import Workload
    from omnireuse_lab.contract import check_method
    from omnireuse_lab.record import Comparison, read_comparison
    from omnireuse_lab.report.page import write_page

__version__ = "0.3.0"

__all__ = [
    "Comparison",
    "Method",
    "Setting",
    "Subject",
    "Workload",
    "__version__",
    "check_method",
    "compare_pipeline",
    "lazily",
    "read_comparison",
    "reuse",
    "write_page",
]

_HOMES = {
    "compare.methods.base": "Method Setting Subject lazily reuse",
    "compare.run": "compare_pipeline",
    "compare.workload": "Workload",
    "contract": "check_method",
    "record": "Comparison read_comparison",
    "report.page": "write_page",
}
__getattr__, _ = lazy_exports(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
