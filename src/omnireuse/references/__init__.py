"""Editing models: keys and values of references are computed at some calls, and kept for those in between."""

from omnireuse.references.axis import ReferenceAxis
from omnireuse.references.declared import DECLARED, Declaration, Split, kept_bytes
from omnireuse.references.plan import References, plan_of

__all__ = [
    "DECLARED",
    "Declaration",
    "ReferenceAxis",
    "References",
    "Split",
    "check_references",
    "kept_bytes",
    "plan_of",
]
