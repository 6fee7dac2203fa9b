"""Pipelines as people have them: from a folder, a hub or a function, with any arguments and results.

The names below are for packages that run pipelines and judge their pictures, such as omnireuse-lab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireuse.base.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse.pipelines.bars import without_bar
    from omnireuse.pipelines.call import Caller, Signature, is_modular, refuse_reserved
    from omnireuse.pipelines.pictures import IDENTICAL_DB, Picture, as_floats, capped_psnr, psnr
    from omnireuse.pipelines.source import Source, function_named, object_named

__all__ = [
    "IDENTICAL_DB",
    "Caller",
    "Picture",
    "Signature",
    "Source",
    "as_floats",
    "capped_psnr",
    "function_named",
    "is_modular",
    "object_named",
    "psnr",
    "refuse_reserved",
    "without_bar",
]

_HOMES = {
    "bars": "without_bar",
    "call": "Caller Signature is_modular refuse_reserved",
    "pictures": "IDENTICAL_DB Picture as_floats capped_psnr psnr",
    "source": "Source function_named object_named",
}
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
